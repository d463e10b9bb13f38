#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/kv_cache/block_allocator.h"
#include "common/kv_cache/kv_cache.h"

namespace baton::sim {

inline constexpr int32_t kLayers = 2;

// A layout whose K and V of a token are one tag each.
KvLayout TagLayout(int32_t block_size, int32_t window);

// The memory of one worker's block pool: a tag per (layer, block, slot) as K, its complement as V.
// Every access is checked against the allocator's state of the block: what is read was written
// since the block was handed out and is verified, what is written has one writer.
class TagMemory {
 public:
  using OnViolation = std::function<void(std::string)>;

  TagMemory(const KvLayout& layout, const BlockAllocator& allocator, OnViolation violation);

  static constexpr uint64_t kPoison = 0xDEADDEADDEADDEADull;

  const KvCache& cache() const { return *cache_; }

  // Of a block that someone holds, of what was computed here or verified.
  uint64_t Read(int32_t layer, BlockId block, int32_t slot) const;
  uint64_t ReadToken(int32_t layer, const std::vector<BlockId>& table, int32_t position) const {
    return Read(layer, table.at(position / block_size_), position % block_size_);
  }
  // By a step: to a block that is FILLING or DRAINING and promised to no transfer.
  void WriteComputed(int32_t layer, BlockId block, int32_t slot, uint64_t tag);
  // A whole block of `from` as it is, by a step. `may_be_free`: who wanted the copy may have gone.
  void CopyFrom(const TagMemory& from, BlockId source, BlockId destination, bool may_be_free);

  // A transfer may write the block from now on, under this epoch, until EndPromise.
  void Promise(const BlockRef& ref);
  void EndPromise(BlockId block) { --promises_.at(block); }
  // The transport verified what it wrote to the slot.
  void Verify(BlockId block, int32_t slot);
  // A transfer may read the block from now on, until EndLoan.
  void Lend(BlockId block) { ++loans_.at(block); }
  void EndLoan(BlockId block) { --loans_.at(block); }
  // The transport wrote or read these bytes; those outside the pool are its own matter.
  void OnReceived(const std::byte* start, size_t size);
  void OnSent(const std::byte* start, size_t size) const;
  // The block's owner moves on, whoever it was promised to.
  void Overtake(BlockId block);

  // The slots [first_slot, block_size) of the block hold nothing.
  void Poison(BlockId block, int32_t first_slot);
  // Poisons every block that became FREE since the last call. After each turn of the node.
  void PoisonFree();
  // A step or an open transfer may touch these: somebody has to hold them.
  void CheckHeld(BlockId block, std::string_view by) const;
  uint32_t epoch(BlockId block) const { return allocator_.epochs().at(block).load(); }
  // It was not given out since it had that epoch.
  void CheckEpoch(BlockId block, uint32_t epoch, std::string_view by) const;

  // The content is final: READY or CACHED.
  bool IsSealed(BlockId block) const;
  int32_t block_size() const { return block_size_; }

 private:
  // Slots that bytes of the pool belong to; none for other addresses.
  struct Slots {
    int32_t layer = 0;
    int64_t first = 0;
    int64_t end = 0;
  };
  Slots SlotsAt(const std::byte* start, size_t size) const;
  int64_t SlotOf(BlockId block, int32_t slot) const { return int64_t{block} * block_size_ + slot; }
  uint64_t TagAt(int32_t layer, KvPlane plane, int64_t slot) const;
  void Set(int32_t layer, int64_t slot, uint64_t tag, bool verified);
  char& VerifiedAt(int32_t layer, int64_t slot) { return verified_.at(layer * num_slots_ + slot); }

  const BlockAllocator& allocator_;
  OnViolation violation_;
  std::unique_ptr<KvCache> cache_;
  std::array<std::array<std::byte*, 2>, kLayers> planes_;
  int32_t block_size_;
  int64_t num_slots_;
  std::vector<char> verified_;        // [layer * num_slots_ + slot]
  std::vector<int32_t> promises_;     // Open transfers into the block.
  std::vector<uint32_t> epoch_;       // Of the last promise.
  std::vector<int32_t> loans_;        // Open transfers out of the block.
  std::vector<char> poisoned_;        // Per block: FREE, and poisoned already.
};

}  // namespace baton::sim
