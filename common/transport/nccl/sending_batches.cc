#include "common/transport/nccl/sending_batches.h"

#include <utility>

#include "common/base/check.h"

namespace baton::nccl {

using Kind = Action::Kind;

bool SendingBatches::CanAnnounce(PairId pair) const {
  const Pair* found = pairs_.FindAlive(pair);
  if (found == nullptr) return false;
  // A batch that is over and not yet quiet still has a slot, and counts.
  return slots_.free() > 0 && found->batches.size() < static_cast<size_t>(kBatchesPerPair);
}

Actions SendingBatches::Announce(PairId pair, int num_frames) {
  BATON_CHECK(CanAnnounce(pair) && num_frames >= 1 && num_frames <= kMaxBatchFrames);
  Pair& p = pairs_.at(pair);
  const BatchKey key{pair, ++p.last_batch};
  p.batches[key.batch] = {.num_frames = num_frames, .slot = slots_.Take()};
  return {{.kind = Kind::kAnnounce, .key = key}};
}

SendingBatches::Batch* SendingBatches::Heard(BatchKey key, Actions* out) {
  if (pairs_.FindAlive(key.pair) == nullptr) return nullptr;
  Batch* batch = pairs_.Find(key);
  if (batch != nullptr && !batch->is_over) return batch;
  // An ack or a refusal is the last word on a batch.
  Condemn(key.pair, out);
  return nullptr;
}

void SendingBatches::Condemn(PairId pair, Actions* out) {
  out->push_back({.kind = Kind::kCondemn, .key = {pair, 0}});
  KillInto(pair, out);
}

void SendingBatches::SayReady(BatchKey key, const Batch& batch, Actions* out) const {
  out->push_back({.kind = Kind::kReady, .key = key, .grant = batch.grant, .sums = batch.sums});
}

Actions SendingBatches::OnGrant(BatchKey key, uint32_t grant) {
  Actions out;
  Batch* batch = Heard(key, &out);
  if (batch == nullptr) return out;
  if (batch->grant != 0 || grant <= batch->last_grant) {
    Condemn(key.pair, &out);
    return out;
  }
  batch->grant = batch->last_grant = grant;
  if (batch->gather == Gather::kDone) SayReady(key, *batch, &out);
  if (batch->gather == Gather::kNone) {
    batch->gather = Gather::kRunning;
    out.push_back({.kind = Kind::kGather, .key = key, .slot = batch->slot});
  }
  return out;
}

Actions SendingBatches::OnGathered(BatchKey key, std::vector<uint64_t> sums) {
  Actions out;
  Batch& batch = pairs_.at(key);
  batch.gather = Gather::kDone;
  batch.sums = std::move(sums);
  if (batch.is_over) {
    Settle(key);
  } else if (batch.grant != 0) {
    SayReady(key, batch, &out);
  }
  return out;
}

Actions SendingBatches::OnRevoke(BatchKey key, uint32_t grant) {
  Actions out;
  Batch* batch = Heard(key, &out);
  if (batch == nullptr) return out;
  if (batch->is_posted || grant == 0 || grant != batch->grant) {
    Condemn(key.pair, &out);
  } else {
    batch->grant = 0;
  }
  return out;
}

Actions SendingBatches::OnPosted(BatchKey key, uint32_t grant) {
  Actions out;
  Batch* batch = Heard(key, &out);
  if (batch == nullptr) return out;
  const bool was_ready = batch->gather == Gather::kDone && !batch->is_posted;
  if (!was_ready || grant == 0 || grant != batch->grant) {
    Condemn(key.pair, &out);
    return out;
  }
  batch->is_posted = true;
  out.push_back({.kind = Kind::kSend, .key = key, .slot = batch->slot});
  return out;
}

Actions SendingBatches::OnRefuse(BatchKey key) {
  Actions out;
  Batch* batch = Heard(key, &out);
  if (batch == nullptr) return out;
  if (batch->is_posted) {
    Condemn(key.pair, &out);
  } else {
    End(key, {}, &out);
  }
  return out;
}

Actions SendingBatches::OnAck(BatchKey key, const FrameSet& frames) {
  Actions out;
  Batch* batch = Heard(key, &out);
  if (batch == nullptr) return out;
  if (!batch->is_posted || (frames & ~FirstFrames(batch->num_frames)).any()) {
    Condemn(key.pair, &out);
  } else {
    End(key, frames, &out);
  }
  return out;
}

void SendingBatches::End(BatchKey key, const FrameSet& frames, Actions* out) {
  pairs_.at(key).is_over = true;
  out->push_back({.kind = Kind::kEnded, .key = key, .frames = frames});
  Settle(key);
}

void SendingBatches::OnSent(BatchKey key) {
  Batch* batch = pairs_.Find(key);
  if (batch == nullptr) return;  // Leaked.
  batch->is_sent = true;
  Settle(key);
}

void SendingBatches::Settle(BatchKey key) {
  Pair& pair = pairs_.at(key.pair);
  const Batch& batch = pairs_.at(key);
  if (!batch.is_over || batch.gather == Gather::kRunning) return;
  if (batch.is_posted && pair.stuck) {
    slots_.Leak(batch.slot);
  } else if (batch.is_posted && !(batch.is_sent && (pair.alive || pair.aborted))) {
    return;
  } else {
    slots_.Free(batch.slot);
  }
  pair.batches.erase(key.batch);
}

void SendingBatches::SettleAll(PairId id) {
  for (const BatchKey key : pairs_.KeysOf(id)) Settle(key);
}

Actions SendingBatches::Kill(PairId pair) {
  Actions out;
  KillInto(pair, &out);
  return out;
}

void SendingBatches::KillInto(PairId id, Actions* out) {
  Pair& pair = pairs_.at(id);
  if (!pair.alive) return;
  pair.alive = false;
  for (auto& [number, batch] : pair.batches) {
    if (!batch.is_over) out->push_back({.kind = Kind::kLost, .key = {id, number}});
    batch.is_over = true;
  }
  SettleAll(id);
}

void SendingBatches::OnAborted(PairId id) {
  pairs_.at(id).aborted = true;
  SettleAll(id);
}

void SendingBatches::OnAbortStuck(PairId id) {
  pairs_.at(id).stuck = true;
  SettleAll(id);
}

bool SendingBatches::DeadlineRuns(PairId id) const {
  const Pair* pair = pairs_.FindAlive(id);
  if (pair == nullptr) return false;
  for (const auto& [number, batch] : pair->batches) {
    const bool gathers = batch.gather == Gather::kRunning;
    if (gathers || (batch.is_posted && !(batch.is_over && batch.is_sent))) return true;
  }
  return false;
}

}  // namespace baton::nccl
