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
  blocks_ = std::exchange(other.blocks_, {});
  num_passed_ = std::exchange(other.num_passed_, 0);
  num_sealed_ = std::exchange(other.num_sealed_, 0);
  findable_ = std::exchange(other.findable_, true);
  last_node_ = std::exchange(other.last_node_, {});
  draining_ = std::exchange(other.draining_, false);
  return *this;
}

void BlockTable::Release() {
  // Last block first: the LRU list then evicts a prefix's tail before its head.
  while (num_held() > 0) {
    allocator_->ReturnOne(blocks_.back());
    blocks_.pop_back();
  }
  blocks_.clear();
  num_passed_ = 0;
  num_sealed_ = 0;
  findable_ = true;
  last_node_ = {};
  draining_ = false;
}

BlockAllocator::BlockAllocator(int32_t num_blocks, int32_t block_size, uint64_t hash_secret)
    : block_size_(block_size), blocks_(num_blocks), epochs_(num_blocks), index_(hash_secret) {
  BATON_CHECK(num_blocks > 0 && block_size > 0);
  counts_.free = num_blocks;
  free_.reserve(num_blocks);
  for (BlockId id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
}

BlockAllocator::~BlockAllocator() {
  // A table that outlives its allocator would return blocks into freed memory.
  BATON_CHECK(num_available() == num_blocks());
}

int32_t& BlockAllocator::CountOf(State state) {
  switch (state) {
    case State::kFree:
      return counts_.free;
    case State::kReserved:
      return counts_.reserved;
    case State::kFilling:
      return counts_.filling;
    case State::kReady:
      return counts_.ready;
    case State::kCached:
      return counts_.cached;
    case State::kDraining:
      break;
  }
  return counts_.draining;
}

void BlockAllocator::SetState(BlockId id, State state) {
  BATON_CHECK(CountOf(blocks_[id].state) > 0);
  --CountOf(blocks_[id].state);
  blocks_[id].state = state;
  ++CountOf(state);
}

BlockTable BlockAllocator::Match(std::string_view tenant, std::span<const int32_t> tokens,
                                 int32_t max_tokens) {
  BlockTable table;
  table.allocator_ = this;
  table.last_node_ = index_.Root(tenant);
  const size_t limit = std::min<size_t>(tokens.size(), max_tokens > 0 ? max_tokens : 0);
  for (size_t at = 0; at + block_size_ <= limit; at += block_size_) {
    const auto block_tokens = tokens.subspan(at, block_size_);
    const std::optional<PrefixIndex::Hit> hit = index_.Find(table.last_node_, tenant, block_tokens);
    // A DRAINING block is still findable but no longer given out: its holder is ending.
    if (!hit || blocks_[hit->block].state == State::kDraining) break;
    const BlockId id = hit->block;
    Block& block = blocks_[id];
    if (block.state == State::kCached) {
      lru_.erase(block.lru);
      SetState(id, State::kReady);
    }
    BATON_CHECK(block.state == State::kReady && block.indexed);
    ++block.holders;
    table.blocks_.push_back(id);
    ++table.num_sealed_;
    table.last_node_ = hit->node;
  }
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
    index_.Erase(blocks_[id].key);
    blocks_[id].indexed = false;
  }
  BATON_CHECK(std::exchange(blocks_[id].holders, 1) == 0);
  epochs_[id].fetch_add(1, std::memory_order_release);
  return id;
}

bool BlockAllocator::Grow(BlockTable& table, int32_t count, bool reserved) {
  BATON_CHECK(count >= 0 && !table.draining_);
  BATON_CHECK(table.allocator_ == nullptr || table.allocator_ == this);
  if (count > num_available()) return false;
  table.allocator_ = this;
  for (int32_t i = 0; i < count; ++i) {
    const BlockId id = TakeOne();
    SetState(id, reserved ? State::kReserved : State::kFilling);
    table.blocks_.push_back(id);
  }
  return true;
}

void BlockAllocator::SkipFront(BlockTable& table, int32_t count) {
  BATON_CHECK(table.blocks_.empty() && count >= 0);
  table.blocks_.assign(count, -1);
  table.num_passed_ = count;
  table.num_sealed_ = count;
  table.findable_ = false;
}

void BlockAllocator::ReleaseFront(BlockTable& table, int32_t count) {
  BATON_CHECK(count <= table.num_sealed_ && !table.draining_);
  for (int32_t i = count - 1; i >= table.num_passed_; --i) {
    ReturnOne(std::exchange(table.blocks_[i], -1));
  }
  table.num_passed_ = std::max(table.num_passed_, count);
}

void BlockAllocator::MarkFilling(BlockTable& table) {
  for (BlockId id : table.Held()) {
    if (blocks_[id].state == State::kReserved) SetState(id, State::kFilling);
  }
}

void BlockAllocator::Seal(BlockTable& table, std::string_view tenant,
                          std::span<const int32_t> tokens) {
  BATON_CHECK(table.size() >= static_cast<int32_t>(tokens.size()) / block_size_);
  if (table.num_sealed_ == 0) table.last_node_ = index_.Root(tenant);
  const int32_t num_full = static_cast<int32_t>(tokens.size()) / block_size_;
  for (int32_t i = table.num_sealed_; i < num_full; ++i) {
    const BlockId id = table.blocks_[i];
    const auto block_tokens = tokens.subspan(int64_t{i} * block_size_, block_size_);
    Block& block = blocks_[id];
    BATON_CHECK(block.state == State::kFilling && block.holders == 1);
    if (table.findable_) {
      const PrefixIndex::Insertion insertion =
          index_.Insert(table.last_node_, tenant, block_tokens, id);
      block.indexed = insertion.inserted;
      block.key = insertion.node.key;
      table.last_node_ = insertion.node;
    }
    // From here on nobody may write: a late write names the old epoch.
    epochs_[id].fetch_add(1, std::memory_order_release);
    SetState(id, State::kReady);
    ++table.num_sealed_;
  }
}

void BlockAllocator::Renew(BlockTable& table) {
  BATON_CHECK(!table.draining_);
  for (int32_t i = table.num_sealed_; i < table.size(); ++i) {
    const BlockId id = table.blocks_[i];
    BATON_CHECK(blocks_[id].holders == 1);
    epochs_[id].fetch_add(1, std::memory_order_release);
    SetState(id, State::kReserved);
  }
}

void BlockAllocator::MarkDraining(BlockTable& table) {
  BATON_CHECK(!std::exchange(table.draining_, true));
  for (BlockId id : table.Held()) {
    if (blocks_[id].holders == 1) SetState(id, State::kDraining);
  }
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
  refs.reserve(table.blocks_.size());
  for (BlockId id : table.blocks_) {
    if (id < 0) {
      refs.emplace_back();
    } else {
      refs.push_back({id, epochs_[id].load(std::memory_order_acquire)});
    }
  }
  return refs;
}

int32_t BlockAllocator::CountUnowned(const std::vector<const BlockTable*>& tables) const {
  std::vector<bool> owned(blocks_.size());
  int32_t num_owned = 0;
  for (const BlockTable* table : tables) {
    for (BlockId id : table->Held()) {
      if (!owned[id]) ++num_owned;
      owned[id] = true;
    }
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
  if (num_indexed != index_.size()) return "the prefix index disagrees with the blocks";
  if (!(seen == counts_)) return "counts disagree with the blocks";
  if (static_cast<int32_t>(free_.size()) != counts_.free) return "free list disagrees with counts";
  if (static_cast<int32_t>(lru_.size()) != counts_.cached) return "lru list disagrees with counts";
  return "";
}

}  // namespace baton
