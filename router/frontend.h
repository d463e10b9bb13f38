#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/node/message.h"

namespace baton {

// Receives what becomes of one request, one call at a time, in order; must not block. RequestEnded
// is the last event and comes exactly once.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  virtual void OnEvent(ClientEvent event) = 0;
};

// One worker as the router sees it, for /metrics and `baton status`.
struct WorkerView {
  Role role = Role::kPrefill;
  int32_t index = 0;  // The node's name for it; another worker may have it later.
  std::string address;
  bool healthy = false;  // Connected, compatible, not draining, not hung.
  std::string reason;    // Why not, if not; or that it is alone.
  HelloInfo hello;
  uint64_t pair = 0;  // Only equal ones exchange K/V.
  WorkerStatus status;
  // A decode worker that computes prompts itself, as no prefill worker that it pairs with is there.
  bool alone = false;
  Time last_token{};  // When this process last took part in a token end to end; the epoch if never.
  Time last_prompt{};  // Likewise of a prompt that it computed so.
};

struct RouterView {
  std::vector<WorkerView> workers;  // By index. A process with two addresses is there once.
  int64_t queued_requests = 0;
  int64_t queued_tokens = 0;
  int64_t running_requests = 0;
  std::array<int64_t, 3> queued_by_class{};  // Of priorities below 0, 0, and above.
  int64_t live_tenants = 0;  // With requests that wait or run.
};

// Of the first worker that is healthy; empty without one.
inline std::string NumericsIdOf(const RouterView& view) {
  for (const WorkerView& worker : view.workers) {
    if (worker.healthy) return worker.hello.numerics_id;
  }
  return "";
}

// What the HTTP and gRPC edges of the router may ask of its node. Thread-safe.
class RouterFrontend {
 public:
  virtual ~RouterFrontend() = default;

  // Hands a request to the scheduler; returns its key. RESOURCE_EXHAUSTED at once when the inbox
  // is full (then the sink is never called).
  virtual absl::StatusOr<uint64_t> Submit(ValidRequest request,
                                          std::shared_ptr<ResponseSink> sink) = 0;

  // RESOURCE_EXHAUSTED if the scheduler would refuse this tenant's next request whatever it is, as
  // far as is known since its last turn.
  virtual absl::Status CheckRoom(const std::string& /*tenant*/) const { return absl::OkStatus(); }

  // The client is gone. RequestEnded(CANCELLED) follows unless the request has ended. Idempotent.
  virtual void Cancel(uint64_t request) = 0;

  // A stop string completed this choice. RequestEnded(OK) follows when all choices have ended.
  virtual void StopChoice(uint64_t request, int32_t choice) = 0;

  // The latest snapshot, of workers at most 50 ms old; never waits for the node. A copy of all.
  virtual RouterView View() const = 0;
  virtual std::string NumericsId() const { return NumericsIdOf(View()); }

  // Every live sequence; waits for the node, at most 2 s.
  virtual absl::StatusOr<RouterAudit> Audit() = 0;

  // False while the node stands still: its thread has been in one turn for a minute.
  virtual bool Alive() const = 0;

  // True once a token went end to end through the workers that are connected now.
  virtual bool Ready() const = 0;
};

}  // namespace baton
