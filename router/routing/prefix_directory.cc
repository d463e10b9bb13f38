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

uint64_t PrefixDirectory::KeyOf(std::span<const uint64_t> hashes) {
  return hashes.empty() ? 0 : hashes[std::min(kKeyChunks, hashes.size()) - 1];
}

PrefixDirectory::PrefixDirectory(size_t max_entries) : entries_(max_entries) {
  index_.reserve(max_entries);
}

void PrefixDirectory::Unlink(int32_t index) {
  const Entry& entry = entries_[index];
  (entry.older < 0 ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer < 0 ? newest_ : entries_[entry.newer].older) = entry.older;
}

void PrefixDirectory::LinkNewest(int32_t index) {
  entries_[index].older = newest_;
  entries_[index].newer = -1;
  (newest_ < 0 ? oldest_ : entries_[newest_].newer) = index;
  newest_ = index;
}

// The hash's entry, or a new one in place of the one that was used longest ago.
int32_t PrefixDirectory::TakeEntry(uint64_t hash) {
  if (const auto it = index_.find(hash); it != index_.end()) {
    Unlink(it->second);
    return it->second;
  }
  int32_t index = static_cast<int32_t>(index_.size());
  if (index_.size() == entries_.size()) {
    index = oldest_;
    Unlink(index);
    index_.erase(entries_[index].hash);
  }
  entries_[index] = {.hash = hash};
  index_.emplace(hash, index);
  return index;
}

int32_t PrefixDirectory::MatchedTokens(std::span<const uint64_t> hashes, int32_t worker) const {
  int32_t matched = 0;
  for (uint64_t hash : hashes) {
    const auto it = index_.find(hash);
    if (it == index_.end() || !(entries_[it->second].workers & BitOf(worker))) break;
    matched += kChunkTokens;
  }
  return matched;
}

void PrefixDirectory::Add(std::span<const uint64_t> hashes, int32_t worker) {
  // The tail first, so that a prefix's head is forgotten last.
  for (size_t i = hashes.size(); i-- > 0;) {
    const int32_t index = TakeEntry(hashes[i]);
    entries_[index].workers |= BitOf(worker);
    LinkNewest(index);
  }
}

void PrefixDirectory::Forget(int32_t worker) {
  for (Entry& entry : entries_) entry.workers &= ~BitOf(worker);
}

}  // namespace baton
