// Every timer of a sequence: what starts it, what restarts it and what does not, what clears it,
// and that the node asks to be woken for it and for nothing else.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/recovery_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using Code = absl::StatusCode;

class RecoveryTimersTest : public RecoveryHarness {
 protected:
  static absl::Status Full() { return absl::ResourceExhaustedError("no blocks are free"); }
  static ValidRequest Scored() {
    ValidRequest request = Request();
    request.sampling.num_prompt_logprobs = 0;
    return request;
  }
};

// ---- The wait for silence ----------------------------------------------------------------------

TEST_F(RecoveryTimersTest, EachStateIsWokenForItsOwnLimit) {
  Submit(1, Request());
  EXPECT_EQ(NextWake(), milliseconds(4500));  // Reserving: the answer.
  Wait(seconds(1));
  Reserved(decode_call());
  EXPECT_EQ(NextWake(), seconds(30));  // Prefilling: silence.
  HandoffFailed(prefill_call(), 1);
  EXPECT_EQ(NextWake(), milliseconds(4500));  // Rebinding: the answer.
  Reserved(decode_call(), 2);
  EXPECT_EQ(NextWake(), seconds(30));
  Prefilled(prefill_call(), 3, 50);
  Closed(prefill_call());
  EXPECT_EQ(NextWake(), seconds(2));  // The verdict.
  Wait(seconds(1));
  Tokens(decode_call(), 3, 50, FinishReason::kNone, 2);
  EXPECT_EQ(NextWake(), seconds(30));  // Decoding: silence.
  Closed(decode_call(), Gone());
  EXPECT_EQ(NextWake(), milliseconds(20));  // Queued: the judgement.
}

TEST_F(RecoveryTimersTest, AHeldSideIsWokenForItsLimitAndAQueuedSequenceForNone) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  ToPrefilling(1);
  Kill(1, {decode_call()});
  Sleep(milliseconds(20));
  EXPECT_EQ(NextWake(), milliseconds(1980));  // The KV on the prefill worker is given up.
  Sleep(seconds(2));
  EXPECT_EQ(node_->counters().holds_expired, 1);
  EXPECT_EQ(NextWake(), milliseconds(9980));  // No pair comes.
}

