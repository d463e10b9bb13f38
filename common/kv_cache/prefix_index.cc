#include "common/kv_cache/prefix_index.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/base/check.h"

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

bool PrefixIndex::Entry::Holds(const PrefixNode& its_parent, std::string_view its_tenant,
                               std::span<const int32_t> its_tokens) const {
  return parent == its_parent.serial && tenant == its_tenant &&
         std::ranges::equal(tokens, its_tokens);
}

PrefixNode PrefixIndex::Root(std::string_view tenant) const {
  return {.key = Hash(tenant.data(), tenant.size(), PrefixKey{}, secret_)};
}

PrefixKey PrefixIndex::Extend(const PrefixKey& parent,
                              std::span<const int32_t> block_tokens) const {
  return Hash(block_tokens.data(), block_tokens.size_bytes(), parent, secret_);
}

std::optional<PrefixIndex::Hit> PrefixIndex::Find(const PrefixNode& parent, std::string_view tenant,
                                                  std::span<const int32_t> block_tokens) const {
  const PrefixKey key = Extend(parent.key, block_tokens);
  auto it = entries_.find(key);
  if (it == entries_.end() || !it->second.Holds(parent, tenant, block_tokens)) return std::nullopt;
  return Hit{it->second.blocks, {key, it->second.serial}};
}

PrefixIndex::Insertion PrefixIndex::Insert(const PrefixNode& parent, std::string_view tenant,
                                           std::span<const int32_t> block_tokens, int32_t group,
                                           BlockId block) {
  const PrefixKey key = Extend(parent.key, block_tokens);
  auto [it, is_new] = entries_.try_emplace(key);
  Entry& entry = it->second;
  if (is_new) {
    entry = {.serial = next_serial_++,
             .parent = parent.serial,
             .tenant = std::string(tenant),
             .tokens = {block_tokens.begin(), block_tokens.end()}};
  } else if (!entry.Holds(parent, tenant, block_tokens)) {
    // Another prefix has the key. This one gets a serial that no entry has: nothing below it will
    // be found.
    return {.node = {key, next_serial_++}};
  }
  const auto place = static_cast<size_t>(group);
  if (entry.blocks.size() <= place) entry.blocks.resize(place + 1, -1);
  const bool inserted = entry.blocks[place] < 0;
  if (inserted) {
    entry.blocks[place] = block;
    ++num_blocks_;
  }
  return {.inserted = inserted, .node = {key, entry.serial}};
}

void PrefixIndex::Erase(const PrefixKey& key, BlockId block) {
  const auto entry = entries_.find(key);
  BATON_CHECK(entry != entries_.end());
  auto& blocks = entry->second.blocks;
  const auto found = std::ranges::find(blocks, block);
  BATON_CHECK(found != blocks.end());
  *found = -1;
  --num_blocks_;
  if (std::ranges::all_of(blocks, [](BlockId id) { return id < 0; })) entries_.erase(entry);
}

}  // namespace baton
