#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/engine/call_table.h"
#include "common/engine/engine.h"
#include "common/engine/layer_progress.h"
#include "common/kv_cache/block_allocator.h"
#include "common/node/node.h"
#include "common/node/worker_mail.h"

namespace baton {

// What a worker's node is made of.
struct WorkerParts {
  Incarnation incarnation = 0;
  EngineOptions engine;
  const ModelInfo& model;
  BlockAllocator& allocator;
  ModelRunner& runner;
  KvTransport& transport;
  WorkerOutbox& outbox;
};

// What the nodes of both kinds of worker do alike: the calls of routers from their opening until
// nothing touches their blocks any more, what ends them in time, status and audit. A kind adds its
// states: `Entry` is its CallEntry, and says by kReceives on which side of transfers it is.
template <typename Entry, typename Mail, typename Counters>
class WorkerNode : public Node<Mail> {
 public:
  Time NextDeadline() const override {
    return std::min({calls_.NextDeadline(), progress_.next_look(), engine_.follow_up_due()});
  }
  virtual WorkerStatus Status() const {
    return calls_.Status(incarnation_, progress_, draining_);
  }
  WorkerAudit Audit(Time now) const {
    return calls_.Audit(incarnation_, now, transport_.OpenLegs());
  }
  const Counters& counters() const { return counters_; }
  // No call is live and no block is held.
  bool idle() const { return calls_.empty(); }
  // The step in flight does not go on, by what was looked at so far (LayerProgress).
  bool stands_still() const { return progress_.stands_still(); }

 protected:
  using State = typename Entry::State;

  // All that the parts refer to outlives this.
  explicit WorkerNode(const WorkerParts& parts)
      : incarnation_(parts.incarnation),
        model_(parts.model),
        allocator_(parts.allocator),
        transport_(parts.transport),
        outbox_(parts.outbox),
        engine_(parts.engine, parts.model, parts.allocator, parts.runner),
        calls_(parts.allocator, engine_) {}

  // ---- Mail that both kinds are told ----

  void On(const CallBroken& broken, Time) {
    Entry* entry = calls_.FindLive(broken.call);
    if (entry == nullptr) {
      ++counters_.stale_mail;
    } else {
      End(*entry);
    }
  }
  void On(const Drain&, Time) { draining_ = true; }
  void On(const WorkerAuditAsked& audit, Time now) { audit.answer(Audit(now)); }
  void On(const RowsDone& rows, Time now) { OnMark(rows.step, now); }

  void On(StepDone& done, Time now) {
    progress_.OnStepDone(now);
    for (SequenceProgress& progress : engine_.OnStepDone(std::move(done), now)) {
      Entry& entry = calls_.at(progress.call);
      BATON_CHECK(entry.in_engine());
      if (progress.released != nullptr) entry.sequence = std::move(progress.released);
      if (entry.state == State::kEnding) {
        EraseIfQuiet(entry);
      } else {
        OnProgress(entry, progress, now);
      }
    }
  }

  void On(const TransferEvent& event, Time now) {
    const auto it = tickets_.find(event.ticket);
    if (it == tickets_.end() || event.receiver != Entry::kReceives ||
        calls_.at(it->second).open_ticket != event.ticket) {
      ++counters_.stale_mail;
      return;
    }
    Entry& entry = calls_.at(it->second);
    CheckHeld(entry);
    if (event.kind == TransferEvent::Kind::kBegun) return OnTransferBegun(entry);
    tickets_.erase(it);
    entry.open_ticket = {};
    if (entry.state == State::kEnding) return EraseIfQuiet(entry);
    OnTransferEnded(entry, event, now);
  }

  // ---- What a kind adds to that ----

  virtual void OnProgress(Entry& entry, SequenceProgress& progress, Time now) = 0;
  virtual void OnTransferBegun(Entry& entry) = 0;
  virtual void OnTransferEnded(Entry& entry, const TransferEvent& event, Time now) = 0;
  // The call is given up: it is in no order of the kind's any more.
  virtual void Leave(const Entry& entry) = 0;
  // Nothing touches its blocks any more: it goes.
  virtual void Forget(const Entry& entry) = 0;
  virtual void CheckState(const Entry& entry) const = 0;

  // ---- Calls ----

  // Of a sequence whose K/V this worker can hold.
  int64_t MostTokens() const {
    return std::min<int64_t>(allocator_.most_tokens(), model_.max_model_len);
  }

