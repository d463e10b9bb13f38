// Bounds of recovery, races between its messages, workers that hang.
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

class RecoveryLimitsTest : public RecoveryHarness {};

// ---- Bounds ------------------------------------------------------------------------------------

TEST_F(RecoveryLimitsTest, AfterEightMovesTheRequestFails) {
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

TEST_F(RecoveryLimitsTest, CallsThatAreLostWithTheirConnectionAreMovesAlsoWhenItIsBackAtOnce) {
  constexpr int kRequests = 20;  // More than the burst of retries.
  for (int i = 1; i <= kRequests; ++i) Submit(i, Request());
  const auto decodes = outbox_.decodes;  // Those that follow are the recovery.
  for (int32_t worker : {1, 2}) {
    for (const auto& open : decodes) {
      if (open.worker == worker) Closed(open.call, Gone());
    }
    Handle(WorkerDown{.worker = worker, .reason = "connection lost"});
    now_ += std::chrono::milliseconds(1);
    Up(worker, incarnation(worker));
  }
  Judged();
  for (int i = 1; i <= kRequests; ++i) EXPECT_EQ(Ended(i), std::nullopt) << i;
  EXPECT_GE(node_->counters().moves, kRequests);
  EXPECT_EQ(node_->counters().retries, 0);
}

TEST_F(RecoveryLimitsTest, FailuresOfHealthyWorkersAreRetriedTwice) {
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

TEST_F(RecoveryLimitsTest, CallsThatEndWellButTooEarlyAreFailuresOfHealthyWorkers) {
  ToDecoding(1);
  Closed(prefill_call());
  Closed(decode_call());
  Judged();
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  Reserved(decode_call(), 2);
  Closed(prefill_call());
  Judged();
  ASSERT_EQ(outbox_.rebinds.size(), 1u);
  EXPECT_EQ(node_->counters().retries, 2);
  Reserved(decode_call(), 3);
  Closed(prefill_call());
  Judged();
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(RecoveryLimitsTest, AnAttemptThatAWorkerHasTwiceGetsAnotherNumber) {
  Submit(1, Request());
  Closed(decode_call(), absl::AlreadyExistsError("this attempt is being decoded"));
  Wait(milliseconds(20));
  EXPECT_EQ(last_decode().attempt, 2u);
}

TEST_F(RecoveryLimitsTest, RetriesHaveABudgetOverAllRequestsButMovesDoNot) {
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

TEST_F(RecoveryLimitsTest, OnlySoManySequencesArePrefilledAgainAtOnce) {
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

TEST_F(RecoveryLimitsTest, ARunningAnswerWaitsLongerForAWorkerThanANewRequest) {
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

TEST_F(RecoveryLimitsTest, TheWaitForAPairIsEachSequencesOwn) {
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

TEST_F(RecoveryLimitsTest, RequestsThatNeedNoDecodeWorkerDoNotProlongTheWaitOfOneThatDoes) {
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

TEST_F(RecoveryLimitsTest, ASendThatCameTooLateIsFoundOut) {
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

TEST_F(RecoveryLimitsTest, AnAnswerGoesOnOnlyWhereTheBitsAreTheSame) {
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

TEST_F(RecoveryLimitsTest, AStoppedChoiceThatOwesItsScoreKeepsItsPrefillCallAndNothingElse) {
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
  EXPECT_THAT(outbox_.cancelled, Not(Contains(held)));
  Scores(held, 1, 3);
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_TRUE(node_->idle());
}

TEST_F(RecoveryLimitsTest, AStoppedChoiceThatOwesItsScoreDoesNotWaitForADecodeWorker) {
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

TEST_F(RecoveryLimitsTest, ALossIsNotCalledARetryBeforeTheWorkerWasHeardOfAgain) {
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

TEST_F(RecoveryLimitsTest, HeldKvDoesNotWaitBehindALargePromptAtTheFront) {
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

TEST_F(RecoveryLimitsTest, KvThatIsKeptIsLetGoWhenTheDecodeWorkerHadItAfterAll) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  HandoffFailed(prefill_call(), 1);  // The verdict got lost.
  Handle(WorkerEventReceived{decode_call(), TokensEvent{.attempt = 2, .outputs = {}}});
  EXPECT_THAT(outbox_.cancelled, ElementsAre(prefill_call()));
}

TEST_F(RecoveryLimitsTest, ARouterThatStoodStillDoesNotBlameItsWorkers) {
  Create({.hang_limit = milliseconds(2000)});
  ToDecoding(1);
  for (int32_t worker : {0, 1, 2}) Heard(worker);
  Wait(seconds(4));  // Nobody woke it for 4 s.
  EXPECT_EQ(node_->counters().hung_workers, 0);
  EXPECT_THAT(outbox_.cancelled, IsEmpty());
}

// ---- Hanging workers ---------------------------------------------------------------------------

TEST_F(RecoveryLimitsTest, AHungWorkersSequencesMoveAndItsLateTokensAreDropped) {
  Create({.hang_limit = milliseconds(2000)});
  ToDecoding(1);
  Closed(prefill_call());
  const CallId stopped = decode_call();
  const int32_t hung = outbox_.decodes.back().worker;
  Wait(milliseconds(1500));
  for (int32_t worker : {0, 1, 2}) {
    if (worker != hung) Heard(worker);
  }
  Sleep(milliseconds(499));
  EXPECT_EQ(node_->counters().hung_workers, 0);
  Sleep(milliseconds(1));
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

TEST_F(RecoveryLimitsTest, AWorkerThatHangsWhileItDrainsIsSaidToHang) {
  Create({.hang_limit = milliseconds(2000)});
  Handle(WorkerStatusChanged{1, {.incarnation = incarnation(1), .draining = true}});
  EXPECT_EQ(node_->View().workers[1].reason, "draining");
  Sleep(milliseconds(2000));
  EXPECT_EQ(node_->View().workers[1].reason, "it stopped making progress");
}

// ---- Who owes the next event -------------------------------------------------------------------

// A step of the worker ends each 10 s, for 40 s, which is longer than a silence may be.
class OwingSideTest : public RecoveryHarness {
 protected:
  void Move(int32_t worker) {
    for (int i = 0; i < 4; ++i) {
      Wait(seconds(10));
      Handle(
          WorkerStatusChanged{worker, {.incarnation = incarnation(worker), .progress = ++count_}});
    }
  }
  int32_t prefill_worker() const { return outbox_.prefills.back().worker; }
  int32_t decode_worker() const { return outbox_.decodes.back().worker; }
  uint64_t count_ = 0;
};

TEST_F(OwingSideTest, WhileItPrefillsThePrefillWorker) {
  ToPrefilling(1);
  Move(prefill_worker());
  EXPECT_EQ(Ended(1), std::nullopt);
  Move(decode_worker());
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(OwingSideTest, AlsoWhileItSends) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  Move(prefill_worker());
  EXPECT_EQ(Ended(1), std::nullopt);
  Move(decode_worker());
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(OwingSideTest, WhileItDecodesTheDecodeWorker) {
  ToDecoding(1);  // The Prefill call is open still.
  Move(decode_worker());
  EXPECT_EQ(Ended(1), std::nullopt);
  Move(prefill_worker());
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(OwingSideTest, WithoutADecodeWorkerThePrefillWorker) {
  ValidRequest request = Request(3, 1);
  Submit(1, request);
  Move(prefill_worker());
  EXPECT_EQ(Ended(1), std::nullopt);
  Move(1);
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(OwingSideTest, AScoreThatIsStillOwedIsThePrefillWorkers) {
  ValidRequest request = Request();
  request.sampling.num_prompt_logprobs = 0;
  ToPrefilling(1, request);
  Handle(ClientStop{.request = 1, .choice = 0});
  Move(prefill_worker());
  EXPECT_EQ(Ended(1), std::nullopt);
  Move(1);
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

// ---- Looking in --------------------------------------------------------------------------------

TEST_F(RecoveryLimitsTest, AnAuditNamesEachSequenceAndTheProcessesItsCallsAreOn) {
  ValidRequest request = Request();
  request.label = "cmpl-7";
  ToPrefilling(1, request);
  RouterAudit audit;
  Handle(RouterAuditAsked{[&](RouterAudit told) { audit = std::move(told); }});
  EXPECT_EQ(audit.incarnation, 1u);
  ASSERT_EQ(audit.sequences.size(), 1u);
  EXPECT_EQ(audit.sequences[0].sequence, (SequenceId{1, 1}));
  EXPECT_EQ(audit.sequences[0].label, "cmpl-7");
  EXPECT_EQ(audit.sequences[0].state, "PREFILLING");
  EXPECT_EQ(audit.sequences[0].prefill, last_prefill().worker);
  EXPECT_EQ(audit.sequences[0].decode, last_decode().worker);
  EXPECT_TRUE(audit.blamed.empty());

  const int32_t prefill = outbox_.prefills.back().worker;
  const int32_t decode = outbox_.decodes.back().worker;
  HandoffFailed(prefill_call(), 1);
  Kill(decode, {decode_call()});
  Judged();
  Handle(RouterAuditAsked{[&](RouterAudit told) { audit = std::move(told); }});
  EXPECT_EQ(audit.sequences[0].moves, 1);
  EXPECT_EQ(audit.sequences[0].retries, 0);
  EXPECT_EQ(audit.sequences[0].handoff_failures, 1);
  EXPECT_THAT(audit.sequences[0].lost, ElementsAre(incarnation(decode)));
  ASSERT_EQ(audit.blamed.size(), 1u);
  EXPECT_EQ(audit.blamed[0].prefill, prefill);
  EXPECT_EQ(audit.blamed[0].decode, decode);
  EXPECT_EQ(audit.blamed[0].left, seconds(10) - milliseconds(20));
  Wait(seconds(10));
  Handle(RouterAuditAsked{[&](RouterAudit told) { audit = std::move(told); }});
  EXPECT_TRUE(audit.blamed.empty());
}

}  // namespace
}  // namespace baton
