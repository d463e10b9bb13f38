// The end of a session is not the loss of a worker: its sequences return to it.
#include "router/returns.h"

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

using ReturnsTest = ReturnsHarness;

TEST_F(ReturnsTest, AnAnswerGoesOnWhereItWasAndNothingIsPrefilled) {
  LoseSession();
  Wait(milliseconds(100));
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  Back(worker_);
  ExpectReturned();
  EXPECT_EQ(last_decode().tokens, (std::vector<int32_t>{7, 7, 7, 50}));
  EXPECT_EQ(last_decode().prompt_length, 3);
  EXPECT_EQ(last_decode().attempt, 2u);
  ExpectEndWithoutPrefill();
  EXPECT_EQ(node_->counters().self_prefills, 0);
  EXPECT_TRUE(node_->idle());
}

TEST_F(ReturnsTest, EndsAreReadInAnyOrder) {
  Decode(1);
  worker_ = outbox_.decodes.back().worker;
  node_->Handle(WorkerDown{.worker = worker_, .reason = "a message was damaged"}, now_);
  Back(worker_);
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  Closed(outbox_.decodes[0].call, Gone());
  EXPECT_EQ(outbox_.decodes.size(), 1u) << "the new connection may be the one that was lost";
  Judged();
  ExpectReturned();
}

TEST_F(ReturnsTest, AllReturnAtOnceOldestFirstWhateverTheirNumber) {
  Create({.max_recovering = 1}, true, {Role::kPrefill, Role::kDecode});
  std::vector<CallId> calls;
  for (uint64_t key = 1; key <= 50; ++key) {
    Decode(key);
    calls.push_back(decode_call());
  }
  EndSession(1, {calls.rbegin(), calls.rend()});
  Back(1);
  ASSERT_EQ(outbox_.decodes.size(), 100u);
  for (size_t i = 50; i < 100; ++i) {
    EXPECT_EQ(outbox_.decode_requests[i].sequence.counter, i - 49);
    EXPECT_EQ(outbox_.decode_requests[i].prefill, 0u);
  }
  EXPECT_EQ(outbox_.prefills.size(), 50u);
}

TEST_F(ReturnsTest, WhatWaitsInTheQueueAndWhomAWorkerIsKeptForDoNotKeepThemOut) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  Decode(1);
  worker_ = 1;
  ValidRequest large = Request(90, 9);
  large.priority = -1;
  Submit(2, large);
  Closed(decode_call(), absl::ResourceExhaustedError("no blocks are free"));
  EndSession(1, {outbox_.decodes[0].call});
  Back(1);
  EXPECT_EQ(outbox_.decode_requests[2].sequence.counter, 1u);
  EXPECT_EQ(outbox_.decode_requests[2].prefill, 0u);
}

TEST_F(ReturnsTest, WhoseWorkerIsNotBackInASecondGoesElsewhere) {
  LoseSession();
  Wait(milliseconds(999));
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  Wait(milliseconds(1));
  ExpectMoved();
}

TEST_F(ReturnsTest, ASecondIsTheLimitAlsoForAWorkerThatIsBackThen) {
  LoseSession();
  now_ += seconds(1);
  Back(worker_);
  ExpectMoved();
}

TEST_F(ReturnsTest, WhereNobodyListensAnyMoreNothingIsWaitedFor) {
  LoseSession();
  Handle(WorkerDown{.worker = worker_, .reason = "no worker answers", .is_gone = true});
  ExpectMoved();
}

TEST_F(ReturnsTest, AnotherProcessHasNothingOfIt) {
  LoseSession();
  Up(worker_, 500);
  Judged();
  EXPECT_EQ(node_->counters().moves, 1);
  EXPECT_NE(last_decode().prefill, 0u);
}

TEST_F(ReturnsTest, ADrainingWorkerIsLeft) {
  Decode(1);
  worker_ = outbox_.decodes.back().worker;
  Handle(WorkerStatusChanged{worker_, {.incarnation = incarnation(worker_), .draining = true}});
  EndSession(worker_, {decode_call()});
  ExpectMoved();
}

TEST_F(ReturnsTest, ACallThatIsLostAloneIsARetry) {
  Decode(1);
  worker_ = outbox_.decodes.back().worker;
  Closed(decode_call(), Gone());
  Wait(milliseconds(1));
  Heard(worker_);
  EXPECT_EQ(outbox_.decodes.size(), 1u) << "the news of the connection may be on its way";
  Judged();
  Judged();
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_EQ(node_->counters().retries, 1);
  EXPECT_NE(last_decode().prefill, 0u);
}

