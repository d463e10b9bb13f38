#include "common/kv_cache/block_allocator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace baton {

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  Release();
  allocator_ = std::exchange(other.allocator_, nullptr);
  rows_ = std::exchange(other.rows_, absl::InlinedVector<Row, 1>(1));
  num_sealed_ = std::exchange(other.num_sealed_, 0);
  findable_ = std::exchange(other.findable_, true);
  last_node_ = std::exchange(other.last_node_, {});
  draining_ = std::exchange(other.draining_, false);
  return *this;
}

int32_t BlockTable::num_held() const {
  int32_t held = 0;
  for (const Row& row : rows_) held += std::max(0, size() - row.passed);
  return held;
}

std::vector<BlockId> BlockTable::Flat(int32_t entries) const {
  std::vector<BlockId> flat;
  flat.reserve(rows_.size() * entries);
  for (const Row& row : rows_) {
    flat.insert(flat.end(), row.blocks.begin(), row.blocks.begin() + entries);
  }
  return flat;
}

void BlockTable::Release() {
  // Last entry first: the LRU list then evicts a prefix's tail before its head.
  for (int32_t i = size() - 1; i >= 0; --i) {
    for (auto row = rows_.rbegin(); row != rows_.rend(); ++row) {
      if (i >= row->passed) allocator_->ReturnOne(row->blocks[i]);
    }
  }
  for (Row& row : rows_) {
    row.blocks.clear();
    row.passed = row.num_private = 0;
  }
  num_sealed_ = 0;
  findable_ = true;
  last_node_ = {};
  draining_ = false;
}

