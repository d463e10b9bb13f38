#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/engine/deadlines.h"
#include "common/node/node.h"
#include "router/frontend.h"
#include "router/routing/prefix_directory.h"
#include "router/routing/routing_policy.h"
#include "router/worker_directory.h"

namespace baton {

struct RouterNodeOptions {
  Incarnation incarnation = 0;
  // The admission queue: requests not yet given to workers. Beyond a cap: RESOURCE_EXHAUSTED.
  int64_t max_queued_requests = 4096;
  int64_t max_queued_tokens = 16 << 20;                   // Prompt tokens.
  int64_t max_queued_bytes = 256 << 20;                   // Bytes of client bodies.
  int64_t max_pending_prefill_tokens = 16384;             // Given ahead to one prefill worker.
  int32_t max_sequences_per_request = 128;                // Prompts x choices.
  size_t max_directory_entries = 1 << 16;                 // Prefix chunks remembered.
  Duration retry_delay = std::chrono::milliseconds(20);   // After a worker's refusal.
  Duration verdict_limit = std::chrono::seconds(2);       // T_abort: for D's word on a handoff.
  Duration no_progress_limit = std::chrono::seconds(30);  // Of the sequence and its workers.
  Duration no_worker_grace = std::chrono::seconds(2);     // For a pair to come (back).
};

struct RouterCounters {
  int64_t requests = 0;
  int64_t ok = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  int64_t refused = 0;         // By the admission queue.
  int64_t requeued = 0;        // Sequences that a worker refused or gave back.
  int64_t stale_tokens = 0;    // A position that was emitted already.
  int64_t stale_mail = 0;      // Mail of a call that is no longer open.
  int64_t handoff_aborts = 0;  // Prefill calls that ended with a failed handoff.
};

// The logic of the router: admission queue, assignment to pairs, the client's stream. Its state
// table is in ARCHITECTURE.md. The outbox outlives it.
class RouterNode : public Node {
 public:
  RouterNode(const RouterNodeOptions& options, const std::vector<Role>& worker_roles,
             std::unique_ptr<RoutingPolicy> policy, RouterOutbox& outbox);

  void Handle(Message message, Time now) override;
  void Step(Time now) override;
  Time NextDeadline() const override;

  // Workers without addresses, which the node does not know.
  RouterView View() const;
  const RouterCounters& counters() const { return counters_; }
  bool idle() const { return requests_.empty(); }
  size_t num_open_calls() const { return calls_.size(); }

 private:
  enum class State : uint8_t { kQueued, kReserving, kPrefilling, kDecoding };
  // Priority, then arrival: the order in which sequences are given to workers.
  using QueueKey = std::tuple<int32_t, uint64_t>;

  struct SequenceState {
    SequenceId id;
    uint64_t request = 0;
    int32_t choice = 0;  // Over all prompts: prompt * n + choice.
    int32_t prompt = 0;
    State state = State::kQueued;
    Attempt attempt = 0;
    CallId decode_call = 0;             // 0 = none open.
    CallId prefill_call = 0;            // 0 = none open.
    Route route;                        // Valid unless queued.
    Incarnation prefill = 0;            // The incarnation that the decode worker reserved for.
    bool holds_prefill_tokens = false;  // Counted in the prefill worker's pending_tokens.
    int32_t next_position = 0;          // The next token the client is to see.
    bool owes_score = false;            // Prompt log probabilities have not been emitted.
    bool prefilled = false;             // A PrefilledEvent of this attempt has come.
    bool finished = false;              // Its last token was emitted, or the client stopped it.
    Time last_progress{};
    Time watch_at = kNever;       // In watches_.
    Time verdict_until = kNever;  // The handoff failed as P knows; D decides until then.
    std::vector<uint64_t> prefix_hashes;
  };
  struct RequestState {
    ValidRequest body;
    Time arrival{};
    Time deadline = kNever;
    std::vector<uint64_t> sequences;  // Live ones, by counter.
    std::vector<bool> cache_counted;  // [num_prompts]
    int32_t cached_tokens = 0;
    int64_t prompt_tokens = 0;
    bool queued = false;  // Counts against the queue's caps.
  };

  // Clients.
  void OnSubmit(ClientSubmit submit, Time now);
  absl::Status Admissible(const ValidRequest& body) const;
  void OnStop(const ClientStop& stop);
  void EndRequest(uint64_t request, absl::Status status);
  // Workers.
  void OnWorkerEvent(WorkerEventReceived received, Time now);
  void OnReserved(SequenceState& sequence, const ReservedEvent& event, Time now);
  void OnPrefilled(SequenceState& sequence, PrefilledEvent event);
  void OnTokens(SequenceState& sequence, TokensEvent event);
  void OnCallClosed(const CallClosed& closed, Time now);
  void OnDecodeClosed(SequenceState& sequence, const absl::Status& status, Time now);
  void OnPrefillClosed(SequenceState& sequence, const absl::Status& status, Time now);
  // Sequences.
  void Dispatch(Time now);
  bool Assign(SequenceState& sequence, Time now);
  void OpenPrefill(SequenceState& sequence, std::optional<HandoffTarget> handoff, Time now);
  void Requeue(SequenceState& sequence, int32_t refused_by, Time now);
  void ReleaseCalls(SequenceState& sequence);
  void ReleasePrefillTokens(SequenceState& sequence);
  void FinishIfDone(SequenceState& sequence);
  void Fail(const SequenceState& sequence, absl::Status status);
  void CheckWatch(uint64_t counter, Time now);
  void Watch(SequenceState& sequence, Time at);
  RouteNeed NeedOf(const SequenceState& sequence) const;
  SamplingParams SamplingOf(const SequenceState& sequence) const;
  void LeaveQueue(RequestState& request);
  QueueKey KeyOf(const SequenceState& sequence) const;

  RouterNodeOptions options_;
  WorkerDirectory directory_;
  std::unique_ptr<RoutingPolicy> policy_;
  PrefixDirectory prefixes_;
  RouterOutbox& outbox_;

  std::map<uint64_t, RequestState> requests_;
  std::map<uint64_t, SequenceState> sequences_;  // By counter.
  std::set<QueueKey> queue_;
  absl::flat_hash_map<CallId, uint64_t> calls_;  // Open calls -> sequence counter.
  Deadlines<uint64_t> deadlines_;                // Of requests.
  Deadlines<uint64_t> watches_;                  // Of sequences with open calls.
  Time retry_at_ = kNever;
  Time no_worker_since_ = kNever;
  uint64_t next_sequence_ = 1;
  CallId next_call_ = 1;
  int64_t queued_requests_ = 0;
  int64_t queued_tokens_ = 0;
  int64_t queued_bytes_ = 0;
  RouterCounters counters_;
};

}  // namespace baton