// As when certificates change under a long answer.
TEST_F(ReturnsTest, ACallWhoseConnectionWasReplacedGoesOnOverTheOneThatStands) {
  Decode(1);
  worker_ = outbox_.decodes.back().worker;
  Handle(CallClosed{
      .call = decode_call(), .status = absl::AbortedError("replaced"), .is_replaced = true});
  ExpectReturned();
  ExpectEndWithoutPrefill();
}

TEST_F(ReturnsTest, ACallThatItsWorkerAbortedDoesNot) {
  Decode(1);
  worker_ = outbox_.decodes.back().worker;
  Closed(decode_call(), absl::AbortedError("no transfer came"));
  ExpectMoved();
}

TEST_F(ReturnsTest, WhereItIsNotThereAnyMoreItIsPrefilledAgain) {
  LoseSession();
  Back(worker_);
  ExpectReturned();
  Closed(decode_call(), absl::FailedPreconditionError("it is not here"));
  ExpectMoved();
}

TEST_F(ReturnsTest, AWorkerThatDoesNotKnowOfItEndsNothing) {
  LoseSession();
  Back(worker_);
  Closed(decode_call(), absl::InvalidArgumentError("prefill_incarnation = 0"));
  EXPECT_EQ(Ended(1), std::nullopt);
  ExpectMoved();
}

TEST_F(ReturnsTest, WithoutRoomItAsksAgainWhileThereIsTime) {
  LoseSession();
  Back(worker_);
  for (size_t asked = 2; asked < 52; ++asked) {
    ASSERT_EQ(outbox_.decodes.size(), asked);
    EXPECT_EQ(outbox_.decodes.back().worker, worker_);
    Closed(decode_call(), absl::ResourceExhaustedError("no blocks are free"));
    Wait(milliseconds(20));
  }
  ExpectMoved();
}

TEST_F(ReturnsTest, AfterARefusalTheOldestAsksUntilItIsTaken) {
  std::vector<CallId> calls;
  Create({}, true, {Role::kPrefill, Role::kDecode});
  for (uint64_t key = 1; key <= 5; ++key) {
    Decode(key);
    calls.push_back(decode_call());
  }
  EndSession(1, calls);
  Back(1);
  ASSERT_EQ(outbox_.decodes.size(), 10u);
  for (size_t i = 5; i < 10; ++i) {
    Closed(outbox_.decodes[i].call, absl::ResourceExhaustedError("no blocks are free"));
  }
  for (size_t asked = 11; asked < 14; ++asked) {
    Wait(milliseconds(20));
    ASSERT_EQ(outbox_.decodes.size(), asked);
    EXPECT_EQ(last_decode().sequence.counter, 1u);
    Heard(1);
    ASSERT_EQ(outbox_.decodes.size(), asked) << "it has not answered yet";
    if (asked < 13) Closed(decode_call(), absl::ResourceExhaustedError("no blocks are free"));
  }
  Ready(decode_call(), last_decode().attempt);
  EXPECT_EQ(outbox_.decodes.size(), 17u);
}

TEST_F(ReturnsTest, ANewSessionIsAskedByAll) {
  std::vector<CallId> calls;
  Create({}, true, {Role::kPrefill, Role::kDecode});
  for (uint64_t key = 1; key <= 3; ++key) {
    Decode(key);
    calls.push_back(decode_call());
  }
  EndSession(1, calls);
  Back(1);
  for (size_t i = 3; i < 6; ++i) {
    Closed(outbox_.decodes[i].call, absl::ResourceExhaustedError("no blocks are free"));
  }
  Handle(WorkerDown{.worker = 1, .reason = "a message was damaged"});
  Back(1);
  EXPECT_EQ(outbox_.decodes.size(), 9u);
}

TEST_F(ReturnsTest, WithoutATokenInBetweenItReturnsThreeTimes) {
  LoseSession();
  for (int i = 0; i < 3; ++i) {
    Back(worker_);
    ASSERT_EQ(outbox_.decodes.size(), 2u + i);
    if (i == 1) Ready(decode_call(), 3);  // It is there, and says no more.
    EndSession(worker_, {decode_call()});
  }
  Back(worker_);
  Judged();
  EXPECT_EQ(node_->counters().moves, 1);
  EXPECT_NE(last_decode().prefill, 0u);
}

TEST_F(ReturnsTest, ATokenIsProgress) {
  LoseSession();
  for (int i = 0; i < 4; ++i) {
    Back(worker_);
    const auto attempt = static_cast<Attempt>(2 + i);
    Tokens(decode_call(), 4 + i, 51 + i, FinishReason::kNone, attempt);
    EndSession(worker_, {decode_call()});
  }
  Back(worker_);
  EXPECT_EQ(last_decode().prefill, 0u);
  EXPECT_EQ(node_->counters().returns, 4);
  EXPECT_EQ(node_->counters().moves, 0);
}