BlockAllocator::BlockAllocator(int32_t num_blocks, int32_t block_size, uint64_t hash_secret,
                               std::vector<KvWindow> windows)
    : block_size_(block_size),
      windows_(std::move(windows)),
      blocks_(num_blocks),
      epochs_(num_blocks),
      index_(hash_secret) {
  BATON_CHECK(num_blocks > 0 && block_size > 0 && !windows_.empty());
  BATON_CHECK(windows_.size() == 1 || windows_[0].tokens == 0);
  counts_.free = num_blocks;
  free_.reserve(num_blocks);
  for (BlockId id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
}

BlockAllocator::~BlockAllocator() {
  // A table that outlives its allocator would return blocks into freed memory.
  BATON_CHECK(num_available() == num_blocks());
}

int32_t& BlockAllocator::CountOf(BlockCounts& counts, State state) {
  switch (state) {
    case State::kFree:
      return counts.free;
    case State::kReserved:
      return counts.reserved;
    case State::kFilling:
      return counts.filling;
    case State::kReady:
      return counts.ready;
    case State::kCached:
      return counts.cached;
    case State::kDraining:
      break;
  }
  return counts.draining;
}

void BlockAllocator::SetState(BlockId id, State state) {
  BATON_CHECK(CountOf(counts_, blocks_[id].state) > 0);
  --CountOf(counts_, blocks_[id].state);
  blocks_[id].state = state;
  ++CountOf(counts_, state);
}

BlockAllocator::Found BlockAllocator::Find(std::string_view tenant, std::span<const int32_t> tokens,
                                           size_t limit) const {
  Found found;
  PrefixNode node = index_.Root(tenant);
  for (size_t at = 0; at + block_size_ <= limit; at += block_size_) {
    const std::optional<PrefixIndex::Hit> hit =
        index_.Find(node, tenant, tokens.subspan(at, block_size_));
    if (!hit) break;
    const size_t begin = found.blocks.size();
    found.blocks.resize(begin + windows_.size(), -1);
    for (size_t g = 0; g < hit->blocks.size(); ++g) {
      const BlockId id = hit->blocks[g];
      // A DRAINING block is still findable but no longer given out: its holder is ending.
      if (id >= 0 && blocks_[id].state != State::kDraining) found.blocks[begin + g] = id;
    }
    if (found.blocks[begin] < 0) break;
    node = hit->node;
    found.nodes.push_back(node);
  }
  return found;
}

int32_t BlockAllocator::FirstNeeded(int32_t group, int32_t entries, const Wanted& wanted) const {
  // The first says which tokens came before, also where it has a window.
  if (group == 0) return 0;
  const int32_t seen = TokensBehindWindow(windows_[group].tokens, entries * block_size_);
  const int32_t sent = TokensLeftOut(windows_[group], wanted.num_tokens);
  int32_t first = seen;
  if (wanted.purpose == MatchFor::kSend) first = std::min(seen, sent);
  if (wanted.purpose == MatchFor::kReceive) first = std::max(seen, sent);
  return std::min(entries, first / block_size_);
}

int32_t BlockAllocator::CountUsable(const Found& found, const Wanted& wanted) const {
  const auto num_found = static_cast<int32_t>(found.nodes.size());
  if (num_groups() == 1) return num_found;
  std::vector<int32_t> begins(num_groups(), 0);  // Of the blocks on end that a group has.
  int32_t usable = 0;
  for (int32_t i = 0; i < num_found; ++i) {
    bool all = true;
    for (int32_t g = 0; g < num_groups(); ++g) {
      if (found.blocks[int64_t{i} * num_groups() + g] < 0) begins[g] = i + 1;
      all = all && begins[g] <= FirstNeeded(g, i + 1, wanted);
    }
    if (all) usable = i + 1;
  }
  return usable;
}

void BlockAllocator::Share(BlockId id) {
  Block& block = blocks_[id];
  if (block.state == State::kCached) {
    lru_.erase(block.lru);
    SetState(id, State::kReady);
  }
  BATON_CHECK(block.state == State::kReady && block.indexed);
  ++block.holders;
}

void BlockAllocator::Begin(BlockTable& table) {
  BATON_CHECK(table.allocator_ == nullptr || table.allocator_ == this);
  table.allocator_ = this;
  table.rows_.resize(windows_.size());
}

BlockTable BlockAllocator::Match(std::string_view tenant, std::span<const int32_t> tokens,
                                 int32_t max_tokens, MatchFor purpose) {
  const size_t limit = std::min<size_t>(tokens.size(), max_tokens > 0 ? max_tokens : 0);
  const Found found = Find(tenant, tokens, limit);
  const Wanted wanted{static_cast<int32_t>(tokens.size()), purpose};
  const int32_t entries = CountUsable(found, wanted);
  BlockTable table;
  Begin(table);
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable::Row& row = table.rows_[g];
    row.passed = FirstNeeded(g, entries, wanted);
    row.blocks.assign(entries, -1);
    for (int32_t i = row.passed; i < entries; ++i) {
      Share(row.blocks[i] = found.blocks[int64_t{i} * num_groups() + g]);
    }
  }
  table.num_sealed_ = entries;
  table.last_node_ = entries == 0 ? index_.Root(tenant) : found.nodes[entries - 1];
  return table;
}

BlockId BlockAllocator::TakeOne() {
  BlockId id;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else {
    id = lru_.front();
    lru_.pop_front();
    index_.Erase(blocks_[id].key, id);
    blocks_[id].indexed = false;
  }
  BATON_CHECK(std::exchange(blocks_[id].holders, 1) == 0);
  epochs_[id].fetch_add(1, std::memory_order_release);
  return id;
}

int32_t BlockAllocator::BlocksToGrow(const BlockTable& table, int32_t count) const {
  int32_t needed = 0;
  for (int32_t g = 0; g < num_groups(); ++g) {
    const int32_t passed = g < table.num_groups() ? table.rows_[g].passed : 0;
    needed += std::max(0, table.size() + count - std::max(table.size(), passed));
  }
  return needed;
}

