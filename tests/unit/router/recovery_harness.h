#pragma once

#include <vector>

#include "tests/unit/router/router_harness.h"

namespace baton {

// Workers 0 and 3 prefill, 1 and 2 decode. What a worker of the first pair loses, the other has.
class RecoveryHarness : public RouterHarness {
 protected:
  void SetUp() override {
    Create({}, true, {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
  }

  static absl::Status Gone() { return absl::UnavailableError("connection lost"); }
  // kill -9 as the router sees it: the calls break and the link says so.
  void Kill(int32_t worker, std::vector<CallId> calls) {
    for (CallId call : calls) Closed(call, Gone());
    Handle(WorkerDown{.worker = worker, .reason = "connection lost", .is_gone = true});
  }
  void Judged() { Wait(std::chrono::milliseconds(20)); }
  void Heard(int32_t worker) {
    Handle(WorkerStatusChanged{worker, {.incarnation = incarnation(worker)}});
  }
  void HandoffFailed(CallId call, Attempt attempt) {
    Handle(WorkerEventReceived{call, HandoffFailedEvent{.attempt = attempt, .reason = "cut"}});
  }
  // Time passes as on the node's thread, which wakes only when the node has asked for it.
  void Sleep(Duration time) {
    const Time end = now_ + time;
    while (node_->NextDeadline() <= end) {
      ASSERT_GT(node_->NextDeadline(), now_) << "woken again and again";
      now_ = node_->NextDeadline();
      node_->Step(now_);
    }
    now_ = end;
  }
  Duration NextWake() const { return node_->NextDeadline() - now_; }
  // A request with `prompt` tokens runs on that decode worker, which makes it the busier one.
  void Occupy(int32_t worker, int32_t prompt = 100) {
    std::vector<uint64_t> others;
    for (uint64_t key = next_occupier_;; ++key) {
      Submit(key, Request(prompt, 50));
      Reserved(decode_call());
      Prefilled(prefill_call(), prompt, 50);
      Tokens(decode_call(), prompt, 50);
      Closed(prefill_call());
      next_occupier_ = key + 1;
      if (outbox_.decodes.back().worker == worker) break;
      others.push_back(key);
    }
    for (uint64_t key : others) Handle(ClientCancel{key});
    outbox_.cancelled.clear();
  }
  // The decode worker computes or has verified it.
  void Ready(CallId call, Attempt attempt) {
    Handle(WorkerEventReceived{call, TokensEvent{.attempt = attempt, .outputs = {}}});
  }
  void Progress(int32_t worker, uint64_t progress) {
    Handle(WorkerStatusChanged{worker,
                               {.incarnation = incarnation(worker), .progress = progress}});
  }
  const DecodeRequest& last_decode() const { return outbox_.decode_requests.back(); }
  const PrefillRequest& last_prefill() const { return outbox_.prefill_requests.back(); }
  Incarnation incarnation(int32_t worker) const { return kFirstIncarnation + worker; }

 private:
  uint64_t next_occupier_ = 900;
};

}  // namespace baton
