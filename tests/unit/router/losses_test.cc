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

class LossesTest : public RecoveryHarness {};

// ---- A decode worker is lost -------------------------------------------------------------------

TEST_F(LossesTest, ARunningAnswerGoesOnAtTheNextPositionOnAnotherDecodeWorker) {
  ToDecoding(1, Request(3, 5));
  Closed(prefill_call());
  const int32_t lost = outbox_.decodes.back().worker;
  Tokens(decode_call(), 4, 51);
  Kill(lost, {decode_call()});
  Judged();
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_NE(outbox_.decodes.back().worker, lost);
  EXPECT_EQ(last_decode().tokens, (std::vector<int32_t>{7, 7, 7, 50, 51}));
  EXPECT_EQ(last_decode().prompt_length, 3);
  EXPECT_EQ(last_decode().attempt, 2u);
  Reserved(decode_call(), 2);
  EXPECT_EQ(last_prefill().tokens, last_decode().tokens);
  EXPECT_EQ(last_prefill().prompt_length, 3);
  Prefilled(prefill_call(), 5, 52, 2);
  Tokens(decode_call(), 5, 52, FinishReason::kNone, 2);
  Tokens(decode_call(), 6, 53, FinishReason::kNone, 2);
  Tokens(decode_call(), 7, 54, FinishReason::kLength, 2);
  EXPECT_THAT(Seen(1), ElementsAre(50, 51, 52, 53, 54));
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_EQ(node_->counters().moves, 1);
  EXPECT_EQ(node_->counters().retries, 0);
}

TEST_F(LossesTest, WithOneTokenLeftTheRecoveryNeedsNoDecodeWorker) {
  ToDecoding(1, Request(3, 2));
  Closed(prefill_call());
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Judged();
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_FALSE(last_prefill().handoff.has_value());
  EXPECT_EQ(last_prefill().tokens.size(), 4u);
}

TEST_F(LossesTest, KvThatAPrefillWorkerHoldsIsSentToTheNextDecodeWorkerWithoutPrefill) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  const CallId held = prefill_call();
  const int32_t lost = outbox_.decodes.back().worker;
  Kill(lost, {decode_call()});
  Judged();
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_NE(outbox_.decodes.back().worker, lost);
  EXPECT_EQ(last_decode().tokens.size(), 3u);  // What the prefill worker holds, not what was seen.
  EXPECT_EQ(last_decode().prefill, last_prefill().worker);
  Reserved(decode_call(), 2, 1);
  EXPECT_EQ(outbox_.prefills.size(), 1u);
  ASSERT_EQ(outbox_.sends.size(), 1u);
  EXPECT_EQ(outbox_.sends[0].first, held);
  EXPECT_EQ(outbox_.sends[0].second.attempt, 2u);
  EXPECT_EQ(outbox_.sends[0].second.handoff.ticket, (TicketId{8, decode_call()}));
  EXPECT_EQ(outbox_.sends[0].second.handoff.first_token, 1);
  Closed(held);
  Tokens(decode_call(), 3, 50, FinishReason::kNone, 2);
  Tokens(decode_call(), 4, 51, FinishReason::kStop, 2);
  EXPECT_THAT(Seen(1), ElementsAre(50, 51));
  EXPECT_EQ(node_->counters().resends, 1);
}

TEST_F(LossesTest, KvIsNotHeldForEver) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  ToPrefilling(1);
  const CallId held = prefill_call();
  Kill(1, {decode_call()});
  Wait(milliseconds(1999));
  EXPECT_THAT(outbox_.cancelled, Not(Contains(held)));
  Wait(milliseconds(1));
  EXPECT_THAT(outbox_.cancelled, Contains(held));
  EXPECT_EQ(node_->counters().holds_expired, 1);
  EXPECT_EQ(Ended(1), std::nullopt);
  Up(1, 500);  // It came back within the grace: all from the start.
  EXPECT_EQ(last_decode().worker, 500u);
  Reserved(decode_call(), 2);
  EXPECT_EQ(outbox_.prefills.size(), 2u);
}