bool BlockAllocator::Grow(BlockTable& table, int32_t count, bool reserved) {
  BATON_CHECK(count >= 0 && !table.draining_);
  if (BlocksToGrow(table, count) > num_available()) return false;
  Begin(table);
  const int32_t first = table.size();
  for (BlockTable::Row& row : table.rows_) {
    for (int32_t i = first; i < first + count; ++i) {
      const BlockId id = i < row.passed ? -1 : TakeOne();
      if (id >= 0) SetState(id, reserved ? State::kReserved : State::kFilling);
      row.blocks.push_back(id);
    }
  }
  return true;
}

void BlockAllocator::Pass(BlockTable& table, int32_t num_tokens) {
  BATON_CHECK(!table.draining_);
  Begin(table);
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable::Row& row = table.rows_[g];
    const int32_t left_out = TokensLeftOut(windows_[g], num_tokens);
    const int32_t passed = left_out / block_size_;
    for (int32_t i = std::min(passed, table.size()) - 1; i >= row.passed; --i) {
      BATON_CHECK(i < table.num_sealed_);
      ReturnOne(std::exchange(row.blocks[i], -1));
    }
    row.passed = std::max(row.passed, passed);
    if (passed >= table.size() && left_out % block_size_ != 0) row.num_private = passed + 1;
  }
  const BlockTable::Row& first = table.rows_[0];
  if (std::max(first.passed, first.num_private) > table.size()) table.findable_ = false;
}

void BlockAllocator::PassAs(BlockTable& table, const BlockTable& other) {
  BATON_CHECK(table.size() == 0 && other.num_groups() == num_groups());
  Begin(table);
  for (int32_t g = 0; g < num_groups(); ++g) {
    table.rows_[g].passed = other.rows_[g].passed;
    table.rows_[g].num_private = other.rows_[g].num_private;
  }
  table.findable_ = other.findable_ && other.rows_[0].passed == 0;
}

void BlockAllocator::MarkFilling(BlockTable& table) {
  table.ForEachHeld(0, [this](BlockId id) {
    if (blocks_[id].state == State::kReserved) SetState(id, State::kFilling);
  });
}

void BlockAllocator::Seal(BlockTable& table, std::string_view tenant,
                          std::span<const int32_t> tokens) {
  BATON_CHECK(table.size() >= static_cast<int32_t>(tokens.size()) / block_size_);
  if (table.num_sealed_ == 0) table.last_node_ = index_.Root(tenant);
  const int32_t num_full = static_cast<int32_t>(tokens.size()) / block_size_;
  for (int32_t i = table.num_sealed_; i < num_full; ++i) {
    const auto block_tokens = tokens.subspan(int64_t{i} * block_size_, block_size_);
    const PrefixNode parent = table.last_node_;
    for (int32_t g = 0; g < table.num_groups(); ++g) {
      const BlockTable::Row& row = table.rows_[g];
      if (i < row.passed) continue;
      const BlockId id = row.blocks[i];
      Block& block = blocks_[id];
      BATON_CHECK(block.state == State::kFilling && block.holders == 1);
      if (table.findable_ && i >= row.num_private) {
        const PrefixIndex::Insertion insertion = index_.Insert(parent, tenant, block_tokens, g, id);
        block.indexed = insertion.inserted;
        block.key = insertion.node.key;
        if (g == 0) table.last_node_ = insertion.node;
      }
      // From here on nobody may write: a late write names the old epoch.
      epochs_[id].fetch_add(1, std::memory_order_release);
      SetState(id, State::kReady);
    }
    ++table.num_sealed_;
  }
}

void BlockAllocator::Renew(BlockTable& table) {
  BATON_CHECK(!table.draining_);
  table.ForEachHeld(table.num_sealed_, [this](BlockId id) {
    BATON_CHECK(blocks_[id].holders == 1);
    epochs_[id].fetch_add(1, std::memory_order_release);
    SetState(id, State::kReserved);
  });
}

void BlockAllocator::MarkDraining(BlockTable& table, bool stays_findable) {
  BATON_CHECK(!std::exchange(table.draining_, true));
  table.ForEachHeld(stays_findable ? table.num_sealed_ : 0, [this](BlockId id) {
    if (blocks_[id].holders == 1) SetState(id, State::kDraining);
  });
}

