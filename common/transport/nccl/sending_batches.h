#pragma once

#include <cstdint>
#include <vector>

#include "common/transport/nccl/batch_actions.h"
#include "common/transport/nccl/batch_pairs.h"

namespace baton::nccl {

// The batches of a prefill rank, over all its pairs: what may be said and launched when. Knows no
// clock, no thread, no NCCL: each call tells it one event and returns what is to be done. Words for
// a pair that is dead are ignored; a word that does not fit condemns its pair.
//
// A batch has its slot from the announcement on. So a grant never waits for a slot of this side,
// and the two sides cannot hold slots that each other waits for.
class SendingBatches {
 public:
  explicit SendingBatches(int slots) : slots_(slots) {}

  void AddPair(PairId pair) { pairs_.Add(pair); }
  // Of a dead pair, if nothing of it is under way. True: it is not there.
  bool RemovePair(PairId pair) { return pairs_.Remove(pair); }

  // A slot is free, and the pair is alive and has room.
  bool CanAnnounce(PairId pair) const;
  // `num_frames` in 1 .. kMaxBatchFrames; only if CanAnnounce. The batch's number is in the action.
  Actions Announce(PairId pair, int num_frames);

  // What the decode rank says.
  Actions OnGrant(BatchKey key, uint32_t grant);
  Actions OnRevoke(BatchKey key, uint32_t grant);
  Actions OnPosted(BatchKey key, uint32_t grant);
  Actions OnRefuse(BatchKey key);
  Actions OnAck(BatchKey key, const FrameSet& frames);

  // Events of this rank's streams.
  Actions OnGathered(BatchKey key, std::vector<uint64_t> sums);
  void OnSent(BatchKey key);

  // The pair is dead: nothing of it is said or launched any more. What was launched keeps its slot:
  // a gather until its event, a send until its event and OnAborted, or for ever after OnAbortStuck.
  Actions Kill(PairId pair);
  void OnAborted(PairId pair);
  void OnAbortStuck(PairId pair);

  // A batch of the pair waits for work of either side and not for the other pairs of the decode
  // rank: the deadline runs. Otherwise only the peer's life counts.
  bool DeadlineRuns(PairId pair) const;

  // Announced and not over.
  int open(PairId pair) const { return pairs_.CountOpen(pair); }
  const StagingSlots& slots() const { return slots_; }

 private:
  enum class Gather : uint8_t { kNone, kRunning, kDone };
  struct Batch {
    int num_frames = 0;
    int slot = -1;
    uint32_t grant = 0;       // 0: none.
    uint32_t last_grant = 0;  // Of those so far.
    Gather gather = Gather::kNone;
    std::vector<uint64_t> sums;
    bool is_posted = false;  // NCCL may read the slot until is_sent.
    bool is_sent = false;
    bool is_over = false;  // It only waits for its slot to be quiet.
  };
  using Pair = BatchPairs<Batch>::Pair;

  // The batch of a word; null: to be ignored, or it was condemned for.
  Batch* Heard(BatchKey key, Actions* out);
  void Condemn(PairId pair, Actions* out);
  void KillInto(PairId id, Actions* out);
  void SayReady(BatchKey key, const Batch& batch, Actions* out) const;
  void End(BatchKey key, const FrameSet& frames, Actions* out);
  // Frees the slot, if nothing of this process touches it any more, and forgets the batch.
  void Settle(BatchKey key);
  void SettleAll(PairId id);

  StagingSlots slots_;
  BatchPairs<Batch> pairs_;
};

}  // namespace baton::nccl
