#pragma once

#include <cstdint>
#include <vector>

#include "common/transport/nccl/batch_actions.h"
#include "common/transport/nccl/batch_pairs.h"

namespace baton::nccl {

// The batches of a decode rank, over all its pairs; as sending_batches.h. Tickets, epochs and
// ranges are the caller's: it names the frames that may still land.
//
// Receives of one pair at a time are posted: a posted receive holds the one NCCL stream of the
// GPU until its peer sends, and receives of several pairs could wait in a circle of ranks.
class ReceivingBatches {
 public:
  explicit ReceivingBatches(int slots) : slots_(slots) {}

  void AddPair(PairId pair) { pairs_.Add(pair); }
  // Of a dead pair, if nothing of it is under way. True: it is not there.
  bool RemovePair(PairId pair) { return pairs_.Remove(pair); }

  // What the prefill rank says. `live` are the frames that may land.
  Actions OnAnnounce(BatchKey key, int num_frames, const FrameSet& live);
  Actions OnReady(BatchKey key, uint32_t grant, std::vector<uint64_t> sums);

  // The tickets of these frames are over: they are not written any more. Not launched yet, that is.
  Actions DropFrames(BatchKey key, const FrameSet& frames);

  // The grant is unused for longer than others should wait.
  Actions OnGrantUnused(BatchKey key, uint32_t grant);

  // The receive is on the stream, or its pair is to be killed; in each case an event is behind it.
  // Before that of a pair's first one, too, when it has begun: it waits for the peer to send.
  Actions OnPosted(BatchKey key);
  Actions OnReceived(BatchKey key);
  Actions OnSummed(BatchKey key, const std::vector<uint64_t>& sums);
  // Of the frames to be scattered these were launched, and have landed.
  Actions OnScattered(BatchKey key, const FrameSet& committed);

  // As the sending side's. While an abort is under way, the stream is taken.
  Actions Kill(PairId pair);
  Actions OnAborted(PairId pair);
  // The receives of the pair stay on the stream for ever: the caller goes on with another stream.
  Actions OnAbortStuck(PairId pair);

  // The pair has granted or posted batches whose end depends on the peer.
  bool AwaitsPeer(PairId pair) const;

  int open(PairId pair) const { return pairs_.CountOpen(pair); }
  const StagingSlots& slots() const { return slots_; }

 private:
  enum class State : uint8_t {
    kWaiting,  // For a slot.
    kGranted,
    kReady,    // For its pair's turn.
    kPosting,  // NCCL may write the slot from here ..
    kPosted,
    kSumming,  // .. to here.
    kScattering,
  };
  struct Batch {
    State state = State::kWaiting;
    int num_frames = 0;
    int slot = -1;
    uint32_t last_grant = 0;
    FrameSet live;
    std::vector<uint64_t> sums;  // As the prefill rank says.
    bool is_received = false;
    bool is_over = false;  // It only waits for its slot to be quiet.
  };
  using Pair = BatchPairs<Batch>::Pair;

  void Condemn(PairId pair, Actions* out);
  void KillInto(PairId id, Actions* out);
  static bool IsInNccl(const Batch& batch) {
    return batch.state == State::kPosting || batch.state == State::kPosted;
  }
  void Ack(BatchKey key, const FrameSet& frames, Actions* out);
  void Refuse(BatchKey key, Actions* out);
  void Forget(BatchKey key);
  void Settle(BatchKey key);
  void SettleAll(PairId id);
  // Slots and the stream to who is next.
  void GoOn(Actions* out);
  void GrantNext(Actions* out);
  void PostNext(Actions* out);
  bool IsStreamTaken() const;
  // The pairs from the one behind `last` on, once around.
  std::vector<PairId> From(PairId last) const;

  StagingSlots slots_;
  BatchPairs<Batch> pairs_;
  PairId last_granted_ = -1;
  PairId last_posted_ = -1;
};

}  // namespace baton::nccl
