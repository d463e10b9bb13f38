// What recovery spends: one move, retry or rung for one failure, each thing counted once and given
// back once.
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

class RecoveryCountsTest : public RecoveryHarness {
 protected:
  const RouterCounters& counters() const { return node_->counters(); }
  static absl::Status Failed() { return absl::InternalError("the step failed"); }
  static absl::Status Full() { return absl::ResourceExhaustedError("no blocks are free"); }
};

// ---- Rungs -------------------------------------------------------------------------------------

TEST_F(RecoveryCountsTest, BothSidesWordOnOneFailureIsOneRungHoweverLateItComes) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  HandoffFailed(prefill_call(), 1);
  Reserved(decode_call(), 2);  // The KV is on its way once more.
  HandoffFailed(decode_call(), 1);
  EXPECT_EQ(counters().handoff_failures, 1);
  EXPECT_EQ(counters().stale_mail, 1);
  EXPECT_EQ(counters().rebinds, 1);
  EXPECT_EQ(counters().self_prefills, 0);
  EXPECT_EQ(outbox_.rebinds.size(), 1u);
  EXPECT_EQ(outbox_.sends.size(), 1u);
  EXPECT_THAT(outbox_.cancelled, IsEmpty());
  Tokens(decode_call(), 4, 51, FinishReason::kStop, 2);
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(RecoveryCountsTest, AFailureOfThisAttemptCountsOnlyWhileATransferIsUnderWay) {
  ToDecoding(1);
  HandoffFailed(prefill_call(), 1);  // The verdict got lost, the decode worker has it.
  EXPECT_EQ(counters().handoff_failures, 0);
  EXPECT_THAT(outbox_.rebinds, IsEmpty());

  Create({}, true, {Role::kPrefill, Role::kDecode});
  ToPrefilling(2);
  Kill(1, {decode_call()});
  HandoffFailed(prefill_call(), 1);  // While its KV is held for another decode worker.
  EXPECT_EQ(counters().handoff_failures, 0);
  EXPECT_THAT(outbox_.rebinds, IsEmpty());
  Sleep(milliseconds(1990));
  EXPECT_EQ(counters().holds_expired, 0);

  Submit(3, Request(3, 1));
  HandoffFailed(prefill_call(), 1);  // There is no handoff.
  EXPECT_EQ(counters().handoff_failures, 0);
  EXPECT_THAT(outbox_.rebinds, IsEmpty());
}

TEST_F(RecoveryCountsTest, TheRungsAreTheSamePairAnotherDecodeWorkerAndItself) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  const CallId held = prefill_call();
  const int32_t first = outbox_.decodes.back().worker;
  HandoffFailed(held, 1);
  EXPECT_EQ(outbox_.rebinds.back().second.prefill, last_prefill().worker);
  Reserved(decode_call(), 2);
  HandoffFailed(held, 2);
  EXPECT_NE(outbox_.decodes.back().worker, first);
  Reserved(decode_call(), 3);
  HandoffFailed(held, 3);
  EXPECT_EQ(outbox_.decodes.size(), 2u);
  ASSERT_EQ(outbox_.rebinds.size(), 2u);
  EXPECT_EQ(outbox_.rebinds.back().second.prefill, 0u);
  EXPECT_EQ(outbox_.rebinds.back().second.attempt, 4u);
  EXPECT_EQ(counters().handoff_failures, 3);
  EXPECT_EQ(counters().rebinds, 1);
  EXPECT_EQ(counters().self_prefills, 1);
  EXPECT_EQ(counters().resends, 2);
  EXPECT_EQ(counters().moves + counters().retries, 0);
}

TEST_F(RecoveryCountsTest, WithoutKvToSendTheSecondRungIsAnotherPrefillWorker) {
  ToPrefilling(1);
  const CallId decode = decode_call();
  const int32_t first = outbox_.prefills.back().worker;
  for (Attempt attempt : {1, 2}) {
    Prefilled(prefill_call(), 3 + static_cast<int32_t>(attempt) - 1, 50, attempt);
    Closed(prefill_call());
    Sleep(seconds(2));  // No token comes: the verdict is asked for by a Rebind.
    if (attempt == 1) Reserved(decode, 2);
  }
  EXPECT_THAT(outbox_.cancelled, Not(Contains(decode)));
  ASSERT_EQ(outbox_.rebinds.size(), 2u);
  EXPECT_EQ(outbox_.rebinds.back().second.prefill, incarnation(first == 0 ? 3 : 0));
  EXPECT_EQ(outbox_.decodes.size(), 1u);
}