TEST_F(RecoveryTimersTest, ARequestThatNeedsNoDecodeWorkerMayNotBeSilentForEver) {
  Submit(1, Request(3, 1));
  EXPECT_EQ(NextWake(), seconds(30));
  Sleep(seconds(30));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(RecoveryTimersTest, EveryEventOfTheSequenceBreaksTheSilence) {
  ToDecoding(1, Request(3, 9));
  for (int32_t i = 0; i < 3; ++i) {
    Sleep(seconds(25));
    Tokens(decode_call(), 4 + i, 51);
  }
  Sleep(seconds(25));
  Closed(prefill_call());  // The end of a call is news too.
  Sleep(seconds(25));
  EXPECT_EQ(Ended(1), std::nullopt);
  Sleep(seconds(5));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(RecoveryTimersTest, APromptThatIsComputedAndAHandoffThatFailedAreNews) {
  for (const bool fails : {false, true}) {
    SetUp();
    outbox_.clients.clear();
    ToPrefilling(1);
    Sleep(seconds(28));
    if (fails) {
      HandoffFailed(prefill_call(), 1);
    } else {
      Prefilled(prefill_call(), 3, 50);
    }
    Sleep(seconds(3));
    EXPECT_EQ(Ended(1), std::nullopt) << fails;
  }
}

TEST_F(RecoveryTimersTest, AWorkerThatIsNotNeededAnyMoreDoesNotBreakTheSilence) {
  ToDecoding(1);
  const int32_t prefill = outbox_.prefills.back().worker;
  Closed(prefill_call());
  for (uint64_t progress = 1; progress <= 2; ++progress) {
    Sleep(seconds(14));
    Progress(prefill, progress);
  }
  Sleep(seconds(2));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(RecoveryTimersTest, WhoWaitsForItsTurnIsNotSilent) {
  Create({.max_pending_prefill_tokens = 1}, true, {Role::kPrefill, Role::kDecode});
  Submit(1, Request());
  Closed(decode_call(), Full());
  Submit(2, Request());  // Behind the first, then before it: the prefill worker is busy.
  Handle(ClientCancel{2});
  ValidRequest urgent = Request();
  urgent.priority = -1;
  Submit(3, urgent);
  Heard(1);
  ASSERT_EQ(last_decode().sequence.counter, 3u);
  Reserved(decode_call());
  for (uint64_t progress = 1; progress <= 4; ++progress) {
    Sleep(seconds(10));
    Progress(0, progress);
  }
  EXPECT_EQ(Ended(1), std::nullopt);
  EXPECT_EQ(Ended(3), std::nullopt);
}

TEST_F(RecoveryTimersTest, AnAttemptStartsTheWaitForSilenceAgain) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  ToDecoding(1);
  Closed(prefill_call());
  Kill(1, {decode_call()});
  Sleep(seconds(9));
  Up(1, 500);
  Reserved(decode_call(), 2);
  Sleep(seconds(29));
  EXPECT_EQ(Ended(1), std::nullopt);
}

// ---- The hold ----------------------------------------------------------------------------------

TEST_F(RecoveryTimersTest, AHoldEndsByItsFirstStartHoweverManyRefuse) {
  ToPrefilling(1);
  const CallId held = prefill_call();
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Sleep(milliseconds(20));
  const Time refused_until = now_ + milliseconds(1980);
  while (now_ < refused_until - milliseconds(100)) {
    if (outbox_.decodes.size() > 1) Closed(decode_call(), Full());
    EXPECT_THAT(outbox_.cancelled, Not(Contains(held)));
    Sleep(milliseconds(60));
  }
  Closed(decode_call(), Full());
  Sleep(milliseconds(110));
  Closed(decode_call(), Full());
  EXPECT_THAT(outbox_.cancelled, Contains(held));
  EXPECT_EQ(node_->counters().holds_expired, 1);
}

TEST_F(RecoveryTimersTest, AReservationEndsTheHoldAndTheNextLossStartsAnother) {
  ToPrefilling(1);
  const CallId held = prefill_call();
  const int32_t first = outbox_.decodes.back().worker;
  Kill(first, {decode_call()});
  Sleep(milliseconds(20));
  Reserved(decode_call(), 2);
  ASSERT_EQ(outbox_.sends.size(), 1u);
  Sleep(seconds(3));
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Sleep(milliseconds(1900));
  EXPECT_THAT(outbox_.cancelled, Not(Contains(held)));
  Up(first, 500);
  Reserved(decode_call(), 3);
  EXPECT_EQ(outbox_.sends.size(), 2u);
  EXPECT_EQ(node_->counters().holds_expired, 0);
}

TEST_F(RecoveryTimersTest, ASecondHoldOfTheOtherSideHasItsOwnTime) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  ToPrefilling(1);
  Kill(1, {decode_call()});
  Sleep(seconds(2));  // The prefill worker's side is given up.
  Up(1, 500);
  Reserved(decode_call(), 2);
  const CallId held = decode_call();
  Sleep(seconds(1));
  Kill(0, {prefill_call()});
  Sleep(milliseconds(1999));
  EXPECT_THAT(outbox_.cancelled, Not(Contains(held)));
  Sleep(milliseconds(1));
  EXPECT_THAT(outbox_.cancelled, Contains(held));
  EXPECT_EQ(node_->counters().holds_expired, 2);
}

TEST_F(RecoveryTimersTest, TokensEndTheHold) {
  ToPrefilling(1, Request(3, 9));
  const CallId held = prefill_call();
  const int32_t first = outbox_.decodes.back().worker;
  Kill(first, {decode_call()});
  Sleep(milliseconds(20));
  Tokens(decode_call(), 3, 50, FinishReason::kNone, 2);
  Sleep(seconds(3));
  EXPECT_EQ(node_->counters().holds_expired, 0);
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Sleep(milliseconds(1900));
  EXPECT_THAT(outbox_.cancelled, Not(Contains(held)));
}

TEST_F(RecoveryTimersTest, WhatIsHeldNoMoreDoesNotExpire) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  Kill(1, {decode_call()});
  Sleep(milliseconds(5));
  Closed(prefill_call());  // The lost worker had verified it: the prefill worker let go.
  Sleep(seconds(3));
  EXPECT_EQ(node_->counters().holds_expired, 0);
  Up(1, 500);
  Reserved(decode_call(), 2);
  EXPECT_EQ(outbox_.prefills.size(), 2u);
}

