// Who goes first, and where to: the queue's order, held sides before it, workers that failed last.
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

class RecoveryOrdersTest : public RecoveryHarness {
 protected:
  static absl::Status Failed() { return absl::InternalError("the step failed"); }
  static absl::Status Full() { return absl::ResourceExhaustedError("no blocks are free"); }
  void UpWithBits(int32_t worker, const char* numerics) {
    Handle(WorkerUp{worker,
                    {.role = roles_[worker],
                     .incarnation = incarnation(worker),
                     .numerics_id = numerics,
                     .block_size = 16,
                     .num_blocks = 100,
                     .max_model_len = 200}});
  }
};

// ---- The queue ---------------------------------------------------------------------------------

TEST_F(RecoveryOrdersTest, AnAnswerThatLostAllWaitsInTheQueuesOrder) {
  Create({.max_pending_prefill_tokens = 10}, true, {Role::kPrefill, Role::kDecode, Role::kDecode});
  ToDecoding(1, Request(3, 9));
  Closed(prefill_call());
  const CallId running = decode_call();
  ToPrefilling(2, Request(3, 9));
  ValidRequest large = Request(50, 4);
  large.priority = -1;
  Submit(3, large);  // The first in the queue, and too much for the prefill worker now.
  Kill(outbox_.decodes.front().worker, {running});
  Sleep(milliseconds(100));
  EXPECT_EQ(outbox_.decodes.size(), 2u);  // It does not overtake.
}

// A router that had no turn for a while reads all of it at once. Twice ten calls are lost, and ten
// retries are all that it has.
TEST_F(RecoveryOrdersTest, CallsThatAreLostWithTheirConnectionAreMovesInWhateverOrderItIsRead) {
  std::vector<CallId> running;
  for (uint64_t key = 1; key <= 40; ++key) ToDecoding(key, Request(3, 9));
  for (const auto& opened : outbox_.decodes) {
    if (opened.worker == 1) running.push_back(opened.call);
  }
  ASSERT_GE(running.size(), 20u);
  const auto is_early = [&](CallId call) { return call % 4 < 2; };
  const auto read_ends = [&](bool early) {
    for (const CallId call : running) {
      if (is_early(call) == early) node_->Handle(CallClosed{call, Gone()}, now_);
    }
  };
  read_ends(true);
  node_->Handle(WorkerDown{.worker = 1, .reason = "connection lost"}, now_);
  node_->Handle(WorkerUp{1, {.role = Role::kDecode,
                             .incarnation = incarnation(1),
                             .block_size = 16,
                             .num_blocks = 100,
                             .max_model_len = 200}},
                now_);
  read_ends(false);
  node_->Step(now_);
  Sleep(milliseconds(10));
  Heard(1);
  Judged();
  EXPECT_EQ(node_->counters().moves, std::ssize(running));
  EXPECT_EQ(node_->counters().retries, 0);
  EXPECT_EQ(node_->counters().failed, 0);
}

TEST_F(RecoveryOrdersTest, ACallGoesOverTheConnectionOfWhenItIsOpenedNotOfWhenItsWorkerWasChosen) {
  Submit(1, Request());
  ASSERT_EQ(last_decode().prefill, incarnation(0));
  Handle(WorkerDown{.worker = 0, .reason = "connection lost"});
  Up(0, incarnation(0));
  Reserved(decode_call());
  Closed(prefill_call(), Failed());
  Judged();
  EXPECT_EQ(node_->counters().retries, 1);
  EXPECT_EQ(node_->counters().moves, 0);
}

TEST_F(RecoveryOrdersTest, WhoseHoldHasEndedWaitsInTheQueuesOrder) {
  Create({.max_pending_prefill_tokens = 10}, true, {Role::kPrefill, Role::kDecode});
  ToPrefilling(1, Request(3, 9));
  Kill(1, {decode_call()});
  Sleep(milliseconds(2000));
  ASSERT_EQ(node_->counters().holds_expired, 1);
  ValidRequest urgent = Request();
  urgent.priority = -1;
  Submit(2, urgent);
  Up(1, 500);
  ASSERT_GE(outbox_.decodes.size(), 2u);
  EXPECT_EQ(outbox_.decode_requests[1].sequence.counter, 2u);
}

TEST_F(RecoveryOrdersTest, AHeldSideThatFindsNobodyStopsNobodyElse) {
  Create({}, false, {Role::kPrefill, Role::kDecode, Role::kPrefill, Role::kDecode});
  UpWithBits(0, "old");
  UpWithBits(1, "old");
  ToPrefilling(1);
  UpWithBits(2, "new");
  UpWithBits(3, "new");
  const CallId held = prefill_call();
  Kill(1, {decode_call()});
  Sleep(milliseconds(20));
  EXPECT_EQ(outbox_.decodes.size(), 1u);  // Its KV is of no use to the other decode worker.
  EXPECT_THAT(outbox_.cancelled, Not(Contains(held)));
  Submit(2, Request());
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_EQ(outbox_.decodes.back().worker, 3);
}