void BlockAllocator::Revive(BlockTable& table) {
  BATON_CHECK(std::exchange(table.draining_, false));
  table.ForEachHeld(table.num_sealed_, [this](BlockId id) {
    BATON_CHECK(blocks_[id].state == State::kDraining && blocks_[id].holders == 1);
    SetState(id, State::kFilling);
  });
}

BlockCounts BlockAllocator::CountsWithout(const std::vector<const BlockTable*>& tables) const {
  BlockCounts counts = counts_;
  std::vector<int32_t> given_up(blocks_.size());
  for (const BlockTable* table : tables) {
    table->ForEachHeld(0, [&](BlockId id) {
      const Block& block = blocks_[id];
      if (++given_up[id] < block.holders) return;
      --CountOf(counts, block.state);
      ++(block.indexed ? counts.cached : counts.free);
    });
  }
  return counts;
}

void BlockAllocator::ReturnOne(BlockId id) {
  Block& block = blocks_[id];
  BATON_CHECK(block.holders > 0 && block.state != State::kFree && block.state != State::kCached);
  if (--block.holders > 0) return;
  if (block.indexed) {
    SetState(id, State::kCached);
    block.lru = lru_.insert(lru_.end(), id);
  } else {
    SetState(id, State::kFree);
    free_.push_back(id);
  }
}

std::vector<BlockRef> BlockAllocator::Refs(const BlockTable& table) const {
  std::vector<BlockRef> refs;
  for (const BlockId id : table.Flat(table.size())) {
    const bool is_passed = id < 0;
    refs.push_back(is_passed ? BlockRef{}
                             : BlockRef{id, epochs_[id].load(std::memory_order_acquire)});
  }
  return refs;
}

int32_t BlockAllocator::CountUnowned(const std::vector<const BlockTable*>& tables) const {
  std::vector<bool> owned(blocks_.size());
  int32_t num_owned = 0;
  for (const BlockTable* table : tables) {
    table->ForEachHeld(0, [&](BlockId id) {
      if (!owned[id]) ++num_owned;
      owned[id] = true;
    });
  }
  BATON_CHECK(num_owned <= num_blocks() - num_available());  // No table holds a free block.
  return num_blocks() - num_available() - num_owned;
}

std::string BlockAllocator::Audit() const {
  BlockCounts seen;
  size_t num_indexed = 0;
  for (BlockId id = 0; id < num_blocks(); ++id) {
    const Block& block = blocks_[id];
    const bool held = block.holders > 0;
    const bool idle = block.state == State::kFree || block.state == State::kCached;
    if (held == idle) {
      return absl::StrFormat("block %d: %d holders, but state disagrees", id, block.holders);
    }
    const bool writable = block.state == State::kReserved || block.state == State::kFilling;
    if (writable && block.holders != 1) return absl::StrFormat("block %d: two writers", id);
    num_indexed += block.indexed ? 1 : 0;
    if (block.indexed && (block.state == State::kFree || writable)) {
      return absl::StrFormat("block %d: findable, but its content is not final", id);
    }
    switch (block.state) {
      case State::kFree:
        ++seen.free;
        break;
      case State::kReserved:
        ++seen.reserved;
        break;
      case State::kFilling:
        ++seen.filling;
        break;
      case State::kReady:
        ++seen.ready;
        break;
      case State::kCached:
        ++seen.cached;
        break;
      case State::kDraining:
        ++seen.draining;
        break;
    }
  }
  if (num_indexed != index_.num_blocks()) return "the prefix index disagrees with the blocks";
  if (!(seen == counts_)) return "counts disagree with the blocks";
  if (static_cast<int32_t>(free_.size()) != counts_.free) return "free list disagrees with counts";
  if (static_cast<int32_t>(lru_.size()) != counts_.cached) return "lru list disagrees with counts";
  return "";
}

}  // namespace baton
