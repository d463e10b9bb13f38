// What may happen to a sequence while it waits to return, and which of them do.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/returns_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using Code = absl::StatusCode;

class ReturnsWaitsTest : public ReturnsHarness {
 protected:
  // Each worker's silence counts.
  void CreateWatching() {
    Create({.hang_limit = milliseconds(2400)}, true,
           {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
  }
  // For so long nothing is heard of `worker_` alone.
  void SleepWithoutIt(Duration time) {
    for (const Time end = now_ + time; now_ < end;) {
      Sleep(milliseconds(100));
      for (int32_t w = 0; w < 4; ++w) {
        if (w != worker_) Heard(w);
      }
    }
  }
};

TEST_F(ReturnsWaitsTest, WhoStopsIsDone) {
  LoseSession();
  Handle(ClientStop{.request = 1, .choice = 0});
  EXPECT_EQ(Ended(1), Code::kOk);
  Back(worker_);
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_TRUE(node_->idle());
}

TEST_F(ReturnsWaitsTest, WhoStopsAndIsOwedAScoreGetsItFromAPrefillWorker) {
  ValidRequest request = Request(3, 9);
  request.sampling.num_prompt_logprobs = 0;
  ToPrefilling(1, request);
  Tokens(decode_call(), 3, 50);
  Closed(prefill_call(), Gone());
  worker_ = outbox_.decodes.back().worker;
  EndSession(worker_, {decode_call()});
  EXPECT_EQ(outbox_.prefills.size(), 1u);
  Handle(ClientStop{.request = 1, .choice = 0});
  ASSERT_EQ(outbox_.prefills.size(), 2u);
  EXPECT_FALSE(last_prefill().handoff.has_value());
  Back(worker_);
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  Scores(prefill_call(), 1, 3);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2));
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(ReturnsWaitsTest, ADeadlineEndsTheWait) {
  ValidRequest request = Request(3, 9);
  request.timeout = milliseconds(500);
  Decode(1, request);
  EndSession(outbox_.decodes.back().worker, {decode_call()});
  Sleep(milliseconds(499));
  EXPECT_EQ(Ended(1), std::nullopt);
  Sleep(milliseconds(1));
  EXPECT_EQ(Ended(1), Code::kDeadlineExceeded);
  EXPECT_TRUE(node_->idle());
}

TEST_F(ReturnsWaitsTest, AWorkerThatStandsIsWaitedForNoLongerThanItMayBeSilent) {
  CreateWatching();
  Decode(1);
  worker_ = outbox_.decodes.back().worker;
  SleepWithoutIt(seconds(2));
  EndSession(worker_, {decode_call()});
  SleepWithoutIt(milliseconds(300));
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  SleepWithoutIt(milliseconds(200));
  EXPECT_EQ(node_->counters().moves, 1);
  EXPECT_EQ(outbox_.decodes.size(), 2u);
}

TEST_F(ReturnsWaitsTest, AWorkerThatIsFencedIsWaitedForNoLonger) {
  CreateWatching();
  Decode(1);
  worker_ = outbox_.decodes.back().worker;
  SleepWithoutIt(seconds(2));
  Closed(decode_call(), Gone());
  SleepWithoutIt(milliseconds(300));
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  SleepWithoutIt(milliseconds(200));
  EXPECT_EQ(node_->counters().hung_workers, 1);
  EXPECT_EQ(node_->counters().moves, 1);
  EXPECT_EQ(outbox_.decodes.size(), 2u);
}

TEST_F(ReturnsWaitsTest, ASecondWaitIsBegunAnewToo) {
  CreateWatching();
  LoseSession();
  for (size_t asked = 2; asked < 4; ++asked) {
    now_ += seconds(5);
    node_->Step(now_);
    ASSERT_EQ(node_->counters().moves, 0);
    Back(worker_);
    ASSERT_EQ(outbox_.decodes.size(), asked);
    EndSession(worker_, {decode_call()});
  }
}

TEST_F(ReturnsWaitsTest, HowACallIsLostWithItsSessionDoesNotMatter) {
  const std::vector<absl::Status> ends = {absl::UnavailableError("reset"),
                                          absl::DataLossError("damaged"),
                                          absl::CancelledError("by the library")};
  for (const absl::Status& end : ends) {
    SetUp();
    outbox_ = {};
    Decode(1);
    worker_ = outbox_.decodes.back().worker;
    Closed(decode_call(), end);
    Handle(WorkerDown{.worker = worker_, .reason = "a message was damaged"});
    Back(worker_);
    ExpectReturned();
  }
}

TEST_F(ReturnsWaitsTest, AnAnswerThatLacksItsLastTokenReturnsToo) {
  Decode(1, Request(3, 2));
  worker_ = outbox_.decodes.back().worker;
  EndSession(worker_, {decode_call()});
  Back(worker_);
  ExpectReturned();
  Tokens(decode_call(), 4, 51, FinishReason::kLength, 2);
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_EQ(outbox_.prefills.size(), 1u);
}

TEST_F(ReturnsWaitsTest, AFurtherChoiceReturnsBeforeItsFirstTokenToo) {
  ValidRequest request = Request(3, 9);
  request.num_choices = 2;
  Decode(1, request);
  worker_ = outbox_.decodes[0].worker;
  Ready(outbox_.decodes[1].call, 1);
  EndSession(worker_, {outbox_.decodes[0].call, outbox_.decodes[1].call});
  Back(worker_);
  ASSERT_EQ(outbox_.decodes.size(), 4u);
  EXPECT_EQ(last_decode().prefill, 0u);
  EXPECT_FALSE(last_decode().compute_prompt);
  EXPECT_EQ(last_decode().tokens, (std::vector<int32_t>{7, 7, 7}));
  EXPECT_EQ(last_decode().attempt, 2u);
  Tokens(decode_call(), 3, 60, FinishReason::kStop, 2);
  EXPECT_THAT(Seen(1, 1), ElementsAre(60));
}

TEST_F(ReturnsWaitsTest, AmidHandoffsOnlyAnswersWait) {
  // The other decode worker has more to do.
  Occupy(2);
  for (uint64_t key = 1; key <= 3; ++key) Submit(key, Request(3, 9));
  const auto begin = std::ssize(outbox_.decodes) - 3;
  const std::vector<RecordingRouterOutbox::Opened> calls(outbox_.decodes.begin() + begin,
                                                         outbox_.decodes.end());
  for (const auto& call : calls) ASSERT_EQ(call.worker, 1);
  Reserved(calls[0].call);
  Prefilled(prefill_call(), 3, 50);
  Tokens(calls[0].call, 3, 50);
  Closed(prefill_call());
  Reserved(calls[1].call);  // Its prefill worker keeps the K/V.
  Prefilled(prefill_call(), 3, 60);
  const CallId kept = prefill_call();
  EndSession(1, {calls[2].call, calls[1].call, calls[0].call});
  Judged();
  // Those go to the other one, each as it was.
  const SequenceId held = outbox_.decode_requests[begin + 1].sequence;
  ASSERT_EQ(std::ssize(outbox_.decodes), begin + 5);
  for (auto i = begin + 3; i < begin + 5; ++i) {
    EXPECT_EQ(outbox_.decodes[i].worker, 2);
    if (outbox_.decode_requests[i].sequence == held) Reserved(outbox_.decodes[i].call, 2);
  }
  ASSERT_EQ(outbox_.sends.size(), 1u);
  EXPECT_EQ(outbox_.sends[0].first, kept);
  Back(1);
  ASSERT_EQ(std::ssize(outbox_.decodes), begin + 6);
  EXPECT_EQ(outbox_.decodes.back().worker, 1);
  EXPECT_EQ(last_decode().tokens, (std::vector<int32_t>{7, 7, 7, 50}));
  EXPECT_EQ(node_->counters().moves, 2);
}

}  // namespace
}  // namespace baton