TEST_F(LossesTest, APrefillWorkerThatEndsWhileItsKvIsHeldIsAskedAgainOnTheSameReservation) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  const CallId held = prefill_call();
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Judged();
  Closed(held);  // The lost worker had verified it: the prefill worker let go.
  Reserved(decode_call(), 2);
  EXPECT_THAT(outbox_.sends, IsEmpty());
  ASSERT_EQ(outbox_.prefills.size(), 2u);
  EXPECT_EQ(last_prefill().attempt, 2u);
}

TEST_F(LossesTest, ARefusalWhileKvIsHeldKeepsIt) {
  ToPrefilling(1);
  const CallId held = prefill_call();
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Judged();
  Closed(decode_call(), absl::ResourceExhaustedError("no blocks are free"));
  Wait(milliseconds(20));
  EXPECT_EQ(outbox_.decodes.size(), 3u);
  EXPECT_THAT(outbox_.cancelled, Not(Contains(held)));
  Wait(seconds(2));
  EXPECT_EQ(Ended(1), std::nullopt);
}

TEST_F(LossesTest, ADecodeWorkerThatDoesNotAnswerIsLeft) {
  Submit(1, Request());
  const CallId silent = decode_call();
  const int32_t worker = outbox_.decodes.back().worker;
  Wait(milliseconds(4500));
  EXPECT_THAT(outbox_.cancelled, Contains(silent));
  Judged();
  EXPECT_EQ(outbox_.decodes.size(), 1u);  // Lost, or healthy? It has to be heard of.
  Heard(worker);
  Judged();
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_NE(outbox_.decodes.back().worker, worker);
  EXPECT_EQ(node_->counters().unanswered, 1);
  EXPECT_EQ(node_->counters().retries, 1);
  Reserved(silent);
  EXPECT_THAT(outbox_.prefills, IsEmpty());
}

// ---- A prefill worker is lost ------------------------------------------------------------------

TEST_F(LossesTest, AReservationIsReboundToAnotherPrefillWorker) {
  ToPrefilling(1);
  const int32_t lost = outbox_.prefills.back().worker;
  Kill(lost, {prefill_call()});
  Judged();
  ASSERT_EQ(outbox_.rebinds.size(), 1u);
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_EQ(outbox_.rebinds[0].first, decode_call());
  EXPECT_EQ(outbox_.rebinds[0].second.attempt, 2u);
  EXPECT_EQ(outbox_.rebinds[0].second.prefill, incarnation(lost == 0 ? 3 : 0));
  Reserved(decode_call(), 1);  // Of the attempt before: stale.
  EXPECT_EQ(outbox_.prefills.size(), 1u);
  Reserved(decode_call(), 2);
  ASSERT_EQ(outbox_.prefills.size(), 2u);
  EXPECT_NE(outbox_.prefills.back().worker, lost);
  EXPECT_EQ(last_prefill().attempt, 2u);
  Prefilled(prefill_call(), 3, 50, 2);
  Tokens(decode_call(), 4, 51, FinishReason::kStop, 2);
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(LossesTest, ADecodeWorkerThatHadTheKvGoesOnWithoutAnotherPrefill) {
  ToPrefilling(1);
  Kill(outbox_.prefills.back().worker, {prefill_call()});
  Tokens(decode_call(), 3, 50);  // Before its turn came.
  Judged();
  EXPECT_THAT(outbox_.rebinds, IsEmpty());
  Tokens(decode_call(), 4, 51, FinishReason::kStop);
  EXPECT_EQ(Ended(1), Code::kOk);

  ToPrefilling(2);
  Kill(outbox_.prefills.back().worker, {prefill_call()});
  Up(0, 600);
  Up(3, 601);
  Judged();
  ASSERT_EQ(outbox_.rebinds.size(), 1u);
  Handle(WorkerEventReceived{decode_call(), TokensEvent{.attempt = 2, .outputs = {}}});
  EXPECT_EQ(outbox_.prefills.size(), 2u);
  Tokens(decode_call(), 3, 50, FinishReason::kStop, 2);
  EXPECT_EQ(Ended(2), Code::kOk);
}

TEST_F(LossesTest, ALostPrefillWorkerDoesNotTouchWhatIsDecoded) {
  ToDecoding(1);
  Kill(0, {prefill_call()});
  Judged();
  EXPECT_THAT(outbox_.rebinds, IsEmpty());
  EXPECT_EQ(node_->counters().moves, 0);
  Tokens(decode_call(), 4, 51, FinishReason::kStop);
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(LossesTest, AScoreThatIsLostWithItsPrefillWorkerIsComputedAgainAfterTheAnswer) {
  ValidRequest request = Request();
  request.sampling.num_prompt_logprobs = 0;
  ToPrefilling(1, request);
  Tokens(decode_call(), 3, 50);
  Kill(outbox_.prefills.back().worker, {prefill_call()});
  Judged();
  Tokens(decode_call(), 4, 51, FinishReason::kStop);
  EXPECT_EQ(Ended(1), std::nullopt);
  ASSERT_EQ(outbox_.prefills.size(), 2u);
  EXPECT_EQ(last_prefill().sampling.num_prompt_logprobs, 0);
  EXPECT_FALSE(last_prefill().handoff.has_value());
  Scores(prefill_call(), 1, 3, 2);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2));
  EXPECT_THAT(Seen(1), ElementsAre(50, 51));
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(LossesTest, AReservationForAPrefillWorkerThatRestartedIsRebound) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  Submit(1, Request());
  Up(0, 500);
  Reserved(decode_call());
  EXPECT_THAT(outbox_.prefills, IsEmpty());
  Judged();
  ASSERT_EQ(outbox_.rebinds.size(), 1u);
  EXPECT_EQ(outbox_.rebinds[0].second.prefill, 500u);
}

