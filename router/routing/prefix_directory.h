#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace baton {

// Where prompt prefixes probably are cached: what this router assigned, corrected by what workers
// answered. A bounded memory of hashes, made whole at the start, least recently used forgotten
// first; a wrong entry costs time, never correctness. Workers whose indices are equal modulo 64 are
// not told apart.
class PrefixDirectory {
 public:
  static constexpr int32_t kChunkTokens = 64;  // Prefixes are remembered at multiples of this.

  static constexpr size_t kKeyChunks = 4;

  // max_entries >= 1.
  explicit PrefixDirectory(size_t max_entries);

  // The prompt's chained hashes, one per full chunk.
  static std::vector<uint64_t> Hashes(std::string_view tenant, std::span<const int32_t> tokens);

  // Of the first kKeyChunks chunks, or of those that there are; 0 without one.
  static uint64_t KeyOf(std::span<const uint64_t> hashes);

  // Leading tokens that the worker probably holds.
  int32_t MatchedTokens(std::span<const uint64_t> hashes, int32_t worker) const;

  // The worker now holds the whole prompt.
  void Add(std::span<const uint64_t> hashes, int32_t worker);

  // The worker restarted with an empty cache.
  void Forget(int32_t worker);

  size_t size() const { return index_.size(); }

 private:
  struct Entry {
    uint64_t hash = 0;
    uint64_t workers = 0;  // Bit w % 64: worker w.
    int32_t older = -1;    // Neighbours in order of use, as indices.
    int32_t newer = -1;
  };
  static uint64_t BitOf(int32_t worker) { return uint64_t{1} << (worker % 64); }
  int32_t TakeEntry(uint64_t hash);
  void Unlink(int32_t index);
  void LinkNewest(int32_t index);

  std::vector<Entry> entries_;                    // [max_entries]; the first size() are in use.
  absl::flat_hash_map<uint64_t, int32_t> index_;  // Hash -> index in entries_.
  int32_t oldest_ = -1;
  int32_t newest_ = -1;
};

}  // namespace baton
