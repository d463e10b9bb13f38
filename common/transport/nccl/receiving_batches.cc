#include "common/transport/nccl/receiving_batches.h"

#include <utility>

namespace baton::nccl {

using Kind = Action::Kind;

void ReceivingBatches::Condemn(PairId pair, Actions* out) {
  out->push_back({.kind = Kind::kCondemn, .key = {pair, 0}});
  KillInto(pair, out);
}

Actions ReceivingBatches::OnAnnounce(BatchKey key, int num_frames, const FrameSet& live) {
  Actions out;
  Pair* pair = pairs_.FindAlive(key.pair);
  if (pair == nullptr) return out;
  if (key.batch != pair->last_batch + 1 || num_frames < 1 || num_frames > kMaxBatchFrames ||
      pair->batches.size() >= static_cast<size_t>(kBatchesPerPair)) {
    Condemn(key.pair, &out);
    return out;
  }
  pair->last_batch = key.batch;
  pair->batches[key.batch] = {.num_frames = num_frames, .live = live & FirstFrames(num_frames)};
  if (pair->batches[key.batch].live.none()) Refuse(key, &out);
  GoOn(&out);
  return out;
}

Actions ReceivingBatches::OnReady(BatchKey key, uint32_t grant, std::vector<uint64_t> sums) {
  Actions out;
  Pair* pair = pairs_.FindAlive(key.pair);
  if (pair == nullptr) return out;
  Batch* found = pairs_.Find(key);
  if (found == nullptr) {
    // It crossed a refusal, if there ever was such a batch.
    if (key.batch == 0 || key.batch > pair->last_batch) Condemn(key.pair, &out);
    return out;
  }
  Batch& batch = *found;
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
  Batch* batch = pairs_.FindAlive(key);
  if (batch == nullptr) return out;
  batch->live &= ~frames;
  if (batch->live.none() && batch->state < State::kPosting) {
    Refuse(key, &out);
    GoOn(&out);
  }
  return out;
}

Actions ReceivingBatches::OnGrantUnused(BatchKey key, uint32_t grant) {
  Actions out;
  Batch* found = pairs_.FindAlive(key);
  if (found == nullptr) return out;
  Batch& batch = *found;
  if (batch.state != State::kGranted || batch.last_grant != grant) return out;
  bool others_wait = false;
  for (const auto& [id, pair] : pairs_.all()) {
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
  Batch* batch = pairs_.Find(key);
  if (batch == nullptr) return {};  // Leaked.
  if (batch->state == State::kPosted) return {};  // Said when it had begun.
  batch->state = State::kPosted;
  if (batch->is_over) return {};
  return {{.kind = Kind::kPosted, .key = key, .grant = batch->last_grant}};
}

Actions ReceivingBatches::OnReceived(BatchKey key) {
  Actions out;
  Batch* found = pairs_.Find(key);
  if (found == nullptr) return out;  // Leaked.
  Batch& batch = *found;
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
  Batch& batch = pairs_.at(key);
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
  if (pairs_.at(key).is_over) {
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
  const Batch& batch = pairs_.at(key);
  if (!batch.is_over || batch.state > State::kPosted) return;  // A kernel's event settles it.
  if (IsInNccl(batch) && pair.stuck) {
    slots_.Leak(batch.slot);
    pair.batches.erase(key.batch);
  } else if (!IsInNccl(batch) || (batch.is_received && pair.aborted)) {
    Forget(key);
  }
}

void ReceivingBatches::SettleAll(PairId id) {
  for (const BatchKey key : pairs_.KeysOf(id)) Settle(key);
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
  const auto& all = pairs_.all();
  for (auto it = all.upper_bound(last); it != all.end(); ++it) order.push_back(it->first);
  for (const auto& [id, pair] : all) {
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
  for (const auto& [id, pair] : pairs_.all()) {
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
  const Pair* pair = pairs_.FindAlive(id);
  if (pair == nullptr) return false;
  for (const auto& [number, batch] : pair->batches) {
    if (batch.state == State::kGranted || IsInNccl(batch)) return true;
  }
  return false;
}

}  // namespace baton::nccl
