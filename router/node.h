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
#include "common/node/router_mail.h"
#include "router/frontend.h"
#include "router/routing/prefix_directory.h"
#include "router/routing/routing_policy.h"
#include "router/worker_directory.h"

namespace baton {

struct RouterNodeOptions {
  Incarnation incarnation = 0;
  // The admission queue: requests not yet given to workers. Beyond a cap: RESOURCE_EXHAUSTED; what
  // would not fit into an empty queue: INVALID_ARGUMENT.
  int64_t max_queued_requests = 4096;
  int64_t max_queued_tokens = 16 << 20;                   // Prompt tokens.
  int64_t max_queued_bytes = 256 << 20;                   // Bytes of client bodies.
  int64_t max_pending_prefill_tokens = 16384;             // Given ahead to one prefill worker.
  size_t max_directory_entries = 1 << 16;                 // Prefix chunks remembered.
  Duration retry_delay = std::chrono::milliseconds(20);   // After a worker's refusal.
  // Of the sequence and of the worker that owes it the next event.
  Duration no_progress_limit = std::chrono::seconds(30);
  Duration no_worker_grace = std::chrono::seconds(2);     // For a pair to come.
  // Recovery.
  Duration recovery_grace = std::chrono::seconds(10);       // For a pair to come back.
  Duration hang_limit = std::chrono::milliseconds(2500);    // T_hang, of a worker.
  Duration answer_limit = std::chrono::milliseconds(4500);  // To a Decode call or Rebind.
  Duration hold_limit = std::chrono::seconds(2);  // Of one side's KV while the other is sought.
  Duration judge_delay = std::chrono::milliseconds(20);  // From a lost call to the question why.
  Duration verdict_limit = std::chrono::seconds(2);      // From P's "sent" to D's first token.
  Duration blame_time = std::chrono::seconds(10);        // Of a pair whose transfer failed.
  int32_t max_moves = 8;       // Of one sequence, away from lost, hung or draining workers.
  int32_t max_retries = 2;     // Of one sequence, after failures of workers believed healthy.
  double retry_ratio = 0.1;    // Of such retries to requests, beyond a burst of ten.
  int32_t max_recovering = 8;  // Sequences that are prefilled again at the same time.
};

struct RouterCounters {
  int64_t requests = 0;
  int64_t ok = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  int64_t refused = 0;           // By the admission queue.
  int64_t requeued = 0;          // Sequences that a worker refused or gave back.
  int64_t stale_tokens = 0;      // A position that was emitted already.
  int64_t stale_mail = 0;        // Mail of a call that is no longer open.
  int64_t moves = 0;             // Sequences taken away from a lost, hung or draining worker.
  int64_t retries = 0;           // Sequences tried again after a healthy worker's failure.
  int64_t handoff_failures = 0;  // Transfers that a worker reported as failed.
  int64_t rebinds = 0;           // Reservations moved to another transfer.
  int64_t resends = 0;           // Finished KV sent once more without prefill.
  int64_t self_prefills = 0;     // Prompts that a decode worker was told to compute itself.
  int64_t hung_workers = 0;      // Workers fenced because they stood still.
  int64_t unanswered = 0;        // Decode calls and Rebinds without an answer in time.
  int64_t holds_expired = 0;     // Held KV given up because no other side was found.
};

// The logic of the router: admission queue, assignment to pairs, the client's stream. Its state
// table is in ARCHITECTURE.md. The outbox outlives it.
class RouterNode : public Node<RouterMail> {
 public:
  RouterNode(const RouterNodeOptions& options, const std::vector<Role>& worker_roles,
             std::unique_ptr<RoutingPolicy> policy, RouterOutbox& outbox);

  void Handle(RouterMail mail, Time now) override;
  void Step(Time now) override;
  Time NextDeadline() const override;