// ---- The side that is held ---------------------------------------------------------------------

TEST_F(RecoveryOrdersTest, KvOfAPromptWhoseLastTokenIsDueIsSentAndNotComputedAgain) {
  ToPrefilling(1, Request(3, 2));
  Prefilled(prefill_call(), 3, 50);  // One token is left.
  Kill(outbox_.decodes.back().worker, {decode_call()});
  Sleep(milliseconds(20));
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_EQ(outbox_.prefills.size(), 1u);
  Reserved(decode_call(), 2);
  EXPECT_EQ(outbox_.sends.size(), 1u);
}

TEST_F(RecoveryOrdersTest, KvOnABusyPrefillWorkerGoesOn) {
  Create({.max_pending_prefill_tokens = 1}, true, {Role::kPrefill, Role::kDecode, Role::kDecode});
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  const CallId held_for = decode_call();
  ToPrefilling(2);  // Now the prefill worker has enough.
  Kill(outbox_.decodes.front().worker, {held_for});
  Sleep(milliseconds(20));
  EXPECT_EQ(outbox_.decodes.size(), 3u);
}

TEST_F(RecoveryOrdersTest, AReservationOnADrainingWorkerGoesOn) {
  ToPrefilling(1);
  for (int32_t worker : {1, 2}) {
    Handle(WorkerStatusChanged{worker, {.incarnation = incarnation(worker), .draining = true}});
  }
  Kill(outbox_.prefills.back().worker, {prefill_call()});
  Sleep(milliseconds(20));
  EXPECT_EQ(outbox_.rebinds.size(), 1u);
}

TEST_F(RecoveryOrdersTest, KvLeavesTheBlamedPairAlsoForABusierWorker) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  const CallId held = prefill_call();
  const CallId decode = decode_call();
  const int32_t first = outbox_.decodes.back().worker;
  Occupy(first == 1 ? 2 : 1);
  HandoffFailed(held, 1);
  Reserved(decode, 2);
  HandoffFailed(held, 2);
  EXPECT_NE(outbox_.decodes.back().worker, first);
  EXPECT_EQ(last_decode().prefill, outbox_.prefill_requests.front().worker);
}

// ---- Workers that failed -----------------------------------------------------------------------

TEST_F(RecoveryOrdersTest, AWorkerThatFailedASequenceIsAvoidedByItForGood) {
  Create({.max_pending_prefill_tokens = 5}, true,
         {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
  Submit(1, Request());
  const CallId call = decode_call();
  const int32_t failed = outbox_.decodes.back().worker;
  Occupy(failed == 1 ? 2 : 1, 60);
  std::vector<uint64_t> busy = {20, 21};
  Closed(call, Failed());
  for (uint64_t key : busy) Submit(key, Request(50));  // Both prefill workers have enough.
  Sleep(seconds(1));  // Nobody is skipped any more.
  for (uint64_t key : busy) Handle(ClientCancel{key});
  EXPECT_EQ(last_decode().sequence.counter, 1u);
  EXPECT_NE(outbox_.decodes.back().worker, failed);
  Submit(30, Request());
  EXPECT_EQ(outbox_.decodes.back().worker, failed);  // Others may use it.
}

TEST_F(RecoveryOrdersTest, APrefillWorkerThatFailedASequenceIsAvoidedByItForGood) {
  Create({.max_recovering = 1}, true,
         {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
  ToDecoding(1, Request(3, 9));
  Closed(prefill_call());
  Closed(decode_call(), Failed());
  Sleep(milliseconds(20));  // It recovers, and the next one has to wait for that.
  Submit(2, Request(3, 1));
  const int32_t failed = outbox_.prefills.back().worker;
  const CallId call = prefill_call();
  uint64_t key = 10;
  for (; outbox_.prefills.back().worker == failed; ++key) Submit(key, Request(60, 1));
  while (--key > 10) Handle(ClientCancel{key - 1});  // The other one has more to do.
  Closed(call, Failed());
  Sleep(seconds(1));  // Nobody is skipped any more.
  Handle(ClientCancel{1});
  EXPECT_EQ(last_prefill().sequence.counter, 2u);
  EXPECT_NE(outbox_.prefills.back().worker, failed);
}

TEST_F(RecoveryOrdersTest, AScoreIsSoughtAgainWhenItsWorkerIsLostAfterTheAnswer) {
  ValidRequest request = Request();
  request.sampling.num_prompt_logprobs = 0;
  ToPrefilling(1, request);
  Tokens(decode_call(), 3, 50, FinishReason::kStop);
  EXPECT_EQ(Ended(1), std::nullopt);
  Kill(outbox_.prefills.back().worker, {prefill_call()});
  Sleep(milliseconds(20));
  ASSERT_EQ(outbox_.prefills.size(), 2u);
  EXPECT_FALSE(last_prefill().handoff.has_value());
  Scores(prefill_call(), 1, 3, 2);
  EXPECT_EQ(Ended(1), Code::kOk);
}

}  // namespace
}  // namespace baton
