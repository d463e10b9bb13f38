#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/engine/call_table.h"
#include "common/engine/engine.h"
#include "common/engine/layer_progress.h"
#include "common/kv_cache/block_allocator.h"
#include "common/node/node.h"
#include "common/node/worker_mail.h"
#include "common/transport/kv_transport.h"

namespace baton {

struct DecodeNodeOptions {
  Incarnation incarnation = 0;
  std::vector<DataRank> ranks;  // Where prefill workers connect.
  EngineOptions engine;
  // A reservation whose transfer failed waits this long for a Rebind.
  Duration unbound_limit = std::chrono::seconds(5);
  // A Rebind waits this long for the old writer to be quiet (T_abort).
  Duration abort_limit = std::chrono::seconds(2);
};

// Secrets and names that a decode worker gives away; injected, so that a simulation replays.
struct DecodeIdentity {
  std::function<TicketId()> new_ticket;                // Never the same twice, not guessable.
  std::function<PairKey(Incarnation prefill)> key_of;  // Key of the pair with that sender.
};

struct DecodeCounters : WorkerCounters {
  int64_t refused_full = 0;     // Of those refused, for want of blocks.
  int64_t revoked = 0;          // Reservations taken back before their transfer began.
  int64_t rebinds = 0;          // Rebind requests that were taken.
  int64_t computed_here = 0;    // Of those, prompts to be computed here.
  int64_t unbound_expired = 0;  // Reservations given up because no Rebind came or worked in time.
  int64_t handoff_bytes = 0;    // Payload received.
};

// The logic of a decode worker: reserves blocks before prefill starts, takes the KV that arrives,
// decodes in a continuous batch, preempts the youngest when blocks run out. Its state table is in
// ARCHITECTURE.md. Everything passed by reference outlives it.
class DecodeNode : public Node<WorkerMail> {
 public:
  DecodeNode(const DecodeNodeOptions& options, DecodeIdentity identity, const ModelInfo& model,
             BlockAllocator& allocator, ModelRunner& runner, KvTransport& transport,
             WorkerOutbox& outbox);

  void Handle(WorkerMail mail, Time now) override;
  void Step(Time now) override;
  Time NextDeadline() const override {
    return std::min(calls_.NextDeadline(), progress_.next_look());
  }

  WorkerStatus Status() const {
    return calls_.Status(options_.incarnation, progress_, draining_);
  }
  WorkerAudit Audit(Time now) const {
    return calls_.Audit(options_.incarnation, now, transport_.OpenLegs());
  }
  const DecodeCounters& counters() const { return counters_; }
  int64_t num_preemptions() const { return engine_.num_preemptions(); }
  int64_t num_swaps() const { return engine_.num_swaps(); }
  // For tests: what may be done to swapped-out blocks now; null without swapping.
  const BlockAllocator* host_pool() const { return engine_.host_pool(); }
  // No call is live and no block is held.
  bool idle() const { return calls_.empty(); }

 private:
  // One Decode call. Its limit is that of state kUnbound.
  struct Entry : CallEntry {
    // Unbound: no transfer may use the blocks any more; the old one is ending, or a Rebind is due.
    enum class State : uint8_t { kReserved, kReceiving, kUnbound, kRunning, kEnding };
    static constexpr const char* kStateNames[] = {"RESERVED", "RECEIVING", "UNBOUND", "RUNNING",
                                                  "ENDING"};
    State state = State::kReserved;
    std::optional<Incarnation> rebind;  // Asked for, and waiting for the old writer to be quiet.
    bool revoked = false;
  };
  using State = Entry::State;

  void OnOpened(DecodeOpened opened, Time now);
  void OnBroken(const CallBroken& broken);
  absl::Status Admissible(const DecodeRequest& request) const;
  // Pins the cached prefix and reserves the rest, both as far as the model's window sees them; an
  // empty table when there is no room.
  BlockTable Reserve(const DecodeRequest& request);
  // Posts the entry's blocks under a new ticket and tells the router.
  void Invite(Entry& entry, Incarnation prefill);
  void OnRebind(const RebindRequest& request, Time now);
  void Unbind(Entry& entry, Time until);
  void Bind(Entry& entry);
  void ComputeHere(Entry& entry);
  // What the prefill worker tells of the first token is what this one could have sampled itself.
  absl::Status CheckFirst(const Sequence& sequence, const TokenOutput& first) const;
  void OnTransfer(const TransferEvent& event, Time now);
  void OnVerified(Entry& entry, const TransferEvent& event);
  void OnStepDone(StepDone done, Time now);
  // Takes the youngest reservation back: one that is younger than `needy` and that nobody writes to
  // yet. When `needy` is alone, so that nobody can be preempted for it, also an older one, then one
  // that is being written and younger. True while one is coming back.
  bool RevokeReservation(const AgeKey& needy, bool alone);
  void EmitToken(const Entry& entry, const TokenOutput& output);
  // Gives the entry up: everything that may still touch its blocks is told to stop, and the entry
  // goes once all of it has.
  void End(Entry& entry);
  void EraseIfQuiet(Entry& entry);
  // Between two pieces of mail a call holds what its state says (ARCHITECTURE.md, section 6).
  void CheckHeld(const Entry& entry) const;

  DecodeNodeOptions options_;
  DecodeIdentity identity_;
  ModelInfo model_;
  BlockAllocator& allocator_;
  KvTransport& transport_;
  WorkerOutbox& outbox_;
  Engine engine_;

  CallTable<Entry> calls_;
  std::map<AgeKey, CallId> reserved_;              // kReserved and kUnbound, oldest first.
  std::map<AgeKey, CallId> receiving_;             // State kReceiving, oldest first.
  absl::flat_hash_map<TicketId, CallId> tickets_;  // Of open transfers.
  int32_t num_revoked_draining_ = 0;
  bool draining_ = false;
  LayerProgress progress_;
  DecodeCounters counters_;
};

}  // namespace baton
