#include "common/transport/nccl/receiving_batches.h"

#include <utility>

namespace baton::nccl {

using Kind = Action::Kind;

void ReceivingBatches::AddPair(PairId pair) { pairs_.try_emplace(pair); }

bool ReceivingBatches::RemovePair(PairId pair) {
  const auto it = pairs_.find(pair);
  if (it == pairs_.end()) return true;
  if (it->second.alive || !it->second.batches.empty()) return false;
  pairs_.erase(it);
  return true;
}

int ReceivingBatches::open(PairId pair) const {
  const auto it = pairs_.find(pair);
  if (it == pairs_.end()) return 0;
  int count = 0;
  for (const auto& [number, batch] : it->second.batches) count += !batch.is_over;
  return count;
}

void ReceivingBatches::Condemn(PairId pair, Actions* out) {
  out->push_back({.kind = Kind::kCondemn, .key = {pair, 0}});
  KillInto(pair, out);
}

Actions ReceivingBatches::OnAnnounce(BatchKey key, int num_frames, const FrameSet& live) {
  Actions out;
  const auto it = pairs_.find(key.pair);
  if (it == pairs_.end() || !it->second.alive) return out;
  Pair& pair = it->second;
  if (key.batch != pair.last_batch + 1 || num_frames < 1 || num_frames > kMaxBatchFrames ||
      pair.batches.size() >= static_cast<size_t>(kBatchesPerPair)) {
    Condemn(key.pair, &out);
    return out;
  }
  pair.last_batch = key.batch;
  pair.batches[key.batch] = {.num_frames = num_frames, .live = live & FirstFrames(num_frames)};
  if (pair.batches[key.batch].live.none()) Refuse(key, &out);
  GoOn(&out);
  return out;
}

Actions ReceivingBatches::OnReady(BatchKey key, uint32_t grant, std::vector<uint64_t> sums) {
  Actions out;
  const auto it = pairs_.find(key.pair);
  if (it == pairs_.end() || !it->second.alive) return out;
  const auto found = it->second.batches.find(key.batch);
  if (found == it->second.batches.end()) {
    // It crossed a refusal, if there ever was such a batch.
    if (key.batch == 0 || key.batch > it->second.last_batch) Condemn(key.pair, &out);
    return out;
  }
  Batch& batch = found->second;
  // It crossed a revocation: the slot of that grant may have another batch by now.
  const bool is_old = grant < batch.last_grant ||
                      (grant == batch.last_grant && batch.state == State::kWaiting);
  if (grant != 0 && is_old) return out;
  if (batch.state != State::kGranted || grant != batch.last_grant ||
      sums.size() != static_cast<size_t>(batch.num_frames)) {
    Condemn(key.pair, &out);
    return out;
  }
  batch.sums = std::move(sums);
  batch.state = State::kReady;
  GoOn(&out);
  return out;
}

Actions ReceivingBatches::DropFrames(BatchKey key, const FrameSet& frames) {
  Actions out;
  const auto it = pairs_.find(key.pair);
  if (it == pairs_.end() || !it->second.alive) return out;
  const auto found = it->second.batches.find(key.batch);
  if (found == it->second.batches.end()) return out;
  Batch& batch = found->second;
  batch.live &= ~frames;
  if (batch.live.none() && batch.state < State::kPosting) {
    Refuse(key, &out);
    GoOn(&out);
  }
  return out;
}

Actions ReceivingBatches::OnGrantUnused(BatchKey key, uint32_t grant) {
  Actions out;
  const auto it = pairs_.find(key.pair);
  if (it == pairs_.end() || !it->second.alive) return out;
  const auto found = it->second.batches.find(key.batch);
  if (found == it->second.batches.end()) return out;
  Batch& batch = found->second;
  if (batch.state != State::kGranted || batch.last_grant != grant) return out;
  bool others_wait = false;
  for (const auto& [id, pair] : pairs_) {
    for (const auto& [number, other] : pair.batches) {
      others_wait |= id != key.pair && !other.is_over && other.state == State::kWaiting;
    }
  }
  if (!others_wait) return out;
  out.push_back({.kind = Kind::kRevoke, .key = key, .grant = grant});
  slots_.Free(batch.slot);
  batch.slot = -1;
  batch.state = State::kWaiting;
  last_granted_ = key.pair;  // The others come first.
  GoOn(&out);
  return out;
}

Actions ReceivingBatches::OnPosted(BatchKey key) {
  Batch& batch = Launched(key);
  batch.state = State::kPosted;
  if (batch.is_over) return {};
  return {{.kind = Kind::kPosted, .key = key, .grant = batch.last_grant}};
}

Actions ReceivingBatches::OnReceived(BatchKey key) {
  Actions out;
  const auto pair = pairs_.find(key.pair);
  if (pair == pairs_.end()) return out;
  const auto found = pair->second.batches.find(key.batch);
  if (found == pair->second.batches.end()) return out;  // Leaked.
  Batch& batch = found->second;
  batch.is_received = true;
  if (batch.is_over) {
    Settle(key);
  } else {
    batch.state = State::kSumming;
    out.push_back({.kind = Kind::kSum, .key = key, .slot = batch.slot});
  }
  GoOn(&out);
  return out;
}

Actions ReceivingBatches::OnSummed(BatchKey key, const std::vector<uint64_t>& sums) {
  Actions out;
  Batch& batch = Launched(key);
  if (batch.is_over) {
    Forget(key);
    GoOn(&out);
    return out;
  }
  FrameSet spoiled;
  for (int i = 0; i < batch.num_frames; ++i) {
    if (batch.live[i] && sums[i] != batch.sums[i]) spoiled.set(i);
  }
  if (spoiled.any()) out.push_back({.kind = Kind::kSpoiled, .key = key, .frames = spoiled});
  batch.live &= ~spoiled;
  batch.state = State::kScattering;
  if (batch.live.none()) {
    Ack(key, {}, &out);
    GoOn(&out);
  } else {
    out.push_back(
        {.kind = Kind::kScatter, .key = key, .slot = batch.slot, .frames = batch.live});
  }
  return out;
}

Actions ReceivingBatches::OnScattered(BatchKey key, const FrameSet& committed) {
  Actions out;
  if (Launched(key).is_over) {
    Forget(key);
  } else {
    Ack(key, committed, &out);
  }
  GoOn(&out);
  return out;
}

void ReceivingBatches::Ack(BatchKey key, const FrameSet& frames, Actions* out) {
  out->push_back({.kind = Kind::kAck, .key = key, .frames = frames});
  Forget(key);
}

void ReceivingBatches::Refuse(BatchKey key, Actions* out) {
  out->push_back({.kind = Kind::kRefuse, .key = key});
  Forget(key);
}

void ReceivingBatches::Forget(BatchKey key) {
  auto& batches = pairs_.at(key.pair).batches;
  const int slot = batches.at(key.batch).slot;
  if (slot >= 0) slots_.Free(slot);
  batches.erase(key.batch);
}

void ReceivingBatches::Settle(BatchKey key) {
  Pair& pair = pairs_.at(key.pair);
  const Batch& batch = pair.batches.at(key.batch);
  if (!batch.is_over || batch.state > State::kPosted) return;  // A kernel's event settles it.
  if (IsInNccl(batch) && pair.stuck) {
    slots_.Leak(batch.slot);
    pair.batches.erase(key.batch);
  } else if (!IsInNccl(batch) || (batch.is_received && pair.aborted)) {
    Forget(key);
  }
}

void ReceivingBatches::SettleAll(PairId id) {
  std::vector<uint64_t> numbers;
  for (const auto& [number, batch] : pairs_.at(id).batches) numbers.push_back(number);
  for (const uint64_t number : numbers) Settle({id, number});
}

Actions ReceivingBatches::Kill(PairId pair) {
  Actions out;
  KillInto(pair, &out);
  return out;
}

void ReceivingBatches::KillInto(PairId id, Actions* out) {
  Pair& pair = pairs_.at(id);
  if (!pair.alive) return;
  pair.alive = false;
  for (auto& [number, batch] : pair.batches) batch.is_over = true;
  SettleAll(id);
  GoOn(out);
}

Actions ReceivingBatches::OnAborted(PairId id) {
  Actions out;
  pairs_.at(id).aborted = true;
  SettleAll(id);
  GoOn(&out);
  return out;
}

Actions ReceivingBatches::OnAbortStuck(PairId id) {
  Actions out;
  pairs_.at(id).stuck = true;
  SettleAll(id);
  GoOn(&out);
  return out;
}

void ReceivingBatches::GoOn(Actions* out) {
  GrantNext(out);
  PostNext(out);
}

std::vector<PairId> ReceivingBatches::From(PairId last) const {
  std::vector<PairId> order;
  for (auto it = pairs_.upper_bound(last); it != pairs_.end(); ++it) order.push_back(it->first);
  for (const auto& [id, pair] : pairs_) {
    if (id <= last) order.push_back(id);
  }
  return order;
}

void ReceivingBatches::GrantNext(Actions* out) {
  for (bool granted = true; granted && slots_.free() > 0;) {
    granted = false;
    for (const PairId id : From(last_granted_)) {
      Batch* next = nullptr;
      BatchKey key{id, 0};
      for (auto& [number, batch] : pairs_.at(id).batches) {
        if (next != nullptr || batch.is_over || batch.state != State::kWaiting) continue;
        next = &batch;
        key.batch = number;
      }
      if (next == nullptr) continue;
      next->slot = slots_.Take();
      next->state = State::kGranted;
      last_granted_ = id;
      out->push_back({.kind = Kind::kGrant, .key = key, .grant = ++next->last_grant});
      granted = true;
      break;
    }
  }
}

bool ReceivingBatches::IsStreamTaken() const {
  for (const auto& [id, pair] : pairs_) {
    for (const auto& [number, batch] : pair.batches) {
      if (IsInNccl(batch)) return true;
    }
  }
  return false;
}

void ReceivingBatches::PostNext(Actions* out) {
  if (IsStreamTaken()) return;
  for (const PairId id : From(last_posted_)) {
    bool posts = false;
    for (auto& [number, batch] : pairs_.at(id).batches) {
      if (batch.is_over || batch.state != State::kReady) continue;
      batch.state = State::kPosting;
      out->push_back({.kind = Kind::kReceive, .key = {id, number}, .slot = batch.slot});
      posts = true;
    }
    if (!posts) continue;
    last_posted_ = id;
    return;
  }
}

bool ReceivingBatches::AwaitsPeer(PairId id) const {
  const auto pair = pairs_.find(id);
  if (pair == pairs_.end() || !pair->second.alive) return false;
  for (const auto& [number, batch] : pair->second.batches) {
    if (batch.state == State::kGranted || IsInNccl(batch)) return true;
  }
  return false;
}

}  // namespace baton::nccl
