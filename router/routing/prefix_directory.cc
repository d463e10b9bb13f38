#include "router/routing/prefix_directory.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace baton {

std::vector<uint64_t> PrefixDirectory::Hashes(std::string_view tenant,
                                              std::span<const int32_t> tokens) {
  std::vector<uint64_t> hashes;
  uint64_t parent = XXH3_64bits(tenant.data(), tenant.size());
  for (size_t at = 0; at + kChunkTokens <= tokens.size(); at += kChunkTokens) {
    parent = XXH3_64bits_withSeed(tokens.data() + at, kChunkTokens * sizeof(int32_t), parent);
    hashes.push_back(parent);
  }
  return hashes;
}

int32_t PrefixDirectory::MatchedTokens(std::span<const uint64_t> hashes, int32_t worker) const {
  int32_t matched = 0;
  for (uint64_t hash : hashes) {
    auto it = entries_.find(hash);
    if (it == entries_.end() || !std::ranges::count(it->second.workers, worker)) break;
    matched += kChunkTokens;
  }
  return matched;
}

void PrefixDirectory::Add(std::span<const uint64_t> hashes, int32_t worker) {
  // The tail first, so that a prefix's head is forgotten last.
  for (size_t i = hashes.size(); i-- > 0;) {
    auto [it, is_new] = entries_.try_emplace(hashes[i]);
    Entry& entry = it->second;
    if (!is_new) lru_.erase(entry.lru);
    entry.lru = lru_.insert(lru_.end(), hashes[i]);
    if (!std::ranges::count(entry.workers, worker)) entry.workers.push_back(worker);
  }
  while (entries_.size() > max_entries_) {
    entries_.erase(lru_.front());
    lru_.pop_front();
  }
}

void PrefixDirectory::Correct(std::span<const uint64_t> hashes, int32_t worker,
                              int32_t cached_tokens) {
  for (size_t i = cached_tokens / kChunkTokens; i < hashes.size(); ++i) {
    auto it = entries_.find(hashes[i]);
    if (it != entries_.end()) std::erase(it->second.workers, worker);
  }
}

void PrefixDirectory::Forget(int32_t worker) {
  for (auto& [hash, entry] : entries_) std::erase(entry.workers, worker);
}

}  // namespace baton
