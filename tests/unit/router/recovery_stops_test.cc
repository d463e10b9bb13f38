// The router itself stood still: what it has not heard meanwhile says nothing, and its waits begin
// anew.
#include "gtest/gtest.h"
#include "tests/unit/router/recovery_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Code = absl::StatusCode;

class RouterStopTest : public RecoveryHarness {
 protected:
  void SetUp() override {
    Create({.hang_limit = milliseconds(2600)}, true,
           {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
  }
  // Stopped for that long, and not asked before to wake within it.
  void StandStill(Duration time) {
    ASSERT_LT(node_->NextDeadline(), now_ + time);
    Wait(time);
  }
  // The workers are heard all the time.
  void Run(Duration time) {
    for (const Time end = now_ + time; now_ < end;) {
      for (int32_t worker = 0; worker < 4; ++worker) Heard(worker);
      Sleep(std::min<Duration>(milliseconds(500), end - now_));
    }
  }
};

TEST_F(RouterStopTest, AnAnswerMayLieUnread) {
  Submit(1, Request());
  StandStill(seconds(8));
  Run(milliseconds(4400));
  EXPECT_EQ(node_->counters().unanswered, 0);
  Run(milliseconds(200));
  EXPECT_EQ(node_->counters().unanswered, 1);
}

TEST_F(RouterStopTest, WorkersHaveTheirWholeTimeToBeHeardAgain) {
  StandStill(seconds(8));
  Sleep(milliseconds(2599));
  EXPECT_EQ(node_->counters().hung_workers, 0);
  Sleep(milliseconds(1));
  EXPECT_EQ(node_->counters().hung_workers, 4);
}

TEST_F(RouterStopTest, AShortOneFencesNobody) {
  Submit(1, Request());
  StandStill(milliseconds(3100));
  Run(seconds(1));
  EXPECT_EQ(node_->counters().hung_workers, 0);
}

// However long: also one that ends just when a worker would count as silent.
TEST_F(RouterStopTest, NoneFencesAWorkerWhoseWordLiesUnread) {
  for (auto stop = milliseconds(1500); stop < milliseconds(3500); stop += milliseconds(10)) {
    SetUp();
    Run(seconds(1));
    Sleep(milliseconds(100));
    Wait(stop);
    Sleep(milliseconds(20));  // Until its mail is read.
    Run(seconds(3));
    EXPECT_EQ(node_->counters().hung_workers, 0) << stop.count();
  }
}

TEST_F(RouterStopTest, AWorkerThatIsSilentIsFoundOnTimeHoweverOftenTheRouterWakes) {
  for (const auto pause : {milliseconds(10), milliseconds(100), milliseconds(215),
                           milliseconds(430), milliseconds(500), milliseconds(2500)}) {
    SetUp();
    const Time due = now_ + milliseconds(2600);
    while (now_ + pause < due) {
      Sleep(pause);
      for (int32_t worker : {0, 1, 2}) Heard(worker);
    }
    Sleep(due - now_ - milliseconds(1));
    EXPECT_EQ(node_->counters().hung_workers, 0) << pause.count();
    Sleep(milliseconds(1));
    EXPECT_EQ(node_->counters().hung_workers, 1) << pause.count();
  }
}

TEST_F(RouterStopTest, AVerdictMayLieUnread) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  Closed(prefill_call());
  StandStill(seconds(8));
  Run(milliseconds(1900));
  EXPECT_EQ(node_->counters().handoff_failures, 0);
  Run(milliseconds(200));
  EXPECT_EQ(node_->counters().handoff_failures, 1);
}

TEST_F(RouterStopTest, WhatIsHeldIsHeldForItsWholeTime) {
  Create({.hang_limit = milliseconds(2600)}, true, {Role::kPrefill, Role::kDecode});
  ToPrefilling(1);
  Kill(1, {decode_call()});
  Heard(0);
  StandStill(seconds(8));
  for (int i = 0; i < 3; ++i) {
    Heard(0);
    Sleep(milliseconds(600));
  }
  EXPECT_EQ(node_->counters().holds_expired, 0);
  Sleep(milliseconds(300));
  EXPECT_EQ(node_->counters().holds_expired, 1);
}

TEST_F(RouterStopTest, SilenceBeforeItDoesNotCount) {
  ToDecoding(1);
  StandStill(seconds(60));
  EXPECT_EQ(Ended(1), std::nullopt);
  Run(seconds(29));
  EXPECT_EQ(Ended(1), std::nullopt);
  Run(seconds(2));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

}  // namespace
}  // namespace baton