TEST_F(LossesTest, APromptWithoutDecodeWorkerIsPrefilledAgain) {
  Submit(1, Request(3, 1));
  const int32_t lost = outbox_.prefills.back().worker;
  Kill(lost, {prefill_call()});
  Judged();
  ASSERT_EQ(outbox_.prefills.size(), 2u);
  EXPECT_NE(outbox_.prefills.back().worker, lost);
}

// ---- The link between two workers --------------------------------------------------------------

TEST_F(LossesTest, AFailedHandoffIsTriedOnTheSamePairOnceMore) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  HandoffFailed(prefill_call(), 1);
  ASSERT_EQ(outbox_.rebinds.size(), 1u);
  EXPECT_EQ(outbox_.rebinds[0].second.prefill, last_prefill().worker);
  HandoffFailed(decode_call(), 1);  // The other side's word on the same attempt.
  EXPECT_EQ(outbox_.rebinds.size(), 1u);
  Reserved(decode_call(), 2);
  ASSERT_EQ(outbox_.sends.size(), 1u);
  EXPECT_EQ(outbox_.sends[0].second.attempt, 2u);
  EXPECT_EQ(node_->counters().handoff_failures, 1);
  EXPECT_EQ(node_->counters().moves + node_->counters().retries, 0);
}

TEST_F(LossesTest, ASecondFailureSendsTheKvToAnotherDecodeWorker) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  const CallId held = prefill_call();
  const int32_t first = outbox_.decodes.back().worker;
  HandoffFailed(held, 1);
  Reserved(decode_call(), 2);
  HandoffFailed(held, 2);
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_NE(outbox_.decodes.back().worker, first);
  Reserved(decode_call(), 3);
  ASSERT_EQ(outbox_.sends.size(), 2u);
  EXPECT_EQ(outbox_.sends[1].first, held);
}