// ---- Answers and verdicts ----------------------------------------------------------------------

TEST_F(RecoveryTimersTest, AnAnswerClearsItsLimit) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  HandoffFailed(prefill_call(), 1);
  Reserved(decode_call(), 2);  // Sent once more.
  Sleep(seconds(20));
  EXPECT_EQ(node_->counters().handoff_failures, 1);
  EXPECT_EQ(node_->counters().unanswered, 0);
  EXPECT_EQ(outbox_.rebinds.size(), 1u);
}

TEST_F(RecoveryTimersTest, ARebindThatIsNotAnsweredEndsTheCall) {
  ToPrefilling(1);
  const CallId silent = decode_call();
  HandoffFailed(prefill_call(), 1);
  Sleep(milliseconds(4499));
  EXPECT_THAT(outbox_.cancelled, Not(Contains(silent)));
  Sleep(milliseconds(1));
  EXPECT_THAT(outbox_.cancelled, Contains(silent));
  EXPECT_EQ(node_->counters().unanswered, 1);
}

TEST_F(RecoveryTimersTest, AnAnswerByTokensClearsTheLimitToo) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  HandoffFailed(prefill_call(), 1);
  Ready(decode_call(), 2);
  Sleep(seconds(10));
  EXPECT_EQ(node_->counters().unanswered, 0);
  EXPECT_EQ(outbox_.decodes.size(), 1u);
}

TEST_F(RecoveryTimersTest, ACloseByThePrefillWorkerStartsNoVerdictWhileAnAnswerIsDue) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  const CallId held = prefill_call();
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Sleep(milliseconds(20));
  Closed(held);
  Sleep(seconds(3));
  EXPECT_EQ(node_->counters().unanswered, 0);
  EXPECT_EQ(outbox_.decodes.size(), 2u);
  Sleep(milliseconds(1500));
  EXPECT_EQ(node_->counters().unanswered, 1);
}

TEST_F(RecoveryTimersTest, AnOnlyTokenThatIsNotSaidToBeTheLastIsAFailureOfItsWorker) {
  Submit(1, Request(3, 1));
  const int32_t failed = outbox_.prefills.back().worker;
  Prefilled(prefill_call(), 3, 50);  // Does not say that it was the last.
  EXPECT_EQ(Ended(1), std::nullopt);
  Sleep(milliseconds(10));
  Heard(failed);
  Sleep(milliseconds(10));
  ASSERT_EQ(outbox_.prefills.size(), 2u);
  EXPECT_NE(outbox_.prefills.back().worker, failed);
  EXPECT_EQ(node_->counters().retries, 1);
}

TEST_F(RecoveryTimersTest, AScoreThatIsOwedIsAwaitedWithoutAnyLimitButSilence) {
  ToPrefilling(1, Scored());
  HandoffFailed(decode_call(), 1);
  Sleep(seconds(1));
  Tokens(decode_call(), 3, 50, FinishReason::kStop);  // While an answer to the Rebind is due.
  EXPECT_EQ(NextWake(), seconds(30));
  Sleep(seconds(29));
  EXPECT_EQ(Ended(1), std::nullopt);
  Scores(prefill_call(), 1, 3);
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_GT(NextWake(), std::chrono::hours(1));
}

TEST_F(RecoveryTimersTest, AStopWhileAnAnswerIsDueLeavesNoLimitButSilence) {
  ToPrefilling(1, Scored());
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Sleep(milliseconds(20));
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  Handle(ClientStop{.request = 1, .choice = 0});
  EXPECT_EQ(NextWake(), seconds(30));
}

// ---- Judgement and delays ----------------------------------------------------------------------