TEST_F(RecoveryCountsTest, AWorkerThatDrainsOrHasOtherBitsIsNoOther) {
  for (const bool drains : {false, true}) {
    Create({}, false, {Role::kPrefill, Role::kDecode, Role::kDecode});
    outbox_ = {};
    const auto up = [&](int32_t worker, const char* numerics) {
      Handle(WorkerUp{worker,
                      {.role = roles_[worker],
                       .incarnation = incarnation(worker),
                       .numerics_id = numerics,
                       .block_size = 16,
                       .num_blocks = 100,
                       .max_model_len = 200}});
    };
    up(0, "a");
    up(1, "a");
    ToPrefilling(1);
    up(2, drains ? "a" : "b");
    if (drains) Handle(WorkerStatusChanged{2, {.incarnation = incarnation(2), .draining = true}});
    HandoffFailed(prefill_call(), 1);
    Reserved(decode_call(), 2);
    HandoffFailed(prefill_call(), 2);
    ASSERT_EQ(outbox_.rebinds.size(), 2u) << drains;
    EXPECT_EQ(outbox_.rebinds.back().second.prefill, 0u);
    EXPECT_EQ(outbox_.decodes.size(), 1u);
  }
}

TEST_F(RecoveryCountsTest, ANewStartBeginsAtTheFirstRung) {
  ToPrefilling(1);
  HandoffFailed(prefill_call(), 1);
  Closed(decode_call(), Full());  // Revoked: all from the start, elsewhere.
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  Reserved(decode_call(), last_decode().attempt);
  const CallId decode = decode_call();
  HandoffFailed(prefill_call(), last_prefill().attempt);
  EXPECT_EQ(outbox_.rebinds.back().first, decode);
  EXPECT_EQ(outbox_.rebinds.back().second.prefill, last_prefill().worker);
}

TEST_F(RecoveryCountsTest, KvThatIsStillBeingComputedIsKeptAfterAFailure) {
  ToPrefilling(1);
  HandoffFailed(decode_call(), 1);
  Reserved(decode_call(), 2);
  ASSERT_EQ(outbox_.sends.size(), 1u);
  Prefilled(prefill_call(), 3, 50);
  EXPECT_THAT(outbox_.cancelled, IsEmpty());
}

TEST_F(RecoveryCountsTest, APrefillWorkerWhoseHandoffWentWellEndsItsCallItself) {
  ToPrefilling(1);
  Tokens(decode_call(), 3, 50);
  Prefilled(prefill_call(), 3, 50);
  EXPECT_THAT(outbox_.cancelled, IsEmpty());
}

// ---- Moves and retries -------------------------------------------------------------------------

TEST_F(RecoveryCountsTest, LossesBeforeTheAnswerWentOnAreForgotten) {
  ToPrefilling(1, Request(3, 9));
  Kill(outbox_.prefills.back().worker, {prefill_call()});
  Tokens(decode_call(), 3, 50);  // The decode worker had it: nothing was lost.
  Sleep(seconds(1));
  EXPECT_EQ(counters().moves + counters().retries, 0);
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Sleep(milliseconds(20));
  EXPECT_EQ(counters().moves, 1);
  EXPECT_EQ(counters().retries, 0);
}