TEST_F(LossesTest, WithoutAnotherDecodeWorkerASecondFailureTakesAnotherPrefillWorker) {
  Create({}, true, {Role::kPrefill, Role::kDecode, Role::kPrefill});
  ToPrefilling(1);
  const CallId first = prefill_call();
  HandoffFailed(decode_call(), 1);
  Reserved(decode_call(), 2);
  HandoffFailed(decode_call(), 2);
  EXPECT_THAT(outbox_.cancelled, ElementsAre(first));
  EXPECT_EQ(outbox_.rebinds.back().second.attempt, 3u);
  EXPECT_NE(outbox_.rebinds.back().second.prefill, last_prefill().worker);
}

TEST_F(LossesTest, InTheEndTheDecodeWorkerComputesThePromptItself) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  ToPrefilling(1);
  HandoffFailed(prefill_call(), 1);
  Reserved(decode_call(), 2);
  const CallId prefill = prefill_call();
  HandoffFailed(prefill, 2);
  EXPECT_EQ(outbox_.rebinds.back().second.prefill, 0u);
  EXPECT_EQ(outbox_.rebinds.back().second.attempt, 3u);
  EXPECT_THAT(outbox_.cancelled, ElementsAre(prefill));
  Handle(WorkerEventReceived{decode_call(), TokensEvent{.attempt = 3, .outputs = {}}});
  Tokens(decode_call(), 3, 50, FinishReason::kStop, 3);
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_EQ(node_->counters().self_prefills, 1);
}

TEST_F(LossesTest, APrefillWorkerThatOwesAScoreIsKeptUntilItHasGivenIt) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  ValidRequest request = Request();
  request.sampling.num_prompt_logprobs = 0;
  ToPrefilling(1, request);
  const CallId prefill = prefill_call();
  HandoffFailed(prefill, 1);
  Reserved(decode_call(), 2);
  HandoffFailed(prefill, 2);
  EXPECT_EQ(outbox_.rebinds.back().second.prefill, 0u);
  EXPECT_THAT(outbox_.cancelled, IsEmpty());
  Handle(WorkerEventReceived{decode_call(), TokensEvent{.attempt = 3, .outputs = {}}});
  Scores(prefill, 1, 3);
  EXPECT_THAT(outbox_.cancelled, IsEmpty());
  Prefilled(prefill, 3, 50);
  EXPECT_THAT(outbox_.cancelled, ElementsAre(prefill));
}

TEST_F(LossesTest, ABlamedPairIsAvoidedForAWhileButNotItsWorkers) {
  ToPrefilling(1);
  const int32_t prefill = outbox_.prefills.back().worker;
  const int32_t decode = outbox_.decodes.back().worker;
  HandoffFailed(prefill_call(), 1);
  for (uint64_t key = 10; key < 20; ++key) {
    Submit(key, Request());
    const bool same =
        last_decode().prefill == incarnation(prefill) && outbox_.decodes.back().worker == decode;
    EXPECT_FALSE(same);
  }
  EXPECT_TRUE(std::ranges::any_of(outbox_.decodes.begin() + 1, outbox_.decodes.end(),
                                  [&](const auto& d) { return d.worker == decode; }));
}

// The prefill worker failed once, was the only one, and now holds the KV.
TEST_F(LossesTest, AHeldSideThatOnceFailedDoesNotSpoilTheChoiceOfTheOther) {
  Create({}, true, {Role::kPrefill, Role::kDecode, Role::kDecode});
  Occupy(2);
  ToPrefilling(1);
  ASSERT_EQ(outbox_.decodes.back().worker, 1);
  Closed(prefill_call(), absl::InternalError("a bug"));
  for (int i = 0; i < 2; ++i) Judged();
  Reserved(decode_call(), 2);
  Prefilled(prefill_call(), 3, 50, 2);
  Kill(1, {decode_call()});
  Wait(milliseconds(1));
  Up(1, incarnation(1));  // Only its connection was lost.
  Judged();
  EXPECT_EQ(node_->counters().moves, 1);
  EXPECT_EQ(outbox_.decodes.back().worker, 2) << "and not the one that failed";
}

}  // namespace
}  // namespace baton
