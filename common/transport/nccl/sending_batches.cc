#include "common/transport/nccl/sending_batches.h"

#include <utility>

#include "common/base/check.h"

namespace baton::nccl {

using Kind = Action::Kind;

void SendingBatches::AddPair(PairId pair) { pairs_.try_emplace(pair); }

bool SendingBatches::RemovePair(PairId pair) {
  const auto it = pairs_.find(pair);
  if (it == pairs_.end()) return true;
  if (it->second.alive || !it->second.batches.empty()) return false;
  pairs_.erase(it);
  return true;
}

int SendingBatches::open(PairId pair) const {
  const auto it = pairs_.find(pair);
  if (it == pairs_.end()) return 0;
  int count = 0;
  for (const auto& [number, batch] : it->second.batches) count += !batch.is_over;
  return count;
}

bool SendingBatches::CanAnnounce(PairId pair) const {
  const auto it = pairs_.find(pair);
  if (it == pairs_.end() || !it->second.alive) return false;
  // A batch that is over and not yet quiet still has a slot, and counts.
  return slots_.free() > 0 && it->second.batches.size() < static_cast<size_t>(kBatchesPerPair);
}

Actions SendingBatches::Announce(PairId pair, int num_frames) {
  BATON_CHECK(CanAnnounce(pair) && num_frames >= 1 && num_frames <= kMaxBatchFrames);
  Pair& p = pairs_.at(pair);
  const BatchKey key{pair, ++p.last_batch};
  p.batches[key.batch] = {.num_frames = num_frames, .slot = slots_.Take()};
  return {{.kind = Kind::kAnnounce, .key = key}};
}

SendingBatches::Batch* SendingBatches::Heard(BatchKey key, Actions* out) {
  const auto pair = pairs_.find(key.pair);
  if (pair == pairs_.end() || !pair->second.alive) return nullptr;
  const auto batch = pair->second.batches.find(key.batch);
  if (batch != pair->second.batches.end() && !batch->second.is_over) return &batch->second;
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
  Batch& batch = pairs_.at(key.pair).batches.at(key.batch);
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
  pairs_.at(key.pair).batches.at(key.batch).is_over = true;
  out->push_back({.kind = Kind::kEnded, .key = key, .frames = frames});
  Settle(key);
}

void SendingBatches::OnSent(BatchKey key) {
  const auto pair = pairs_.find(key.pair);
  if (pair == pairs_.end()) return;
  const auto batch = pair->second.batches.find(key.batch);
  if (batch == pair->second.batches.end()) return;  // Leaked.
  batch->second.is_sent = true;
  Settle(key);
}

void SendingBatches::Settle(BatchKey key) {
  Pair& pair = pairs_.at(key.pair);
  const Batch& batch = pair.batches.at(key.batch);
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
  std::vector<uint64_t> numbers;
  for (const auto& [number, batch] : pairs_.at(id).batches) numbers.push_back(number);
  for (const uint64_t number : numbers) Settle({id, number});
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
  const auto pair = pairs_.find(id);
  if (pair == pairs_.end() || !pair->second.alive) return false;
  for (const auto& [number, batch] : pair->second.batches) {
    const bool gathers = batch.gather == Gather::kRunning;
    if (gathers || (batch.is_posted && !(batch.is_over && batch.is_sent))) return true;
  }
  return false;
}

}  // namespace baton::nccl
