#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/kv_cache/block_types.h"
#include "common/kv_cache/prefix_index.h"

namespace baton {

class BlockAllocator;

// The blocks of one sequence: a row for each group of layers (KvLayerGroup), all of the same
// length. Entry i of a row holds tokens [i*block_size, (i+1)*block_size), or is -1 when the group's
// window has passed them: its block was given back or never taken. Move-only; holding one is
// holding the blocks, destruction returns them to the allocator, which must outlive it.
class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&& other) noexcept { *this = std::move(other); }
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;
  ~BlockTable() { Release(); }

  const std::vector<BlockId>& blocks(int32_t group = 0) const { return rows_[group].blocks; }
  int32_t num_groups() const { return static_cast<int32_t>(rows_.size()); }
  // Entries of each row.
  int32_t size() const { return static_cast<int32_t>(rows_[0].blocks.size()); }
  // Leading entries of a row that are -1. Those that come are too, while it is more than size().
  int32_t num_passed(int32_t group = 0) const { return rows_[group].passed; }
  // Blocks, of all rows.
  int32_t num_held() const;
  // Leading entries whose content is final: passed, or full, verified and perhaps shared with other
  // tables.
  int32_t num_sealed() const { return num_sealed_; }
  // The rows' first `entries` entries, one row after the other.
  std::vector<BlockId> Flat(int32_t entries) const;

  // Returns all blocks now. Sealed ones stay findable (CACHED), the others become FREE.
  void Release();

 private:
  friend class BlockAllocator;
  struct Row {
    std::vector<BlockId> blocks;
    int32_t passed = 0;
    int32_t num_private = 0;  // Leading entries that may lack their first tokens: never findable.
  };
  template <typename Fn>
  void ForEachHeld(int32_t first, Fn fn) const {
    for (const Row& row : rows_) {
      for (int32_t i = std::max(first, row.passed); i < size(); ++i) fn(row.blocks[i]);
    }
  }

  BlockAllocator* allocator_ = nullptr;
  absl::InlinedVector<Row, 1> rows_ = absl::InlinedVector<Row, 1>(1);
  int32_t num_sealed_ = 0;
  bool findable_ = true;  // Sealed blocks may be found by prefix: all tokens before were here.
  PrefixNode last_node_;  // The prefix that ends with the last sealed entry.
  bool draining_ = false;
};

// What a prefix is looked for: to compute on from it; to hand the whole of `tokens` over too; or
// beside what a handoff of the whole of them brings.
enum class MatchFor : uint8_t { kCompute, kSend, kReceive };

// Hands out the blocks of one worker's pool and keeps the prefix cache. One thread (the node's);
// only epochs() is read from others. States and who holds a block in each are tabled in
// ARCHITECTURE.md; counts() sums to num_blocks at every moment.
class BlockAllocator {
 public:
  // `windows`: of each group of layers. Of several the first sees all tokens.
  BlockAllocator(int32_t num_blocks, int32_t block_size, uint64_t hash_secret,
                 std::vector<KvWindow> windows = {KvWindow{}});
  ~BlockAllocator();

  int32_t block_size() const { return block_size_; }
  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t BlocksFor(int64_t num_tokens) const {
    return static_cast<int32_t>((num_tokens + block_size_ - 1) / block_size_);
  }
  const std::vector<KvWindow>& windows() const { return windows_; }
  int32_t num_groups() const { return static_cast<int32_t>(windows_.size()); }
  // Of a sequence that the pool holds, with nothing passed.
  int64_t most_tokens() const { return int64_t{num_blocks() / num_groups()} * block_size_; }
  // Blocks that Grow could give now: FREE and CACHED.
  int32_t num_available() const { return counts_.free + counts_.cached; }
  const BlockCounts& counts() const { return counts_; }
  const BlockEpochs& epochs() const { return epochs_; }

  // A table with the longest cached prefix of `tokens`, at most `max_tokens` of them, pinned as far
  // as it serves, and for the first group from its start. The tokens are compared; the hash only
  // finds. May be empty.
  BlockTable Match(std::string_view tenant, std::span<const int32_t> tokens, int32_t max_tokens,
                   MatchFor purpose = MatchFor::kCompute);

  // What Grow would take.
  int32_t BlocksToGrow(const BlockTable& table, int32_t count) const;

  // Appends `count` entries to each row, their blocks RESERVED or FILLING, evicting least recently
  // used cached ones. False, and nothing changed, when fewer than BlocksToGrow are available.
  bool Grow(BlockTable& table, int32_t count, bool reserved = false);

  // `num_tokens` are computed, or will be before anything else is read: what no later query sees
  // goes from each row, and does not come where it is not here yet. Entries that go must be sealed;
  // the findable ones stay so (CACHED), the others become FREE. A row that begins behind tokens
  // which were never here keeps what may lack some private; if it is the first, all of the table.
  void Pass(BlockTable& table, int32_t num_tokens);

  // An empty table begins where `other` does, which may be another allocator's.
  void PassAs(BlockTable& table, const BlockTable& other);

  // The reservation's writer has begun: RESERVED -> FILLING.
  void MarkFilling(BlockTable& table);

  // Tokens [0, tokens.size()) are written and verified: every full block becomes READY and, unless
  // it or the table is private, findable. A block whose content is cached already stays private.
  void Seal(BlockTable& table, std::string_view tenant, std::span<const int32_t> tokens);

  // The writer of the table's unsealed blocks is quiet and another one may come: they are RESERVED
  // again, under a new epoch, so that a late write of the old one is dropped.
  void Renew(BlockTable& table);

  // The table was given up while a transfer or a step may still touch it: its blocks that nobody
  // shares become DRAINING. Nothing is free until the table is released.
  // With `stays_findable` sealed ones stay READY: nothing that is in flight writes them.
  void MarkDraining(BlockTable& table, bool stays_findable = false);

  // Somebody goes on with a table that was marked to stay findable: its DRAINING blocks are FILLING
  // again.
  void Revive(BlockTable& table);

  // As BlockTable::Flat of all entries, with their epochs, for a transfer; -1 where it was passed.
  std::vector<BlockRef> Refs(const BlockTable& table) const;

  // counts() as they would be without `tables`.
  BlockCounts CountsWithout(const std::vector<const BlockTable*>& tables) const;

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

  // Of a cached prefix, entries with what each group has of them.
  struct Found {
    std::vector<PrefixNode> nodes;
    std::vector<BlockId> blocks;  // [entries, groups]; -1 = none that may be given out.
  };
  Found Find(std::string_view tenant, std::span<const int32_t> tokens, size_t limit) const;
  // A prefix that is looked for.
  struct Wanted {
    int32_t num_tokens = 0;  // Of the whole prompt.
    MatchFor purpose = MatchFor::kCompute;
  };
  // The first of so many entries of a prefix that a group must have.
  int32_t FirstNeeded(int32_t group, int32_t entries, const Wanted& wanted) const;
  // The most leading entries of which each group has what it must.
  int32_t CountUsable(const Found& found, const Wanted& wanted) const;
  void Share(BlockId id);
  void Begin(BlockTable& table);

  void SetState(BlockId id, State state);
  static int32_t& CountOf(BlockCounts& counts, State state);
  BlockId TakeOne();
  void ReturnOne(BlockId id);

  int32_t block_size_;
  std::vector<KvWindow> windows_;
  std::vector<Block> blocks_;
  BlockEpochs epochs_;
  BlockCounts counts_;
  std::vector<BlockId> free_;  // A stack.
  std::list<BlockId> lru_;     // CACHED, least recently used first.
  PrefixIndex index_;
};

}  // namespace baton
