#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace baton {

// Where prompt prefixes probably are cached: what this router assigned, corrected by what workers
// answered. A bounded memory of hashes, least recently used forgotten first; a wrong entry costs
// time, never correctness.
class PrefixDirectory {
 public:
  static constexpr int32_t kChunkTokens = 64;  // Prefixes are remembered at multiples of this.

  explicit PrefixDirectory(size_t max_entries) : max_entries_(max_entries) {}

  // The prompt's chained hashes, one per full chunk.
  static std::vector<uint64_t> Hashes(std::string_view tenant, std::span<const int32_t> tokens);

  // Leading tokens that the worker probably holds.
  int32_t MatchedTokens(std::span<const uint64_t> hashes, int32_t worker) const;

  // The worker now holds the whole prompt.
  void Add(std::span<const uint64_t> hashes, int32_t worker);

  // The worker answered that it held `cached_tokens` only: forgets what was believed beyond.
  void Correct(std::span<const uint64_t> hashes, int32_t worker, int32_t cached_tokens);

  // The worker restarted with an empty cache.
  void Forget(int32_t worker);

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::vector<int32_t> workers;
    std::list<uint64_t>::iterator lru;
  };
  size_t max_entries_;
  absl::flat_hash_map<uint64_t, Entry> entries_;
  std::list<uint64_t> lru_;  // Least recently added first.
};

}  // namespace baton