TEST_F(ReturnsTest, WhatIsReservedIsNoAnswerYet) {
  Submit(1, Request(3, 9));
  worker_ = outbox_.decodes.back().worker;
  EndSession(worker_, {decode_call()});
  Back(worker_);
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  Judged();
  EXPECT_EQ(node_->counters().moves, 1);
  EXPECT_NE(last_decode().prefill, 0u);
}

TEST_F(ReturnsTest, WhatWasVerifiedBeforeItsFirstTokenReturnsToo) {
  ToPrefilling(1, Request(3, 9));
  Prefilled(prefill_call(), 3, 50);
  Closed(prefill_call());
  worker_ = outbox_.decodes.back().worker;
  EndSession(worker_, {decode_call()});
  Back(worker_);
  ExpectReturned();
  EXPECT_EQ(last_decode().tokens, (std::vector<int32_t>{7, 7, 7, 50}));
  Ready(decode_call(), 2);
  Tokens(decode_call(), 4, 51, FinishReason::kStop, 2);
  EXPECT_THAT(Seen(1), ElementsAre(50, 51));
  EXPECT_EQ(outbox_.prefills.size(), 1u);
  EXPECT_EQ(node_->counters().moves + node_->counters().retries, 0);
}

TEST_F(ReturnsTest, WhatIsHandedOverIsNoAnswerYet) {
  ToPrefilling(1);
  worker_ = outbox_.decodes.back().worker;
  EndSession(worker_, {decode_call()});
  Back(worker_);
  Judged();
  EXPECT_EQ(node_->counters().moves, 1);
  EXPECT_NE(last_decode().prefill, 0u);
}

TEST_F(ReturnsTest, AWorkerThatWasFencedIsNoSessionThatEnded) {
  Create({.hang_limit = milliseconds(2400)}, true,
         {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
  Decode(1);
  worker_ = outbox_.decodes.back().worker;
  for (int i = 0; i < 6; ++i) {
    Sleep(milliseconds(500));
    for (int32_t w = 0; w < 4; ++w) {
      if (w != worker_) Heard(w);
    }
  }
  EXPECT_EQ(node_->counters().hung_workers, 1);
  ExpectMoved();
}

TEST_F(ReturnsTest, FurtherChoicesReturnEachByItself) {
  ValidRequest request = Request(3, 9);
  request.num_choices = 2;
  Decode(1, request);
  worker_ = outbox_.decodes[0].worker;
  Ready(outbox_.decodes[1].call, 1);
  Tokens(outbox_.decodes[1].call, 3, 60);
  EndSession(worker_, {outbox_.decodes[1].call, outbox_.decodes[0].call});
  Back(worker_);
  ASSERT_EQ(outbox_.decodes.size(), 4u);
  EXPECT_EQ(outbox_.decode_requests[2].tokens.back(), 50);
  EXPECT_EQ(outbox_.decode_requests[3].tokens.back(), 60);
  Tokens(outbox_.decodes[2].call, 4, 51, FinishReason::kStop, 2);
  Tokens(outbox_.decodes[3].call, 4, 61, FinishReason::kStop, 2);
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_EQ(outbox_.prefills.size(), 1u);
}

TEST_F(ReturnsTest, WhoCancelsWhileItWaitsIsDone) {
  LoseSession();
  Handle(ClientCancel{1});
  EXPECT_EQ(Ended(1), Code::kCancelled);
  Back(worker_);
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_TRUE(node_->idle());
}

TEST_F(ReturnsTest, ARouterThatStoodStillBeginsTheWaitAnew) {
  Create({.hang_limit = milliseconds(2400)}, true,
         {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
  LoseSession();
  now_ += seconds(5);  // And wakes late.
  node_->Step(now_);
  Back(worker_);
  ExpectReturned();
}

TEST_F(ReturnsTest, ARouterThatIsAlwaysLateWaitsNoLongerForThat) {
  Create({.hang_limit = milliseconds(2400)}, true,
         {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
  LoseSession();
  for (int i = 0; i < 4 && outbox_.decodes.size() == 1; ++i) {
    now_ = node_->NextDeadline() + milliseconds(900);
    node_->Step(now_);
  }
  ExpectMoved();
}

TEST_F(ReturnsTest, AReturnProvesNoPrefill) {
  LoseSession();
  Back(worker_);
  Ready(decode_call(), 2);
  Wait(milliseconds(5));
  Tokens(decode_call(), 4, 51, FinishReason::kNone, 2);
  Tokens(decode_call(), 5, 52, FinishReason::kNone, 2);
  const WorkerView view = node_->View().workers[worker_];
  EXPECT_EQ(view.last_token, now_);
  EXPECT_EQ(view.last_prompt, Time{});
}

}  // namespace
}  // namespace baton
