#include "common/kv_cache/block_manager.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {

BlockManager::SharedBlock BlockManager::TakeBlock() {
  auto block = std::make_shared<BlockTable>();
  BATON_CHECK(allocator_.Grow(*block, 1));
  return block;
}

const BlockManager::Sequence& BlockManager::Find(int64_t sequence) const {
  const auto found = sequences_.find(sequence);
  BATON_CHECK(found != sequences_.end());
  return found->second;
}

absl::StatusOr<BlockManager::NewTokens> BlockManager::Append(int64_t sequence, int32_t num_tokens) {
  const auto found = sequences_.find(sequence);
  const int32_t before = found == sequences_.end() ? 0 : found->second.num_tokens;
  if (num_tokens < 0 || num_tokens > INT32_MAX - before) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_tokens = ", num_tokens, ": must be in [0, ", INT32_MAX - before, "]"));
  }
  const int32_t block_size = allocator_.block_size();
  const bool copies =
      num_tokens > 0 && before % block_size != 0 && found->second.blocks.back().use_count() > 1;
  const int32_t needed = allocator_.BlocksFor(int64_t{before} + num_tokens) -
                         allocator_.BlocksFor(before) + (copies ? 1 : 0);
  if (needed > allocator_.num_available()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "sequence ", sequence, " needs ", needed, " blocks for ", num_tokens, " more tokens, ",
        allocator_.num_available(), " are free: end a sequence or make the pool larger"));
  }
  NewTokens out;
  Sequence& grown = sequences_[sequence];
  if (copies) {
    SharedBlock own = TakeBlock();
    out.copy = BlockPair{.source = IdOf(grown.blocks.back()), .destination = IdOf(own)};
    grown.blocks.back() = std::move(own);
  }
  for (int32_t i = 0; i < num_tokens; ++i, ++grown.num_tokens) {
    if (grown.num_tokens % block_size == 0) grown.blocks.push_back(TakeBlock());
    out.slots.push_back(int64_t{IdOf(grown.blocks.back())} * block_size +
                        grown.num_tokens % block_size);
  }
  return out;
}

absl::Status BlockManager::Fork(int64_t parent, int64_t child) {
  const auto found = sequences_.find(parent);
  if (found == sequences_.end()) {
    return absl::NotFoundError(absl::StrCat("parent = ", parent, ": must be a running sequence"));
  }
  if (!sequences_.emplace(child, found->second).second) {
    return absl::AlreadyExistsError(absl::StrCat("child = ", child, ": must be a new sequence"));
  }
  return absl::OkStatus();
}

absl::Status BlockManager::End(int64_t sequence) {
  if (sequences_.erase(sequence) == 1) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("sequence = ", sequence, ": must be a running sequence"));
}

int32_t BlockManager::num_tokens(int64_t sequence) const { return Find(sequence).num_tokens; }

std::vector<BlockId> BlockManager::Blocks(int64_t sequence) const {
  std::vector<BlockId> blocks;
  for (const SharedBlock& block : Find(sequence).blocks) blocks.push_back(IdOf(block));
  return blocks;
}

int64_t BlockManager::FragmentationBytes(const KvLayerGroup& group) const {
  const int64_t token_bytes =
      int64_t{group.num_kv_heads} * (group.k_dim + group.v_dim) * SizeOf(group.dtype);
  std::set<BlockId> counted;
  int64_t empty_tokens = 0;
  for (const auto& [id, sequence] : sequences_) {
    const int32_t filled = sequence.num_tokens % allocator_.block_size();
    if (filled == 0 || !counted.insert(IdOf(sequence.blocks.back())).second) continue;
    empty_tokens += allocator_.block_size() - filled;
  }
  return empty_tokens * token_bytes;
}

}  // namespace baton
