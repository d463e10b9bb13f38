#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/transport/nccl/batch_actions.h"

namespace baton::nccl {

// The pairs of a rank, each with the batches of one side. `Batch` has is_over.
template <typename Batch>
class BatchPairs {
 public:
  struct Pair {
    bool alive = true;
    bool aborted = false;
    bool stuck = false;
    uint64_t last_batch = 0;
    std::map<uint64_t, Batch> batches;
  };

  void Add(PairId id) { pairs_.try_emplace(id); }
  // Of a dead pair, if nothing of it is under way. True: it is not there.
  bool Remove(PairId id) {
    const auto it = pairs_.find(id);
    if (it == pairs_.end()) return true;
    if (it->second.alive || !it->second.batches.empty()) return false;
    pairs_.erase(it);
    return true;
  }

  Pair& at(PairId id) { return pairs_.at(id); }
  Batch& at(BatchKey key) { return at(key.pair).batches.at(key.batch); }
  // Null: it is dead, or not there.
  Pair* FindAlive(PairId id) {
    const auto it = pairs_.find(id);
    return it != pairs_.end() && it->second.alive ? &it->second : nullptr;
  }
  const Pair* FindAlive(PairId id) const { return const_cast<BatchPairs*>(this)->FindAlive(id); }
  Batch* FindAlive(BatchKey key) { return FindAlive(key.pair) ? Find(key) : nullptr; }
  // Of a pair that may be dead; null: it is not there.
  Batch* Find(BatchKey key) {
    const auto pair = pairs_.find(key.pair);
    if (pair == pairs_.end()) return nullptr;
    const auto batch = pair->second.batches.find(key.batch);
    return batch == pair->second.batches.end() ? nullptr : &batch->second;
  }

  int CountOpen(PairId id) const {
    const auto it = pairs_.find(id);
    if (it == pairs_.end()) return 0;
    int count = 0;
    for (const auto& [number, batch] : it->second.batches) count += !batch.is_over;
    return count;
  }
  std::vector<BatchKey> KeysOf(PairId id) const {
    std::vector<BatchKey> keys;
    for (const auto& [number, batch] : pairs_.at(id).batches) keys.push_back({id, number});
    return keys;
  }
  // In order of id.
  const std::map<PairId, Pair>& all() const { return pairs_; }

 private:
  std::map<PairId, Pair> pairs_;
};

}  // namespace baton::nccl
