#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/kv_cache/block_types.h"
#include "common/kv_cache/prefix_index.h"

namespace baton {

class BlockAllocator;

// The blocks of one sequence, in order: block i holds tokens [i*block_size, (i+1)*block_size), or
// is -1 when the sequence's window has passed them and its block was given back. Move-only; holding
// one is holding the blocks, destruction returns them to the allocator, which must outlive it.
class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&& other) noexcept { *this = std::move(other); }
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;
  ~BlockTable() { Release(); }

  const std::vector<BlockId>& blocks() const { return blocks_; }
  int32_t size() const { return static_cast<int32_t>(blocks_.size()); }
  // Leading entries that are -1.
  int32_t num_passed() const { return num_passed_; }
  int32_t num_held() const { return size() - num_passed_; }
  // Leading entries whose content is final: passed, or full, verified and perhaps shared with other
  // tables. >= num_passed().
  int32_t num_sealed() const { return num_sealed_; }

  // Returns all blocks now. Sealed ones stay findable (CACHED), the others become FREE.
  void Release();

 private:
  friend class BlockAllocator;
  std::span<const BlockId> Held() const { return std::span(blocks_).subspan(num_passed_); }

  BlockAllocator* allocator_ = nullptr;
  std::vector<BlockId> blocks_;
  int32_t num_passed_ = 0;
  int32_t num_sealed_ = 0;
  bool findable_ = true;  // Sealed blocks may be found by prefix: all tokens before were here.
  PrefixNode last_node_;  // The prefix that ends with the last sealed block.
  bool draining_ = false;
};

// Hands out the blocks of one worker's pool and keeps the prefix cache. One thread (the node's);
// only epochs() is read from others. States and who holds a block in each are tabled in
// ARCHITECTURE.md; counts() sums to num_blocks at every moment.
class BlockAllocator {
 public:
  BlockAllocator(int32_t num_blocks, int32_t block_size, uint64_t hash_secret);
  ~BlockAllocator();

  int32_t block_size() const { return block_size_; }
  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t BlocksFor(int64_t num_tokens) const {
    return static_cast<int32_t>((num_tokens + block_size_ - 1) / block_size_);
  }
  // Blocks that Grow could give now: FREE and CACHED.
  int32_t num_available() const { return counts_.free + counts_.cached; }
  const BlockCounts& counts() const { return counts_; }
  const BlockEpochs& epochs() const { return epochs_; }

  // A table with the longest cached prefix of `tokens`, at most `max_tokens` of them, pinned. The
  // tokens are compared; the hash only finds. May be empty.
  BlockTable Match(std::string_view tenant, std::span<const int32_t> tokens, int32_t max_tokens);

  // Appends `count` blocks, RESERVED or FILLING, evicting least recently used cached ones.
  // False, and nothing changed, when fewer than `count` are available.
  bool Grow(BlockTable& table, int32_t count, bool reserved = false);

  // Starts an empty table, with `count` passed entries, behind tokens that will never be here. The
  // blocks that follow stay private, also with count 0: the first may lack its first tokens.
  void SkipFront(BlockTable& table, int32_t count);

  // Returns the blocks of the leading `count` entries, which are sealed and which nobody will read
  // through this table any more: the findable ones stay so (CACHED), the others become FREE.
  void ReleaseFront(BlockTable& table, int32_t count);

  // The reservation's writer has begun: RESERVED -> FILLING.
  void MarkFilling(BlockTable& table);

  // Tokens [0, tokens.size()) are written and verified: every full block becomes READY and, unless
  // the table began with skipped ones, findable. A block whose content is cached already stays
  // private.
  void Seal(BlockTable& table, std::string_view tenant, std::span<const int32_t> tokens);

  // The writer of the table's unsealed blocks is quiet and another one may come: they are RESERVED
  // again, under a new epoch, so that a late write of the old one is dropped.
  void Renew(BlockTable& table);

  // The table was given up while a transfer or a step may still touch it: its blocks that nobody
  // shares become DRAINING. Nothing is free until the table is released.
  void MarkDraining(BlockTable& table);

  // The table's blocks with their epochs, for a transfer; block -1 where it was passed.
  std::vector<BlockRef> Refs(const BlockTable& table) const;

  // Blocks neither free nor cached that none of `tables` holds: leaked ones.
  int32_t CountUnowned(const std::vector<const BlockTable*>& tables) const;

  // For tests: what may be done to the block's memory now.
  BlockState state(BlockId id) const { return blocks_[id].state; }

  // Checks every block against the counts, holders and lists; empty when all agree. For tests.
  std::string Audit() const;

 private:
  friend class BlockTable;
  using State = BlockState;
  struct Block {
    State state = State::kFree;
    int32_t holders = 0;
    bool indexed = false;  // In the prefix index under `key`.
    PrefixKey key;
    std::list<BlockId>::iterator lru;  // In lru_, when CACHED.
  };

  void SetState(BlockId id, State state);
  int32_t& CountOf(State state);
  BlockId TakeOne();
  void ReturnOne(BlockId id);

  int32_t block_size_;
  std::vector<Block> blocks_;
  BlockEpochs epochs_;
  BlockCounts counts_;
  std::vector<BlockId> free_;  // A stack.
  std::list<BlockId> lru_;     // CACHED, least recently used first.
  PrefixIndex index_;
};

}  // namespace baton
