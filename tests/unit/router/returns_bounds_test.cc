// What many sequences that return cost the router in one turn, and what they leave to others.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/returns_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;

class ReturnsBoundsTest : public ReturnsHarness {
 protected:
  // So many decode on the one decode worker, and their session has ended.
  void LoseAll(uint64_t num, int64_t max_return_tokens) {
    Create({.max_return_tokens = max_return_tokens}, true, {Role::kPrefill, Role::kDecode});
    std::vector<CallId> calls;
    for (uint64_t key = 1; key <= num; ++key) {
      Decode(key);
      calls.push_back(decode_call());
    }
    EndSession(1, calls);
    num_before_ = outbox_.decodes.size();
  }
  // The sequences that have asked since then.
  std::vector<uint64_t> Asked() const {
    std::vector<uint64_t> counters;
    for (size_t i = num_before_; i < outbox_.decode_requests.size(); ++i) {
      counters.push_back(outbox_.decode_requests[i].sequence.counter);
    }
    return counters;
  }
  void Refuse(size_t call) {
    Closed(outbox_.decodes[call].call, absl::ResourceExhaustedError("no blocks are free"));
  }

  size_t num_before_ = 0;
};

TEST_F(ReturnsBoundsTest, OnlySoMuchGoesInOneTurnAndTheNextComesAtOnce) {
  LoseAll(5, 2000);
  Back(1);
  EXPECT_THAT(Asked(), ElementsAre(1, 2));
  EXPECT_EQ(node_->NextDeadline(), now_);
  node_->Step(now_);
  EXPECT_THAT(Asked(), ElementsAre(1, 2, 3, 4));
  node_->Step(now_);
  EXPECT_THAT(Asked(), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_GT(node_->NextDeadline(), now_);
}

TEST_F(ReturnsBoundsTest, TokensCount) {
  Create({.max_return_tokens = 1100}, true, {Role::kPrefill, Role::kDecode});
  std::vector<CallId> calls;
  for (uint64_t key = 1; key <= 2; ++key) {
    Submit(key, Request(100, 9));
    Reserved(decode_call());
    Prefilled(prefill_call(), 100, 50);
    Tokens(decode_call(), 100, 50);
    Closed(prefill_call());
    calls.push_back(decode_call());
  }
  EndSession(1, calls);
  Back(1);
  EXPECT_EQ(outbox_.decodes.size(), 3u);
}

TEST_F(ReturnsBoundsTest, WhatQueuesDoesNotOvertakeTheOthers) {
  LoseAll(3, 2000);
  Submit(9, Request(3, 9));
  Back(1);
  EXPECT_THAT(Asked(), ElementsAre(1, 2));
  node_->Step(now_);
  EXPECT_THAT(Asked(), ElementsAre(1, 2, 3, 4));
}

TEST_F(ReturnsBoundsTest, WhoseWaitIsOverTakesItsPartToo) {
  LoseAll(3, 2000);
  Sleep(milliseconds(999));
  EXPECT_EQ(node_->NextDeadline(), now_ + milliseconds(1));
  Wait(milliseconds(1));
  EXPECT_EQ(node_->NextDeadline(), now_);
  node_->Step(now_);
  EXPECT_GT(node_->NextDeadline(), now_);
}

TEST_F(ReturnsBoundsTest, WhenTheOneThatAsksEndsTheNextAsks) {
  LoseAll(2, 1 << 20);
  Back(1);
  Refuse(num_before_);
  Refuse(num_before_ + 1);
  Wait(milliseconds(20));
  EXPECT_THAT(Asked(), ElementsAre(1, 2, 1));
  Wait(milliseconds(30));
  EXPECT_THAT(Asked(), ElementsAre(1, 2, 1)) << "one asks at a time";
  Handle(ClientCancel{1});
  EXPECT_THAT(Asked(), ElementsAre(1, 2, 1, 2));
}

// Without the node, which tells what it hears.
TEST(ReturnsLooksTest, NothingIsLookedAtBeforeSomethingIsHeardOfItsWorker) {
  const RouterNodeOptions options;
  WorkerDirectory directory({Role::kDecode}, options.hang_limit, options.alone_after);
  Returns returns(options, directory);
  const HelloInfo hello{.role = Role::kDecode, .incarnation = 7, .max_model_len = 100};
  const Time now{seconds(1)};
  directory.OnUp(0, hello, now);
  SequenceState sequence;
  sequence.id.counter = 1;
  directory.Take(sequence.decode, 0, 5);
  directory.Release(sequence.decode);
  directory.OnDown(0, "connection lost", now);
  returns.Begin(sequence, CallClosed{.status = absl::UnavailableError("connection lost")}, now);
  EXPECT_FALSE(returns.Next(now).has_value());
  EXPECT_EQ(returns.NextLook(), now + seconds(1));
  directory.OnUp(0, hello, now);
  EXPECT_FALSE(returns.Next(now).has_value());
  returns.Note(0);
  const auto due = returns.Next(now);
  ASSERT_TRUE(due.has_value());
  EXPECT_TRUE(due->goes);
  EXPECT_EQ(due->sequence, &sequence);
  EXPECT_EQ(returns.Go(sequence, now), 0);
  EXPECT_FALSE(returns.Next(now).has_value());
}

}  // namespace
}  // namespace baton
