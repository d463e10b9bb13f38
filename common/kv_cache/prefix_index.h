#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "common/kv_cache/kv_layout.h"

namespace baton {

// Where a prefix that ends at a block boundary is looked for: a keyed 128-bit hash chained over its
// blocks and salted by the tenant. Equal prefixes have equal keys; unequal ones may.
struct PrefixKey {
  uint64_t hi = 0;
  uint64_t lo = 0;
  bool operator==(const PrefixKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const PrefixKey& key) {
    return H::combine(std::move(h), key.hi, key.lo);
  }
};

// A prefix itself. Serials are given once per distinct prefix and never again, so equal serials of
// one tenant are equal tokens from the first on, whatever the hash does.
struct PrefixNode {
  PrefixKey key;
  uint64_t serial = 0;  // 0 = the empty prefix.
};

// Finds the blocks, one for each group of layers at most, that hold a known prefix's last block of
// tokens. The hash only finds: tenant, parent and tokens decide. Holds no blocks itself: the
// allocator inserts and erases.
class PrefixIndex {
 public:
  explicit PrefixIndex(uint64_t secret) : secret_(secret) {}

  struct Hit {
    std::span<const BlockId> blocks;  // By group, -1 = none, as those behind the last. Until the
                                      // index changes.
    PrefixNode node;
  };
  struct Insertion {
    bool inserted = false;
    PrefixNode node;  // To go on from, in either case.
  };

  // The empty prefix of a tenant.
  PrefixNode Root(std::string_view tenant) const;
  // What extends `parent` by one full block of tokens.
  std::optional<Hit> Find(const PrefixNode& parent, std::string_view tenant,
                          std::span<const int32_t> block_tokens) const;
  // Not inserted when the prefix has a block of this group already, or another one has its key; the
  // block then stays private.
  Insertion Insert(const PrefixNode& parent, std::string_view tenant,
                   std::span<const int32_t> block_tokens, int32_t group, BlockId block);
  // The block of a prefix. The prefix goes with its last one.
  void Erase(const PrefixKey& key, BlockId block);
  size_t num_blocks() const { return num_blocks_; }

 private:
  struct Entry {
    absl::InlinedVector<BlockId, 2> blocks;  // By group; at least one is not -1.
    uint64_t serial = 0;
    uint64_t parent = 0;  // Its serial.
    std::string tenant;
    std::vector<int32_t> tokens;  // [block_size]
    bool Holds(const PrefixNode& parent, std::string_view tenant,
               std::span<const int32_t> tokens) const;
  };
  PrefixKey Extend(const PrefixKey& parent, std::span<const int32_t> block_tokens) const;

  uint64_t secret_;
  uint64_t next_serial_ = 1;
  size_t num_blocks_ = 0;
  absl::flat_hash_map<PrefixKey, Entry> entries_;
};

}  // namespace baton
