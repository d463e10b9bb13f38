#include "common/kv_cache/prefix_index.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace baton {
namespace {

PrefixKey Hash(const void* data, size_t bytes, const PrefixKey& parent, uint64_t secret) {
  // The parent enters through both seeds, so that the chain keeps all of its 128 bits.
  const XXH128_hash_t h = XXH3_128bits_withSeed(data, bytes, secret ^ parent.lo);
  const uint64_t parent_words[4] = {h.high64, h.low64, parent.hi, secret};
  const XXH128_hash_t mixed = XXH3_128bits(parent_words, sizeof(parent_words));
  return {mixed.high64, mixed.low64};
}

}  // namespace

PrefixKey PrefixIndex::Root(std::string_view tenant) const {
  return Hash(tenant.data(), tenant.size(), PrefixKey{}, secret_);
}

PrefixKey PrefixIndex::Extend(const PrefixKey& parent,
                              std::span<const int32_t> block_tokens) const {
  return Hash(block_tokens.data(), block_tokens.size_bytes(), parent, secret_);
}

BlockId PrefixIndex::Find(const PrefixKey& key, const PrefixKey& parent,
                          std::span<const int32_t> block_tokens) const {
  auto it = entries_.find(key);
  if (it == entries_.end() || !(it->second.parent == parent) ||
      !std::ranges::equal(it->second.tokens, block_tokens)) {
    return -1;
  }
  return it->second.block;
}

bool PrefixIndex::Insert(const PrefixKey& key, const PrefixKey& parent,
                         std::span<const int32_t> block_tokens, BlockId block) {
  return entries_.try_emplace(key, Entry{block, parent, {block_tokens.begin(), block_tokens.end()}})
      .second;
}

void PrefixIndex::Erase(const PrefixKey& key) { entries_.erase(key); }

}  // namespace baton