  // Workers without addresses, which the node does not know.
  RouterView View() const;
  const RouterCounters& counters() const { return counters_; }
  bool idle() const { return requests_.empty(); }
  size_t num_open_calls() const { return calls_.size(); }

 private:
  // Tabled in ARCHITECTURE.md. A queued sequence may hold one side: a Prefill call with its KV, or
  // a Decode call with its reservation.
  enum class State : uint8_t { kQueued, kReserving, kRebinding, kPrefilling, kDecoding };
  // Priority, then arrival: the order in which sequences are given to workers.
  using QueueKey = std::tuple<int32_t, uint64_t>;

  // One side of a sequence: its call on a worker.
  struct Side {
    CallId call = 0;  // 0 = none open.
    int32_t worker = -1;
    Incarnation incarnation = 0;
    int64_t tokens = 0;  // Counted in the worker's pending_tokens for it.
  };
  struct Loss {
    int32_t worker = 0;
    Incarnation incarnation = 0;
    absl::Status status;
    Time at{};
  };
  struct SequenceState {
    SequenceId id;
    uint64_t request = 0;
    int32_t choice = 0;  // Over all prompts: prompt * n + choice.
    int32_t prompt = 0;
    State state = State::kQueued;
    Attempt attempt = 0;
    Side prefill;
    Side decode;
    std::vector<int32_t> emitted;
    uint64_t group = 0;       // Of the workers of its last attempt.
    int32_t base = 0;         // Tokens, of prompt and emitted, that this attempt prefills.
    bool owes_score = false;  // Not all prompt log probabilities have been emitted.
    int32_t next_score = 1;   // Position of the next one that the client is to see.
    int32_t call_score = 1;   // Position of the next one that the Prefill call must bring.
    bool prefilled = false;   // The Prefill call has computed its prompt.
    bool finished = false;    // Its last token was emitted, or the client stopped it.
    int32_t handoff_failures = 0;
    std::vector<Loss> losses;       // Not judged yet.
    std::vector<Incarnation> lost;  // Moved away from these.
    int32_t moves = 0;
    int32_t retries = 0;
    bool recovering = false;      // Counted in num_recovering_.
    Time queued_since{};           // Of its present wait.
    Time ready_at{};               // Queued: not given to workers before.
    Time last_progress{};
    Time act_by = kNever;      // An answer or the other side must have come by then.
    Time hold_until = kNever;  // While one side is held and the other sought.
    Time watch_at = kNever;    // In watches_.
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
  absl::Status Admissible(const RequestState& request) const;
  void OnStop(const ClientStop& stop, Time now);
  void EndRequest(uint64_t request, absl::Status status);
  // Workers.
  void OnWorkerEvent(WorkerEventReceived received, Time now);
  void OnReserved(SequenceState& sequence, const ReservedEvent& event, Time now);
  void OnScores(SequenceState& sequence, ScoresEvent event, Time now);
  absl::Status CheckScore(const SequenceState& sequence, const PromptLogprob& score) const;
  void OnPrefilled(SequenceState& sequence, PrefilledEvent event, Time now);
  void NoteToken(const SequenceState& sequence, const TokensEvent& event, Time now);
  absl::Status CheckFirst(const SequenceState& sequence, const PrefilledEvent& event) const;
  absl::Status CheckNext(const SequenceState& sequence, const TokenOutput& output) const;
  void OnDecoding(SequenceState& sequence);
  void OnTokens(SequenceState& sequence, TokensEvent event, Time now);
  void OnCallClosed(const CallClosed& closed, Time now);
  void OnDecodeClosed(SequenceState& sequence, const absl::Status& status, Time now);
  void OnPrefillClosed(SequenceState& sequence, const absl::Status& status, Time now);
  // Recovery (recovery.cc).
  void OnHandoffFailed(SequenceState& sequence, Time now);
  void RebindTo(SequenceState& sequence, Incarnation prefill, Time now);
  void AddLoss(SequenceState& sequence, const Side& side, absl::Status why, Time now);
  void LoseDecode(SequenceState& sequence, absl::Status why, Time now);
  void LosePrefill(SequenceState& sequence, absl::Status why, Time now);
  void Enqueue(SequenceState& sequence, Time now);
  void Unqueue(const SequenceState& sequence);
  enum class Verdict : uint8_t { kGoOn, kWait, kFailed };
  Verdict Judge(SequenceState& sequence, Time now);
  void FenceHungWorkers(Time now);
  bool HasOther(const Side& side) const;
  const Side& OwingSide(const SequenceState& sequence) const;
  void CheckWatch(uint64_t counter, Time now);
  Duration LimitOf(State state) const;
  void Await(SequenceState& sequence, Time now);
  void RestartWaits(Time now);
  void Watch(SequenceState& sequence, Time at);
  void Rewatch(SequenceState& sequence);
  // Sequences (dispatch.cc).
  void Dispatch(Time now);
  bool Assign(SequenceState& sequence, Time now);
  RoutingSnapshot SnapshotFor(const SequenceState& sequence, const RouteNeed& need, Time now) const;
  bool MayGo(SequenceState& sequence, Time now);
  bool AwaitWorkers(SequenceState& sequence, Time now);
  std::optional<Route> Choose(const SequenceState& sequence, const RouteNeed& need, Time now);
  void OpenDecode(SequenceState& sequence, Time now);
  void OpenPrefill(SequenceState& sequence, std::optional<HandoffTarget> handoff, Time now);
  void Requeue(SequenceState& sequence, int32_t refused_by, Time now);
  void Take(Side& side, int32_t worker, int64_t tokens);
  void Drop(Side& side);
  void ReleaseTokens(Side& side);
  void ReleaseAll(SequenceState& sequence);
  void EndRecovering(SequenceState& sequence);
  void FinishIfDone(SequenceState& sequence, Time now);
  void AwaitScore(SequenceState& sequence, Time now);
  void Fail(const SequenceState& sequence, absl::Status status);
  bool Holds(const SequenceState& sequence) const {
    return sequence.prefill.call != 0 || sequence.decode.call != 0;
  }
  RouteNeed NeedOf(const SequenceState& sequence) const;
  int32_t PromptLength(const SequenceState& sequence) const;
  int32_t NextPosition(const SequenceState& sequence) const;
  std::vector<int32_t> BaseTokens(const SequenceState& sequence) const;
  SamplingParams SamplingOf(const SequenceState& sequence) const;
  void LeaveQueue(RequestState& request);
  QueueKey KeyOf(const SequenceState& sequence) const;
  RouterAudit Audit(Time now) const;

