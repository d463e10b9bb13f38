#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/base/deadlines.h"
#include "common/node/node.h"
#include "common/node/router_mail.h"
#include "router/admission_queue.h"
#include "router/charges.h"
#include "router/client_output.h"
#include "router/frontend.h"
#include "router/node_options.h"
#include "router/open_calls.h"
#include "router/pair_choice.h"
#include "router/recovery.h"
#include "router/returns.h"
#include "router/room_claims.h"
#include "router/routing/prefix_directory.h"
#include "router/routing/routing_policy.h"
#include "router/sequence.h"
#include "router/waits.h"
#include "router/worker_directory.h"

namespace baton {

// The logic of the router: assignment to pairs, the calls there, the client's stream. Who waits for
// workers is AdmissionQueue's, which of them may take it PairChoice's, what waits for what Waits',
// what a loss costs Recovery's, what none is Returns', what the client sees ClientOutput's. The
// state table is in ARCHITECTURE.md. The outbox outlives it.
class RouterNode : public Node<RouterMail> {
 public:
  // Workers of these roles are listed from the start; others come as WorkerListed.
  RouterNode(const RouterNodeOptions& options, const std::vector<Role>& worker_roles,
             std::unique_ptr<RoutingPolicy> policy, RouterOutbox& outbox);

  void Handle(RouterMail mail, Time now) override;
  void Step(Time now) override;
  Time NextDeadline() const override;

  RouterView View() const;
  void Count(RouterView* view) const;  // Sets all of it but the workers.
  std::optional<AdmissionQueue::Full> Full(Time now) { return queue_.IsFull(now); }
  const RouterCounters& counters() const { return counters_; }
  // No request is live and no call is open.
  bool idle() const { return requests_.empty(); }

 private:
  using State = SequenceState::State;
  using Side = SequenceState::Side;

  struct RequestState {
    ValidRequest body;
    Time arrival{};
    Time deadline = kNever;
    std::vector<uint64_t> sequences;  // Live ones, by counter.
    std::vector<bool> cache_counted;  // [num_prompts]
    int32_t cached_tokens = 0;
  };

  // Clients (node.cc).
  void OnSubmit(ClientSubmit submit, Time now);
  absl::Status Admit(uint64_t key, const RequestState& request, Time now);
  void AddSequences(uint64_t key, RequestState& request, Time now);
  void OnStop(const ClientStop& stop, Time now);
  void EndRequest(uint64_t key, absl::Status status);
  void FinishIfDone(SequenceState& sequence, Time now);
  void AwaitScore(SequenceState& sequence, Time now);
  RouterAudit Audit(Time now) const;
  void CheckInvariants(uint64_t counter) const;
  // What links tell.
  void OnWorkerUp(const WorkerUp& up, Time now);
  // What calls tell (worker_events.cc).
  void OnWorkerEvent(WorkerEventReceived received, Time now);
  void OnReserved(SequenceState& sequence, const ReservedEvent& event, Time now);
  void OnScores(SequenceState& sequence, ScoresEvent event, Time now);
  void OnPrefilled(SequenceState& sequence, PrefilledEvent event, Time now);
  void NoteCached(SequenceState& sequence, int32_t cached_tokens);
  void OnTaken(SequenceState& sequence, int32_t cached_tokens);
  void OnDecoding(SequenceState& sequence);
  void OnTokens(SequenceState& sequence, TokensEvent event, Time now);
  void OnCallClosed(const CallClosed& closed, Time now);
  void OnDecodeClosed(SequenceState& sequence, const CallClosed& closed, Time now);
  void OnPrefillClosed(SequenceState& sequence, const absl::Status& status, Time now);
  // What is lost or does not come (losses.cc).
  void LoseDecode(SequenceState& sequence, absl::Status why, Time now);
  void LosePrefill(SequenceState& sequence, absl::Status why, Time now);
  void AwaitReturn(SequenceState& sequence, const CallClosed& closed, Time now);
  void OnReturnRefused(SequenceState& sequence, const absl::Status& why, Time now);
  void EndReturn(SequenceState& sequence, absl::Status why, Time now);
  void Enqueue(SequenceState& sequence, Time now);
  void LeaveWorkers(SequenceState& sequence, Time now);
  void FenceHungWorkers(Time now);
  void OnHandoffFailed(SequenceState& sequence, Time now);
  void ClimbLadder(SequenceState& sequence, Time now);
  void RebindTo(SequenceState& sequence, Incarnation prefill, Time now);
  void CheckWatch(uint64_t counter, Time now);
  void OnOverdue(SequenceState& sequence, Time now);
  // Giving sequences to workers and taking them back (dispatch.cc).
  void Dispatch(Time now);
  bool DispatchReturning(Time now);
  void Return(SequenceState& sequence, Time now);
  bool MayJoin(SequenceState& sequence, Time now);
  void Join(SequenceState& sequence, Time now);
  bool DispatchWaiting(Time now);
  bool Assign(SequenceState& sequence, Time now);
  bool MayGo(SequenceState& sequence, Time now);
  void StartAlone(SequenceState& sequence, const RouteNeed& need, int32_t worker, Time now);
  void OpenDecode(SequenceState& sequence, Time now);
  void OpenPrefill(SequenceState& sequence, std::optional<HandoffTarget> handoff, Time now);
  void Requeue(SequenceState& sequence, int32_t refused_by, Time now);
  void ReleaseAll(SequenceState& sequence);

  RouterNodeOptions options_;
  RouterCounters counters_;
  WorkerDirectory directory_;
  AdmissionQueue queue_;
  RoomClaims room_claims_;
  Waits waits_;
  Recovery recovery_;
  Returns returns_;
  PrefixDirectory prefixes_;
  PairChoice pairs_;
  Charges charges_;
  ClientOutput output_;
  OpenCalls calls_;
  RouterOutbox& outbox_;

  std::map<uint64_t, RequestState> requests_;
  std::map<uint64_t, SequenceState> sequences_;  // By counter.
  Deadlines<uint64_t> deadlines_;                // Of requests.
  Time retry_at_ = kNever;
  Time wake_due_ = kNever;  // When the last step asked to be woken.
  Time stepped_at_{};       // When that was.
  uint64_t next_sequence_ = 1;
};

}  // namespace baton
