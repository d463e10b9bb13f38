#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/router_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using Code = absl::StatusCode;

// Workers 0 and 3 prefill, 1 and 2 decode. What a worker of the first pair loses, the other has.
class RecoveryTest : public RouterHarness {
 protected:
  void SetUp() override {
    Create({}, true, {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
  }

  static absl::Status Gone() { return absl::UnavailableError("connection lost"); }
  // kill -9 as the router sees it: the calls break and the link says so.
  void Kill(int32_t worker, std::vector<CallId> calls) {
    for (CallId call : calls) Closed(call, Gone());
    Handle(WorkerDown{.worker = worker, .reason = "connection lost"});
  }
  void Judged() { Wait(milliseconds(20)); }
  void Heard(int32_t worker) {
    Handle(WorkerStatusChanged{worker, {.incarnation = incarnation(worker)}});
  }
  void HandoffFailed(CallId call, Attempt attempt) {
    Handle(WorkerEventReceived{call, HandoffFailedEvent{.attempt = attempt, .reason = "cut"}});
  }
  const DecodeRequest& last_decode() const { return outbox_.decode_requests.back(); }
  const PrefillRequest& last_prefill() const { return outbox_.prefill_requests.back(); }
  Incarnation incarnation(int32_t worker) const { return kFirstIncarnation + worker; }
};

// ---- A decode worker is lost -------------------------------------------------------------------

TEST_F(RecoveryTest, ARunningAnswerGoesOnAtTheNextPositionOnAnotherDecodeWorker) {
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

TEST_F(RecoveryTest, WithOneTokenLeftTheRecoveryNeedsNoDecodeWorker) {
  ToDecoding(1, Request(3, 2));
  Closed(prefill_call());
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Judged();
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_FALSE(last_prefill().handoff.has_value());
  EXPECT_EQ(last_prefill().tokens.size(), 4u);
}

TEST_F(RecoveryTest, KvThatAPrefillWorkerHoldsIsSentToTheNextDecodeWorkerWithoutPrefill) {
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

TEST_F(RecoveryTest, KvIsNotHeldForEver) {
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

TEST_F(RecoveryTest, APrefillWorkerThatEndsWhileItsKvIsHeldIsAskedAgainOnTheSameReservation) {
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

TEST_F(RecoveryTest, ARefusalWhileKvIsHeldKeepsIt) {
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

TEST_F(RecoveryTest, ADecodeWorkerThatDoesNotAnswerIsLeft) {
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

TEST_F(RecoveryTest, AReservationIsReboundToAnotherPrefillWorker) {
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

TEST_F(RecoveryTest, ADecodeWorkerThatHadTheKvGoesOnWithoutAnotherPrefill) {
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

TEST_F(RecoveryTest, ALostPrefillWorkerDoesNotTouchWhatIsDecoded) {
  ToDecoding(1);
  Kill(0, {prefill_call()});
  Judged();
  EXPECT_THAT(outbox_.rebinds, IsEmpty());
  EXPECT_EQ(node_->counters().moves, 0);
  Tokens(decode_call(), 4, 51, FinishReason::kStop);
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(RecoveryTest, AScoreThatIsLostWithItsPrefillWorkerIsComputedAgain) {
  ValidRequest request = Request();
  request.sampling.num_prompt_logprobs = 0;
  ToPrefilling(1, request);
  Tokens(decode_call(), 3, 50);
  Kill(outbox_.prefills.back().worker, {prefill_call()});
  Judged();
  EXPECT_EQ(last_decode().tokens.size(), 4u);
  Reserved(decode_call(), 2);
  EXPECT_EQ(last_prefill().sampling.num_prompt_logprobs, 0);
  Prefilled(prefill_call(), 4, 51, 2);
  EXPECT_EQ(outbox_.clients[1].scored.size(), 1u);
}

TEST_F(RecoveryTest, AReservationForAPrefillWorkerThatRestartedIsRebound) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  Submit(1, Request());
  Up(0, 500);
  Reserved(decode_call());
  EXPECT_THAT(outbox_.prefills, IsEmpty());
  Judged();
  ASSERT_EQ(outbox_.rebinds.size(), 1u);
  EXPECT_EQ(outbox_.rebinds[0].second.prefill, 500u);
}

TEST_F(RecoveryTest, APromptWithoutDecodeWorkerIsPrefilledAgain) {
  Submit(1, Request(3, 1));
  const int32_t lost = outbox_.prefills.back().worker;
  Kill(lost, {prefill_call()});
  Judged();
  ASSERT_EQ(outbox_.prefills.size(), 2u);
  EXPECT_NE(outbox_.prefills.back().worker, lost);
}

// ---- The link between two workers --------------------------------------------------------------

TEST_F(RecoveryTest, AFailedHandoffIsTriedOnTheSamePairOnceMore) {
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

TEST_F(RecoveryTest, ASecondFailureSendsTheKvToAnotherDecodeWorker) {
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

TEST_F(RecoveryTest, WithoutAnotherDecodeWorkerASecondFailureTakesAnotherPrefillWorker) {
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

TEST_F(RecoveryTest, InTheEndTheDecodeWorkerComputesThePromptItself) {
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

TEST_F(RecoveryTest, APrefillWorkerThatOwesAScoreIsKeptUntilItHasGivenIt) {
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
  Prefilled(prefill, 3, 50);
  EXPECT_EQ(outbox_.clients[1].scored.size(), 1u);
  EXPECT_THAT(outbox_.cancelled, ElementsAre(prefill));
}

TEST_F(RecoveryTest, ABlamedPairIsAvoidedForAWhileButNotItsWorkers) {
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

// ---- Bounds ------------------------------------------------------------------------------------

TEST_F(RecoveryTest, AfterEightMovesTheRequestFails) {
  Submit(1, Request(3, 50));
  Incarnation next = 1000;
  for (int moves = 1; moves <= 9; ++moves) {
    ASSERT_EQ(Ended(1), std::nullopt) << moves;
    const int32_t worker = outbox_.decodes.back().worker;
    Kill(worker, {decode_call()});
    Up(worker, next++);
    Judged();
  }
  EXPECT_EQ(Ended(1), Code::kUnavailable);
  EXPECT_EQ(node_->counters().moves, 8);
}

TEST_F(RecoveryTest, FailuresOfHealthyWorkersAreRetriedTwice) {
  Submit(1, Request());
  for (int i = 0; i < 2; ++i) {
    Closed(decode_call(), absl::InternalError("the step failed"));
    Judged();
    ASSERT_EQ(Ended(1), std::nullopt);
  }
  Closed(decode_call(), absl::InternalError("the step failed"));
  Judged();
  EXPECT_EQ(Ended(1), Code::kInternal);
  EXPECT_EQ(node_->counters().retries, 2);
}

TEST_F(RecoveryTest, RetriesHaveABudgetOverAllRequestsButMovesDoNot) {
  for (uint64_t key = 1; key <= 20; ++key) {
    Submit(key, Request());
    Closed(decode_call(), absl::InternalError("the step failed"));
    Judged();
    Handle(ClientCancel{key});
  }
  EXPECT_EQ(node_->counters().retries, 11);  // A burst of ten, and one in ten requests.
  Submit(30, Request());
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Judged();
  EXPECT_EQ(Ended(30), std::nullopt);
}

TEST_F(RecoveryTest, OnlySoManySequencesArePrefilledAgainAtOnce) {
  Create({.max_pending_prefill_tokens = 1 << 20, .max_recovering = 2}, true,
         {Role::kPrefill, Role::kDecode, Role::kDecode});
  std::map<int32_t, std::vector<CallId>> calls;
  for (uint64_t key = 1; key <= 8; ++key) {
    ToDecoding(key);
    Closed(prefill_call());
    calls[outbox_.decodes.back().worker].push_back(decode_call());
  }
  ASSERT_EQ(calls[1].size(), 4u);
  const size_t before = outbox_.decodes.size();
  Kill(1, calls[1]);
  Judged();
  EXPECT_EQ(outbox_.decodes.size() - before, 2u);
  Reserved(decode_call(), 2);
  Tokens(decode_call(), 4, 51, FinishReason::kNone, 2);  // Decodes: the next one's turn.
  EXPECT_EQ(outbox_.decodes.size() - before, 3u);
}

TEST_F(RecoveryTest, ARunningAnswerWaitsLongerForAWorkerThanANewRequest) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  ToDecoding(1);
  Closed(prefill_call());
  Kill(1, {decode_call()});
  Wait(milliseconds(20));
  Submit(2, Request());
  Wait(seconds(2));
  EXPECT_EQ(Ended(2), Code::kUnavailable);
  EXPECT_EQ(Ended(1), std::nullopt);
  Wait(seconds(8) + milliseconds(20));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(RecoveryTest, TheWaitForAPairIsEachSequencesOwn) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  Handle(WorkerDown{.worker = 0, .reason = "gone"});
  Submit(1, Request());
  Wait(seconds(2));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
  Up(0, 500);
  ToDecoding(2);
  Closed(prefill_call());
  Kill(1, {decode_call()});
  Wait(seconds(9));  // The first one's wait is of the past.
  EXPECT_EQ(Ended(2), std::nullopt);
}

TEST_F(RecoveryTest, RequestsThatNeedNoDecodeWorkerDoNotProlongTheWaitOfOneThatDoes) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  Handle(WorkerDown{.worker = 1, .reason = "gone"});
  Submit(1, Request());
  for (uint64_t key = 10; key < 14; ++key) {
    Wait(milliseconds(500));
    Submit(key, Request(3, 1));
  }
  EXPECT_EQ(Ended(1), Code::kUnavailable);
  EXPECT_EQ(outbox_.prefills.size(), 4u);
}

// ---- Races -------------------------------------------------------------------------------------

TEST_F(RecoveryTest, ASendThatCameTooLateIsFoundOut) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  const CallId held = prefill_call();
  Closed(decode_call(), Gone());  // The call only: the old decode worker lives, and verifies.
  Wait(milliseconds(1));
  Heard(outbox_.decodes.back().worker);
  Judged();
  Reserved(decode_call(), 2);
  ASSERT_EQ(outbox_.sends.size(), 1u);
  Closed(held);  // On its way before the Send: nobody will write to the new ticket.
  Wait(seconds(2));
  ASSERT_EQ(outbox_.rebinds.size(), 1u);
  EXPECT_EQ(outbox_.rebinds[0].first, decode_call());
  Reserved(decode_call(), 3);
  EXPECT_EQ(outbox_.prefills.size(), 2u);
}

TEST_F(RecoveryTest, AnAnswerGoesOnOnlyWhereTheBitsAreTheSame) {
  Create({}, false, {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
  const auto up = [&](int32_t worker, const char* numerics) {
    Handle(WorkerUp{worker,
                    {.role = roles_[worker],
                     .incarnation = incarnation(worker),
                     .numerics_id = numerics,
                     .block_size = 16,
                     .num_blocks = 100,
                     .max_model_len = 200}});
  };
  up(0, "old");
  up(1, "old");
  ToDecoding(1);
  up(2, "new");
  up(3, "new");
  Closed(prefill_call());
  Kill(1, {decode_call()});
  Judged();
  EXPECT_EQ(outbox_.decodes.size(), 1u);  // The new pair would answer with other bits.
  Submit(2, Request());
  EXPECT_EQ(outbox_.decodes.size(), 2u);
  Wait(seconds(10));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(RecoveryTest, AStoppedChoiceThatOwesItsScoreKeepsItsPrefillCallAndNothingElse) {
  ValidRequest request = Request();
  request.sampling.num_prompt_logprobs = 0;
  ToPrefilling(1, request);
  const CallId held = prefill_call();
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Handle(ClientStop{.request = 1, .choice = 0});  // While it is queued and holds the call.
  Judged();
  Wait(seconds(3));
  EXPECT_EQ(outbox_.prefills.size(), 1u);
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_EQ(node_->num_open_calls(), 1u);
  Prefilled(held, 3, 50);
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_EQ(node_->num_open_calls(), 0u);
}

TEST_F(RecoveryTest, AStoppedChoiceThatOwesItsScoreDoesNotWaitForADecodeWorker) {
  ValidRequest request = Request();
  request.sampling.num_prompt_logprobs = 0;
  Submit(1, request);
  const CallId reserving = decode_call();
  Handle(ClientStop{.request = 1, .choice = 0});
  EXPECT_THAT(outbox_.cancelled, Contains(reserving));
  ASSERT_EQ(outbox_.prefills.size(), 1u);
  EXPECT_FALSE(last_prefill().handoff.has_value());
  Wait(seconds(5));
  EXPECT_EQ(outbox_.prefills.size(), 1u);
}

TEST_F(RecoveryTest, ALossIsNotCalledARetryBeforeTheWorkerWasHeardOfAgain) {
  for (uint64_t key = 1; key <= 30; ++key) ToDecoding(key);
  const int32_t worker = outbox_.decodes[0].worker;
  for (const auto& decode : outbox_.decodes) {
    if (decode.worker == worker) Closed(decode.call, Gone());
  }
  Wait(milliseconds(100));  // The news that the worker is gone takes its time.
  EXPECT_EQ(node_->counters().retries, 0);
  Handle(WorkerDown{.worker = worker, .reason = "connection lost"});
  Judged();
  EXPECT_GT(node_->counters().moves, 0);
  EXPECT_EQ(node_->counters().failed, 0);
}

TEST_F(RecoveryTest, HeldKvDoesNotWaitBehindALargePromptAtTheFront) {
  Create({.max_pending_prefill_tokens = 10}, true, {Role::kPrefill, Role::kDecode, Role::kDecode});
  ToPrefilling(1, Request(3, 4));
  ValidRequest large = Request(50, 4);
  large.priority = -1;
  Submit(2, large);  // The first in the queue, and too much for the prefill worker now.
  const CallId held = prefill_call();
  Kill(outbox_.decodes[0].worker, {outbox_.decodes[0].call});
  Judged();
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  Reserved(decode_call(), 2);
  ASSERT_EQ(outbox_.sends.size(), 1u);
  EXPECT_EQ(outbox_.sends[0].first, held);
}

TEST_F(RecoveryTest, KvThatIsKeptIsLetGoWhenTheDecodeWorkerHadItAfterAll) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  HandoffFailed(prefill_call(), 1);  // The verdict got lost.
  Handle(WorkerEventReceived{decode_call(), TokensEvent{.attempt = 2, .outputs = {}}});
  EXPECT_THAT(outbox_.cancelled, ElementsAre(prefill_call()));
}

TEST_F(RecoveryTest, ARouterThatStoodStillDoesNotBlameItsWorkers) {
  Create({.hang_limit = milliseconds(2000)});
  ToDecoding(1);
  for (int32_t worker : {0, 1, 2}) Heard(worker);
  Wait(seconds(4));  // Nobody woke it for 4 s.
  EXPECT_EQ(node_->counters().hung_workers, 0);
  EXPECT_THAT(outbox_.cancelled, IsEmpty());
}

// ---- Hanging workers ---------------------------------------------------------------------------

TEST_F(RecoveryTest, AHungWorkersSequencesMoveAndItsLateTokensAreDropped) {
  Create({.hang_limit = milliseconds(2000)});
  ToDecoding(1);
  Closed(prefill_call());
  const CallId stopped = decode_call();
  const int32_t hung = outbox_.decodes.back().worker;
  Wait(milliseconds(1500));
  for (int32_t worker : {0, 1, 2}) {
    if (worker != hung) Heard(worker);
  }
  EXPECT_EQ(node_->NextDeadline(), now_ + milliseconds(500));
  Wait(milliseconds(500));
  EXPECT_THAT(outbox_.cancelled, Contains(stopped));
  EXPECT_EQ(node_->counters().hung_workers, 1);
  EXPECT_FALSE(node_->View().workers[hung].healthy);
  Judged();
  EXPECT_NE(outbox_.decodes.back().worker, hung);
  EXPECT_EQ(node_->counters().moves, 1);
  Tokens(stopped, 4, 51);
  EXPECT_THAT(Seen(1), ElementsAre(50));
  Heard(hung);
  EXPECT_TRUE(node_->View().workers[hung].healthy);
}

// ---- Looking in --------------------------------------------------------------------------------

TEST_F(RecoveryTest, AnAuditNamesEachSequenceAndTheProcessesItsCallsAreOn) {
  ToPrefilling(1);
  RouterAudit audit;
  Handle(RouterAuditAsked{[&](RouterAudit told) { audit = std::move(told); }});
  EXPECT_EQ(audit.incarnation, 1u);
  ASSERT_EQ(audit.sequences.size(), 1u);
  EXPECT_EQ(audit.sequences[0].sequence, (SequenceId{1, 1}));
  EXPECT_EQ(audit.sequences[0].state, "PREFILLING");
  EXPECT_EQ(audit.sequences[0].prefill, last_prefill().worker);
  EXPECT_EQ(audit.sequences[0].decode, last_decode().worker);
}

}  // namespace
}  // namespace baton