TEST_F(RecoveryCountsTest, TwoLostWorkersAreTwoMoves) {
  Create({}, true, {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
  ToPrefilling(1);
  const int32_t decode = outbox_.decodes.back().worker;
  const int32_t prefill = outbox_.prefills.back().worker;
  const CallId calls[] = {decode_call(), prefill_call()};
  Kill(decode, {calls[0]});
  Kill(prefill, {calls[1]});
  Sleep(milliseconds(20));
  EXPECT_EQ(counters().moves, 2);
  EXPECT_NE(outbox_.decodes.back().worker, decode);
}

TEST_F(RecoveryCountsTest, OneLostWorkerIsOneMoveHoweverOftenItIsMissed) {
  ToPrefilling(1);
  const CallId held = prefill_call();
  const int32_t prefill = outbox_.prefills.back().worker;
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Sleep(milliseconds(20));
  EXPECT_EQ(counters().moves, 1);
  Kill(prefill, {held});  // While the next decode worker reserves.
  EXPECT_EQ(outbox_.decodes.size(), 2u);
  Sleep(milliseconds(100));
  EXPECT_THAT(outbox_.rebinds, IsEmpty());  // The reservation on its way decides.
  EXPECT_EQ(counters().moves, 1);
  Reserved(decode_call(), 2);  // For the worker that is gone: missed once more.
  Sleep(milliseconds(20));
  EXPECT_EQ(counters().moves, 2);
  ASSERT_EQ(outbox_.rebinds.size(), 1u);
}

TEST_F(RecoveryCountsTest, AWorkerThatDrainsIsMovedAwayFromWhateverItSays) {
  ToDecoding(1, Request(3, 9));
  Closed(prefill_call());
  const int32_t worker = outbox_.decodes.back().worker;
  Handle(WorkerStatusChanged{worker, {.incarnation = incarnation(worker), .draining = true}});
  Closed(decode_call(), absl::UnavailableError("the worker is shutting down"));
  Sleep(milliseconds(20));
  EXPECT_EQ(counters().moves, 1);
  EXPECT_EQ(counters().retries, 0);
}

TEST_F(RecoveryCountsTest, ARunningCallThatIsRefusedIsAFailureAndNoRefusal) {
  ToDecoding(1, Request(3, 9));
  Closed(prefill_call());
  Closed(decode_call(), Full());
  EXPECT_EQ(counters().requeued, 0);
  Sleep(milliseconds(20));
  EXPECT_EQ(counters().retries, 1);
}

TEST_F(RecoveryCountsTest, WhatBecomesOfThePrefillCallDoesNotTouchARunningAnswer) {
  for (absl::Status status : {Full(), absl::InvalidArgumentError("no"), Gone(), Failed(),
                              absl::DeadlineExceededError("late"), absl::OkStatus()}) {
    SetUp();
    outbox_ = {};
    ToPrefilling(1, Request(3, 9));
    Tokens(decode_call(), 3, 50);
    Closed(prefill_call(), status);
    Sleep(seconds(1));
    EXPECT_EQ(Ended(1), std::nullopt) << status;
    EXPECT_THAT(outbox_.cancelled, IsEmpty()) << status;
    EXPECT_EQ(outbox_.decodes.size(), 1u) << status;
    EXPECT_EQ(counters().requeued + counters().moves + counters().retries, 0) << status;
  }
}

TEST_F(RecoveryCountsTest, WhatAPrefillWorkerSaysOfTheRequestItselfEndsIt) {
  ToPrefilling(1);
  Closed(prefill_call(), absl::InvalidArgumentError("too long"));
  EXPECT_EQ(Ended(1), Code::kInvalidArgument);
  EXPECT_EQ(counters().retries, 0);
}

TEST_F(RecoveryCountsTest, AGapInThePrefillWorkersWordIsItsOwnFailure) {
  ToPrefilling(1);
  const CallId prefill = prefill_call();
  const int32_t worker = outbox_.prefills.back().worker;
  Prefilled(prefill, 7, 50);
  EXPECT_THAT(outbox_.cancelled, ElementsAre(prefill));
  EXPECT_TRUE(Seen(1).empty());
  Sleep(milliseconds(5));
  Heard(worker);
  Sleep(milliseconds(20));
  EXPECT_EQ(counters().retries, 1);
  ASSERT_EQ(outbox_.rebinds.size(), 1u);  // The reservation stays.
  EXPECT_EQ(outbox_.decodes.size(), 1u);
}

TEST_F(RecoveryCountsTest, TheBudgetOfRetriesDoesNotGrowBeyondItsBurst) {
  for (uint64_t key = 1; key <= 500; ++key) {
    Submit(key, Request());
    Handle(ClientCancel{key});
  }
  for (uint64_t key = 501; key <= 530; ++key) {
    Submit(key, Request());
    Closed(decode_call(), Failed());
    Judged();
    Handle(ClientCancel{key});
  }
  EXPECT_LE(counters().retries, 13);  // Ten, and one in ten of the thirty.
  EXPECT_GE(counters().retries, 10);
}

// ---- Fences ------------------------------------------------------------------------------------

TEST_F(RecoveryCountsTest, AFenceTakesOnlyWhatIsOnTheHungWorker) {
  for (const int32_t hung : {0, 1, 2, 3}) {
    Create({.hang_limit = milliseconds(2000)}, true,
           {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
    outbox_ = {};
    for (uint64_t key = 1; key <= 8; ++key) ToPrefilling(key);
    const auto prefills = outbox_.prefills;
    const auto decodes = outbox_.decodes;
    Sleep(milliseconds(1500));
    for (int32_t worker : {0, 1, 2, 3}) {
      if (worker != hung) Heard(worker);
    }
    Sleep(milliseconds(500));
    EXPECT_EQ(counters().hung_workers, 1);
    size_t expected = 0;
    for (const auto* opened : {&prefills, &decodes}) {
      for (const auto& call : *opened) {
        const bool is_cancelled =
            std::ranges::find(outbox_.cancelled, call.call) != outbox_.cancelled.end();
        EXPECT_EQ(is_cancelled, call.worker == hung) << "worker " << call.worker;
        expected += call.worker == hung ? 1 : 0;
      }
    }
    EXPECT_GT(expected, 0u);
    Sleep(milliseconds(20));
    EXPECT_EQ(counters().moves, static_cast<int64_t>(expected));
  }
}

TEST_F(RecoveryCountsTest, AHungPrefillWorkerDoesNotTouchWhatIsDecoded) {
  Create({.hang_limit = milliseconds(2000)}, true,
         {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
  ToDecoding(1, Request(3, 9));
  const CallId decode = decode_call();
  const int32_t hung = outbox_.prefills.back().worker;
  for (int i = 0; i < 2; ++i) {
    Sleep(milliseconds(1500));
    for (int32_t worker : {0, 1, 2, 3}) {
      if (worker != hung) Heard(worker);
    }
  }
  EXPECT_EQ(counters().hung_workers, 1);
  EXPECT_THAT(outbox_.cancelled, ElementsAre(prefill_call()));
  EXPECT_EQ(counters().moves, 0);
  Tokens(decode, 4, 51);
  EXPECT_THAT(Seen(1), ElementsAre(50, 51));
}

// ---- What is given back ------------------------------------------------------------------------

TEST_F(RecoveryCountsTest, AQueueThatIsLeftIsLeftOnce) {
  Create({.max_queued_bytes = 100, .max_pending_prefill_tokens = 1}, true,
         {Role::kPrefill, Role::kDecode});
  for (uint64_t key = 1; key <= 5; ++key) {
    ValidRequest request = Request();
    request.bytes = 60;
    Submit(key, request);
    ASSERT_EQ(Ended(key), std::nullopt) << key;
    EXPECT_EQ(node_->View().queued_requests, 0);
    EXPECT_EQ(node_->View().running_requests, 1);
    Handle(ClientCancel{key});
    EXPECT_EQ(node_->View().queued_requests, 0);
    EXPECT_EQ(node_->View().queued_tokens, 0);
    EXPECT_EQ(node_->View().running_requests, 0);
  }
}

TEST_F(RecoveryCountsTest, ThePromptsCachedTokensAreCountedOnceForAllItsChoices) {
  ValidRequest request = Request(3, 2);
  request.num_choices = 3;
  Submit(1, request);
  Reserved(decode_call());
  Prefilled(prefill_call(), 3, 50);
  Tokens(decode_call(), 3, 50);
  const auto joins = outbox_.decodes;
  for (size_t i = 1; i < 3; ++i) {
    Closed(joins[i].call, absl::ResourceExhaustedError("not here"));
    Reserved(decode_call(), 2);
    Prefilled(prefill_call(), 3, 50, 2);  // Says too that two tokens were cached.
  }
  for (size_t i : {0, 3, 4}) Tokens(outbox_.decodes[i].call, 4, 51, FinishReason::kLength);
  ASSERT_EQ(Ended(1), Code::kOk);
  EXPECT_EQ(outbox_.clients[1].ended[0].cached_tokens, 2);
}

// The only prefill worker takes one prompt at a time: what is counted against it too long stops
// all.
class PendingTokensTest : public RecoveryCountsTest {
 protected:
  void SetUp() override {
    Create({.max_pending_prefill_tokens = 1}, true, {Role::kPrefill, Role::kDecode, Role::kDecode});
  }
  bool PrefillIsFree() {
    const size_t before = outbox_.decodes.size();
    Submit(++probe_, Request());
    const bool is_free = outbox_.decodes.size() > before;
    Handle(ClientCancel{probe_});
    return is_free;
  }

 private:
  uint64_t probe_ = 100;
};

TEST_F(PendingTokensTest, AReservationThatIsLostGivesItsPrefillWorkerBack) {
  Submit(1, Request(3, 9));
  Kill(outbox_.decodes.back().worker, {decode_call()});
  EXPECT_TRUE(PrefillIsFree());
  Sleep(milliseconds(20));
  ASSERT_EQ(outbox_.decodes.back().worker, 2);
  EXPECT_FALSE(PrefillIsFree());
  Reserved(decode_call(), 2);
  Prefilled(prefill_call(), 3, 50, 2);
  EXPECT_TRUE(PrefillIsFree());
}

TEST_F(PendingTokensTest, ARebindThatFindsTheAnswerReadyGivesThePrefillWorkerBack) {
  ToPrefilling(1, Request(3, 9));
  Kill(0, {prefill_call()});
  Up(0, 500);
  Sleep(milliseconds(20));
  ASSERT_EQ(outbox_.rebinds.size(), 1u);
  EXPECT_FALSE(PrefillIsFree());
  Ready(decode_call(), 2);
  EXPECT_TRUE(PrefillIsFree());
}

TEST_F(PendingTokensTest, APrefillCallThatEndsUnderARunningAnswerGivesThePrefillWorkerBack) {
  ToPrefilling(1, Request(3, 9));
  Tokens(decode_call(), 3, 50);
  EXPECT_FALSE(PrefillIsFree());
  Closed(prefill_call(), Failed());
  EXPECT_TRUE(PrefillIsFree());
}

TEST_F(PendingTokensTest, APromptThatIsComputedAgainCountsAgain) {
  ToPrefilling(1, Request(3, 9));
  Prefilled(prefill_call(), 3, 50);
  const CallId held = prefill_call();
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Sleep(milliseconds(20));
  Closed(held);  // The lost worker had verified it: the prefill worker let go.
  EXPECT_TRUE(PrefillIsFree());
  Reserved(outbox_.decodes[1].call, 2);
  EXPECT_FALSE(PrefillIsFree());
}

// ---- The cap on recoveries ---------------------------------------------------------------------

class RecoveringTest : public RecoveryCountsTest {
 protected:
  void SetUp() override {
    Create({.max_recovering = 1}, true, {Role::kPrefill, Role::kDecode, Role::kDecode});
  }
  // So many answers run on the first decode worker, which dies then; the calls that were opened
  // since.
  size_t LoseRunning(uint64_t first_key, int count) {
    std::vector<CallId> calls;
    for (uint64_t key = first_key; calls.size() < size_t(count); ++key) {
      ToDecoding(key, Request(3, 9));
      Closed(prefill_call());
      if (outbox_.decodes.back().worker == 1) calls.push_back(decode_call());
    }
    const size_t before = outbox_.decodes.size();
    for (CallId call : calls) Closed(call, Failed());
    Sleep(milliseconds(20));
    return outbox_.decodes.size() - before;
  }
};

TEST_F(RecoveringTest, RetriesAreRecoveriesToo) { EXPECT_EQ(LoseRunning(1, 3), 1u); }

TEST_F(RecoveringTest, NewRequestsDoNotWaitForRecoveries) {
  EXPECT_EQ(LoseRunning(1, 2), 1u);
  const size_t before = outbox_.decodes.size();
  Submit(50, Request());
  EXPECT_EQ(outbox_.decodes.size(), before + 1);
}

TEST_F(RecoveringTest, WhoHoldsASideDoesNotWaitForRecoveries) {
  ToPrefilling(1, Request(3, 9));
  const int32_t worker = outbox_.decodes.back().worker;
  const CallId held_for = decode_call();
  EXPECT_EQ(LoseRunning(10, 2), 1u);
  const size_t before = outbox_.decodes.size();
  Closed(held_for, Failed());
  Sleep(milliseconds(45));
  EXPECT_EQ(outbox_.decodes.size(), before + 1);
  EXPECT_EQ(worker, 1);
}

TEST_F(RecoveringTest, ARecoveryThatIsCancelledLostOrDoneMakesRoomForExactlyOne) {
  for (int end : {0, 1, 2}) {
    SetUp();
    outbox_ = {};
    ASSERT_EQ(LoseRunning(1, 5), 1u);
    const size_t before = outbox_.decodes.size();
    const CallId recovering = decode_call();
    const uint64_t request = last_decode().sequence.counter;
    if (end == 0) Handle(ClientCancel{request});
    if (end == 1) Closed(recovering, absl::InvalidArgumentError("no"));
    if (end == 2) {
      Reserved(recovering, 2);
      for (int32_t i = 4; i < 8; ++i) Tokens(recovering, i, 50, FinishReason::kNone, 2);
    }
    Sleep(milliseconds(100));
    EXPECT_EQ(outbox_.decodes.size(), before + 1) << end;
  }
}

TEST_F(RecoveringTest, ARecoveryThatIsLostAgainTakesItsOwnPlace) {
  ASSERT_EQ(LoseRunning(1, 1), 1u);
  Closed(decode_call(), Failed());
  Sleep(milliseconds(60));
  EXPECT_EQ(outbox_.decodes.size(), 3u);
  EXPECT_EQ(counters().retries, 2);
}

}  // namespace
}  // namespace baton