  // Counts a call that was opened, and closes it unless its request is good.
  bool Refuses(CallId call, const absl::Status& status) {
    ++counters_.calls;
    if (status.ok()) return false;
    ++(absl::IsAlreadyExists(status) ? counters_.duplicates : counters_.refused);
    outbox_.Close(call, status);
    return true;
  }

  // Whether the step in flight is that one; if so it has moved on.
  bool OnMark(uint64_t step, Time now) {
    const StepPlan* plan = engine_.step_in_flight();
    const bool moves = plan != nullptr && plan->step == step;
    if (moves) {
      progress_.OnMark(now);
    } else {
      ++counters_.stale_mail;
    }
    return moves;
  }

  void FailHandoff(const Entry& entry, Attempt attempt, absl::string_view reason) {
    BATON_CHECK(entry.state != State::kEnding);
    ++counters_.handoffs_failed;
    outbox_.Emit(entry.call, HandoffFailedEvent{.attempt = attempt, .reason = std::string(reason)});
  }

  // Chunk by chunk, so that nothing grows with the prompt, in pieces that fit a message.
  void EmitScores(const Entry& entry, std::vector<PromptLogprob> logprobs) {
    ScoresEvent piece{.attempt = entry.attempt, .logprobs = {}};
    int32_t num_scores = 0;
    for (PromptLogprob& one : logprobs) {
      num_scores += NumScores(one);
      if (num_scores > kPieceScores && !piece.logprobs.empty()) {
        outbox_.Emit(entry.call, std::exchange(piece, {.attempt = entry.attempt, .logprobs = {}}));
        num_scores = NumScores(one);
      }
      piece.logprobs.push_back(std::move(one));
    }
    if (!piece.logprobs.empty()) outbox_.Emit(entry.call, std::move(piece));
  }

  // Ends the calls whose request's deadline has passed, and, counted, with `why` those that are in
  // their state for longer than it lasts.
  void EndOverdue(Time now, const absl::Status& why, int64_t* count) {
    while (Entry* entry = calls_.PastDeadline(now)) {
      Close(*entry, absl::DeadlineExceededError("the request's deadline has passed"));
    }
    while (Entry* entry = calls_.PastStateLimit(now)) {
      ++*count;
      Close(*entry, why);
    }
  }

  void StartStep(Time now) {
    engine_.StartStep(now);
    progress_.OnLook(now, engine_.step_in_flight() != nullptr);
  }

  // The last word on a call.
  void Close(Entry& entry, const absl::Status& status) {
    BATON_CHECK(entry.state != State::kEnding);
    outbox_.Close(entry.call, status);
    End(entry);
  }

  // Gives the call up: everything that may still touch its blocks is told to stop, and the call
  // goes once all of it has.
  void End(Entry& entry) {
    BATON_CHECK(entry.state != State::kEnding);
    entry.state = State::kEnding;
    Leave(entry);
    calls_.Retire(entry);
    if (entry.in_engine()) entry.sequence = engine_.Remove(entry.call);
    if (entry.transfer_open()) {
      if (!entry.in_engine()) allocator_.MarkDraining(entry.sequence->blocks);
      transport_.Abort(entry.open_ticket);
    }
    EraseIfQuiet(entry);
  }

  void EraseIfQuiet(Entry& entry) {
    BATON_CHECK(entry.state == State::kEnding && entry.state_limit == kNever);
    if (entry.in_engine() || entry.transfer_open()) return CheckHeld(entry);
    Forget(entry);
    calls_.Erase(entry);
  }

  // Between two pieces of mail a call holds what its state says (ARCHITECTURE.md, section 6).
  void CheckHeld(const Entry& entry) const {
    BATON_CHECK(!entry.transfer_open() || tickets_.at(entry.open_ticket) == entry.call);
    if (entry.state == State::kEnding) {
      BATON_CHECK(entry.in_engine() || entry.transfer_open());
      BATON_CHECK(entry.state_limit == kNever);
    }
    BATON_CHECK(&calls_.at(entry.call) == &entry);
    CheckState(entry);
  }

  const Incarnation incarnation_;
  const ModelInfo model_;
  BlockAllocator& allocator_;
  KvTransport& transport_;
  WorkerOutbox& outbox_;
  Engine engine_;
  CallTable<Entry> calls_;
  absl::flat_hash_map<TicketId, CallId> tickets_;  // Of open transfers, and of those to come.
  bool draining_ = false;
  LayerProgress progress_;
  Counters counters_;
};

}  // namespace baton
