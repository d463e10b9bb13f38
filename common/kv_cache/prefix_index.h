#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/kv_cache/kv_layout.h"

namespace baton {

// Names a prefix that ends at a block boundary: a keyed 128-bit hash chained over its blocks and
// salted by the tenant. Equal prefixes have equal keys; unequal ones are told apart by comparing
// tokens.
struct PrefixKey {
  uint64_t hi = 0;
  uint64_t lo = 0;
  bool operator==(const PrefixKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const PrefixKey& key) {
    return H::combine(std::move(h), key.hi, key.lo);
  }
};

// Finds the block that holds a known prefix's last block of tokens. Holds no blocks itself: the
// allocator inserts and erases.
class PrefixIndex {
 public:
  explicit PrefixIndex(uint64_t secret) : secret_(secret) {}

  // Key of the empty prefix of a tenant.
  PrefixKey Root(std::string_view tenant) const;
  // Key of the prefix that extends `parent` by one full block of tokens.
  PrefixKey Extend(const PrefixKey& parent, std::span<const int32_t> block_tokens) const;

  // The block for `key`, or -1. It is a hit only if the parent's key and the tokens are the same.
  BlockId Find(const PrefixKey& key, const PrefixKey& parent,
               std::span<const int32_t> block_tokens) const;
  // False when the key is present already.
  bool Insert(const PrefixKey& key, const PrefixKey& parent, std::span<const int32_t> block_tokens,
              BlockId block);
  void Erase(const PrefixKey& key);
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    BlockId block = -1;
    PrefixKey parent;
    std::vector<int32_t> tokens;  // [block_size]
  };
  uint64_t secret_;
  absl::flat_hash_map<PrefixKey, Entry> entries_;
};

}  // namespace baton