  RouterNodeOptions options_;
  WorkerDirectory directory_;
  std::unique_ptr<RoutingPolicy> policy_;
  PrefixDirectory prefixes_;
  RouterOutbox& outbox_;

  std::map<uint64_t, RequestState> requests_;
  std::map<uint64_t, SequenceState> sequences_;  // By counter.
  std::set<QueueKey> queue_;                     // Queued sequences that hold nothing.
  std::set<QueueKey> holders_;                   // Queued sequences that hold one side.
  absl::flat_hash_map<CallId, uint64_t> calls_;  // Open calls -> sequence counter.
  Deadlines<uint64_t> deadlines_;                // Of requests.
  Deadlines<uint64_t> watches_;                  // Of sequences with open calls.
  Time retry_at_ = kNever;
  Time wake_due_ = kNever;        // When the last step asked to be woken.
  std::map<Route, Time> blamed_;  // Pairs, until when.
  double retry_credit_ = 0;       // Retries that the budget allows now.
  int32_t num_recovering_ = 0;
  uint64_t next_sequence_ = 1;
  CallId next_call_ = 1;
  int64_t queued_requests_ = 0;
  int64_t queued_tokens_ = 0;
  int64_t queued_bytes_ = 0;
  RouterCounters counters_;
};

}  // namespace baton