TEST_F(RecoveryTimersTest, ALossIsJudgedAfterAMomentAndARefusalAtOnce) {
  Submit(1, Request());
  Closed(decode_call(), absl::InternalError("the step failed"));
  Sleep(milliseconds(19));
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  Sleep(milliseconds(1));
  EXPECT_EQ(outbox_.decodes.size(), 2u);
  Closed(decode_call(), Full());
  Heard(outbox_.decodes[0].worker);
  EXPECT_EQ(outbox_.decodes.size(), 3u);
}

TEST_F(RecoveryTimersTest, TheWaitForNewsOfAWorkerAsksAgainEachMoment) {
  for (absl::Status why : {Gone(), absl::CancelledError("reset"), absl::DataLossError("a gap")}) {
    SetUp();
    outbox_ = {};
    Submit(1, Request());
    const int32_t worker = outbox_.decodes.back().worker;
    Closed(decode_call(), why);
    Sleep(milliseconds(25));
    EXPECT_EQ(NextWake(), milliseconds(15)) << why;
    Sleep(milliseconds(200));
    EXPECT_EQ(node_->counters().retries + node_->counters().moves, 0) << why;
    EXPECT_EQ(outbox_.decodes.size(), 1u) << why;
    Heard(worker);
    Sleep(milliseconds(20));
    EXPECT_EQ(node_->counters().retries, 1) << why;
    EXPECT_EQ(outbox_.decodes.size(), 2u) << why;
  }
}

TEST_F(RecoveryTimersTest, AWorkerThatFailedIsLeftAloneForAMoment) {
  Submit(1, Request());
  const int32_t failed = outbox_.decodes.back().worker;
  Occupy(failed == 1 ? 2 : 1);
  Closed(outbox_.decodes.front().call, absl::InternalError("the step failed"));
  Sleep(milliseconds(20));
  Submit(2, Request());
  EXPECT_NE(outbox_.decodes.back().worker, failed);
  Sleep(milliseconds(20));
  Submit(3, Request());
  EXPECT_EQ(outbox_.decodes.back().worker, failed);
}

TEST_F(RecoveryTimersTest, TheWaitForAPairBeginsAgainWhenOneWasThere) {
  Create({.max_pending_prefill_tokens = 1}, true, {Role::kPrefill, Role::kDecode});
  ToPrefilling(1);  // The prefill worker has enough.
  Handle(WorkerDown{.worker = 1, .reason = "gone"});
  Submit(2, Request());
  Sleep(milliseconds(1500));
  Up(1, 500);
  Sleep(milliseconds(100));
  Handle(WorkerDown{.worker = 1, .reason = "gone"});
  Sleep(milliseconds(1500));
  EXPECT_EQ(Ended(2), std::nullopt);
  Sleep(milliseconds(500));
  EXPECT_EQ(Ended(2), Code::kUnavailable);
}

TEST_F(RecoveryTimersTest, ABlameEndsAndAnotherFailureRenewsIt) {
  ToPrefilling(1);
  const int32_t decode = outbox_.decodes.back().worker;
  const int32_t other = decode == 1 ? 2 : 1;
  Handle(WorkerDown{.worker = 3, .reason = "gone"});
  Occupy(other);
  const auto first = outbox_.decodes.front().call;
  const auto prefill = outbox_.prefills.front().call;
  const auto goes_to = [&](uint64_t key) {
    Submit(key, Request());
    const int32_t worker = outbox_.decodes.back().worker;
    Handle(ClientCancel{key});
    return worker;
  };
  EXPECT_EQ(goes_to(10), decode);
  HandoffFailed(prefill, 1);
  EXPECT_EQ(goes_to(11), other);
  Sleep(seconds(4));
  Reserved(first, 2);
  Sleep(seconds(4));
  HandoffFailed(prefill, 2);
  Handle(ClientCancel{1});
  Sleep(milliseconds(9999));
  EXPECT_EQ(goes_to(12), other);
  Sleep(milliseconds(1));
  EXPECT_EQ(goes_to(13), decode);
}

}  // namespace
}  // namespace baton
