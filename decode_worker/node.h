#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/deadlines.h"
#include "common/engine/worker_node.h"
#include "common/kv_cache/block_allocator.h"
#include "common/node/worker_mail.h"
#include "common/transport/kv_transport.h"

namespace baton {

struct DecodeNodeOptions {
  std::vector<DataRank> ranks;  // Where prefill workers connect.
  // A reservation whose transfer failed waits this long for a Rebind.
  Duration unbound_limit = std::chrono::seconds(5);
  // Own prompts are refused where they and older ones take longer, at their measured rate, and more
  // than a step.
  Duration own_prompts_limit = std::chrono::milliseconds(500);
  // An answer whose session ended may return to its blocks for this long. Longer than routers try.
  Duration park_limit = std::chrono::seconds(2);
  // A Rebind waits this long for the old writer to be quiet (T_abort).
  Duration abort_limit = std::chrono::seconds(2);
};

// Secrets and names that a decode worker gives away; injected, so that a simulation replays.
struct DecodeIdentity {
  std::function<TicketId()> new_ticket;                // Never the same twice, not guessable.
  std::function<PairKey(Incarnation prefill)> key_of;  // Key of the pair with that sender.
};

struct DecodeCounters : WorkerCounters {
  int64_t revoked = 0;          // Reservations taken back before their transfer began.
  int64_t rebinds = 0;          // Rebind requests that were taken.
  int64_t computed_here = 0;    // Prompts computed here, after a Rebind or from the start.
  int64_t joined = 0;           // Further choices of a prompt whose K/V was here.
  int64_t returned = 0;         // Answers that went on here in another session.
  int64_t resumed = 0;          // Of those, with nothing to compute again: they had been parked.
  int64_t parked = 0;           // Answers that were kept when their session ended.
  int64_t unbound_expired = 0;  // Reservations given up because no Rebind came or worked in time.
};

// One Decode call. Its limit is that of state kUnbound.
struct DecodeEntry : CallEntry {
  // Unbound: no transfer may use the blocks any more; the old one is ending, or a Rebind is due.
  // Parked: the call has ended, and another may go on with the blocks.
  enum class State : uint8_t { kReserved, kReceiving, kUnbound, kRunning, kParked, kEnding };
  static constexpr const char* kStateNames[] = {"RESERVED", "RECEIVING", "UNBOUND",
                                                "RUNNING",  "PARKED",    "ENDING"};
  static constexpr bool kReceives = true;
  State state = State::kReserved;
  std::optional<Incarnation> rebind;  // Asked for, and waiting for the old writer to be quiet.
  std::vector<TokenOutput> told;      // The last few: the router may not have heard them.
  Time parked_until = kNever;
};

extern template class WorkerNode<DecodeEntry, DecodeMail, DecodeCounters>;

// The logic of a decode worker: reserves blocks before prefill starts, takes the KV that arrives,
// decodes in a continuous batch, preempts the youngest when blocks run out. Its state table is in
// ARCHITECTURE.md.
class DecodeNode : public WorkerNode<DecodeEntry, DecodeMail, DecodeCounters> {
 public:
  DecodeNode(const WorkerParts& parts, const DecodeNodeOptions& options, DecodeIdentity identity);

  void Handle(DecodeMail mail, Time now) override;
  void Step(Time now) override;
  Time NextDeadline() const override {
    return std::min(WorkerNode::NextDeadline(), parked_limits_.Next());
  }
  // What is parked counts as free: it is given up for whoever needs blocks.
  WorkerStatus Status() const override;

  int64_t num_preemptions() const { return engine_.num_preemptions(); }
  int64_t num_swaps() const { return engine_.num_swaps(); }
  int64_t num_copied_tokens() const { return engine_.num_copied_tokens(); }
  // For tests: what may be done to swapped-out blocks now; null without swapping.
  const BlockAllocator* host_pool() const { return engine_.host_pool(); }

 private:
  using Entry = DecodeEntry;

  void OnOpened(DecodeOpened opened, Time now);
  absl::Status Admissible(const DecodeRequest& request) const;
  // Pins the cached prefix and reserves the rest, both as far as the model's window sees them.
  // RESOURCE_EXHAUSTED when there is no room, or others wait for it, or a prompt is not to be
  // computed here now;
  // FAILED_PRECONDITION when nobody is to bring or compute it, and it is not here.
  absl::StatusOr<BlockTable> Reserve(const DecodeRequest& request, Time now);
  absl::Status CheckOwn(const DecodeRequest& request, int32_t num_missing, Time now) const;
  void CountOwn(const DecodeRequest& request);
  // Posts the entry's blocks under a new ticket and tells the router.
  void Invite(Entry& entry, Incarnation prefill);
  void OnRebind(const RebindRequest& request, Time now);
  void Unbind(Entry& entry, Time until);
  void Bind(Entry& entry);
  void ComputeHere(Entry& entry);
  void Run(Entry& entry, bool computes_prompt);
  // What the prefill worker tells of the first token is what this one could have sampled itself.
  absl::Status CheckFirst(const Sequence& sequence, const TokenOutput& first) const;
  void OnTransferBegun(Entry& entry) override;
  void OnTransferEnded(Entry& entry, const TransferEvent& event, Time now) override;
  void OnVerified(Entry& entry, const TransferEvent& event);
  void OnProgress(Entry& entry, SequenceProgress& progress, Time now) override;
  // Takes the youngest reservation back: one that is younger than `needy` and that nobody writes to
  // yet. When `needy` is alone, so that nobody can be preempted for it, also an older one, then one
  // that is being written and younger. True while one is coming back.
  bool RevokeReservation(const AgeKey& needy, bool alone);
  void EmitToken(Entry& entry, const TokenOutput& output);

  // ---- Answers whose session ended (parking.cc) ----

  void OnBroken(const CallBroken& broken, Time now);
  bool MayPark(const Entry& entry) const;
  void Park(Entry& entry, Time now);
  // No step touches its blocks any more.
  void Settle(Entry& entry);
  const Sequence& SequenceOf(const Entry& parked) const;
  // What goes on exactly there, if that is parked and no older one waits for blocks; else null.
  Entry* FindParked(const DecodeRequest& request);
  bool GoesOnFrom(const Entry& parked, const DecodeRequest& request) const;
  void Resume(Entry& parked, DecodeOpened opened, Time now);
  void Unpark(Entry& entry);
  void UnparkOf(const SequenceId& sequence);
  // Gives up what is parked, the youngest first, until that has brought a block. False: it has not.
  bool ReclaimParked();

  void Leave(const Entry& entry) override;
  void Forget(const Entry& entry) override;
  void CheckState(const Entry& entry) const override;

  const DecodeNodeOptions options_;
  const DecodeIdentity identity_;
  std::map<AgeKey, CallId> reserved_;   // kReserved and kUnbound, oldest first.
  std::map<AgeKey, CallId> receiving_;  // State kReceiving, oldest first.
  std::map<SequenceId, CallId> parked_;  // One of a sequence: a newer call has it, or ends it.
  Deadlines<CallId> parked_limits_;
  CallId revoked_ = 0;  // Of the reservation whose blocks are coming back; 0 = none is.
};

}  // namespace baton
