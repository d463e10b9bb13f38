#pragma once

#include <vector>

#include "gmock/gmock.h"
#include "tests/unit/router/recovery_harness.h"

namespace baton {

// Answers whose session with their decode worker ends.
class ReturnsHarness : public RecoveryHarness {
 protected:
  // Request `key` decodes, its prefill worker has let go.
  void Decode(uint64_t key, ValidRequest request = Request(3, 9)) {
    ToDecoding(key, std::move(request));
    Closed(prefill_call());
  }
  // The session with that worker ends under these calls.
  void EndSession(int32_t worker, const std::vector<CallId>& calls) {
    for (const CallId call : calls) Closed(call, Gone());
    Handle(WorkerDown{.worker = worker, .reason = "a message was damaged"});
  }
  void Back(int32_t worker) { Up(worker, incarnation(worker)); }
  // One request decodes, and its session has ended.
  void LoseSession() {
    Decode(1);
    worker_ = outbox_.decodes.back().worker;
    EndSession(worker_, {decode_call()});
  }
  // The second Decode call asks where the first was.
  void ExpectReturned() {
    ASSERT_EQ(outbox_.decodes.size(), 2u);
    EXPECT_EQ(outbox_.decodes[1].worker, worker_);
    EXPECT_EQ(last_decode().prefill, 0u);
    EXPECT_FALSE(last_decode().compute_prompt);
  }
  // And so its answer ends.
  void ExpectEndWithoutPrefill() {
    Ready(decode_call(), 2);
    Tokens(decode_call(), 4, 51, FinishReason::kStop, 2);
    EXPECT_THAT(Seen(1), testing::ElementsAre(50, 51));
    EXPECT_EQ(Ended(1), absl::StatusCode::kOk);
    EXPECT_EQ(outbox_.prefills.size(), 1u);
    EXPECT_EQ(node_->counters().returns, 1);
    EXPECT_EQ(node_->counters().moves + node_->counters().retries, 0);
  }
  // It has become an ordinary loss, after that.
  void ExpectMoved() {
    Judged();
    EXPECT_EQ(node_->counters().moves, 1);
    EXPECT_EQ(node_->counters().returns, 0);
    EXPECT_NE(last_decode().prefill, 0u);
    EXPECT_NE(outbox_.decodes.back().worker, worker_);
  }

  int32_t worker_ = 0;
};

}  // namespace baton
