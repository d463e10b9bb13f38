#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv_cache/block_allocator.h"
#include "kernels/api/cache_args.h"

namespace baton {

// Where the tokens of sequences go, for a program that calls the operators without an Engine: a
// sequence takes a block exactly when its last one is full, and its blocks are free when it ends. A
// fork shares every block; who first writes to a shared one gets a copy of it (copy-on-write). Not
// thread-safe.
class BlockManager {
 public:
  // The allocator must outlive the manager.
  explicit BlockManager(BlockAllocator* allocator) : allocator_(*allocator) {}

  // Where new tokens go.
  struct NewTokens {
    std::vector<int64_t> slots;  // For ReshapeAndCache.
    // For CopyBlocks: to be made before the slots are written and before any sequence ends.
    std::optional<BlockPair> copy;
  };

  // Room for `num_tokens` >= 0 more tokens of a sequence, which begins here if it is unknown.
  // RESOURCE_EXHAUSTED when blocks are missing; nothing has changed then.
  absl::StatusOr<NewTokens> Append(int64_t sequence, int32_t num_tokens);

  // `child` becomes a sequence with the tokens of `parent`. NOT_FOUND, ALREADY_EXISTS.
  absl::Status Fork(int64_t parent, int64_t child);

  // NOT_FOUND.
  absl::Status End(int64_t sequence);

  // Of a sequence that is there: its tokens, and its row of a block table.
  int32_t num_tokens(int64_t sequence) const;
  std::vector<BlockId> Blocks(int64_t sequence) const;

  // Bytes of one layer that are held and empty: the sum over the sequences' last blocks of
  // (block_size - filled) tokens of K and V. A shared block counts once.
  int64_t FragmentationBytes(const KvLayerGroup& group) const;

 private:
  // One block; shared by the sequences that hold it.
  using SharedBlock = std::shared_ptr<BlockTable>;
  struct Sequence {
    int32_t num_tokens = 0;
    std::vector<SharedBlock> blocks;
  };

  SharedBlock TakeBlock();
  const Sequence& Find(int64_t sequence) const;
  static BlockId IdOf(const SharedBlock& block) { return block->blocks().front(); }

  BlockAllocator& allocator_;
  std::map<int64_t, Sequence> sequences_;
};

}  // namespace baton
