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
    Handle(WorkerDown{.worker = worker, .reason = "connection lost"});
  }
  void Judged() { Wait(std::chrono::milliseconds(20)); }
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

}  // namespace baton
