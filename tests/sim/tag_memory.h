#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/kv_cache/block_allocator.h"

namespace baton::sim {

inline constexpr int32_t kLayers = 2;

// The memory of one worker's block pool: one tag per (layer, block, slot) instead of K and V. Every
// access is checked against the allocator's state of the block: what is read was written since the
// block was handed out and is verified, what is written has one writer.
class TagMemory {
 public:
  using OnViolation = std::function<void(std::string)>;

  TagMemory(const BlockAllocator& allocator, OnViolation violation);

  static constexpr uint64_t kPoison = 0xDEADDEADDEADDEADull;

  // Of a block that someone holds, of what was computed here or verified.
  uint64_t Read(int32_t layer, BlockId block, int32_t slot) const;
  uint64_t ReadToken(int32_t layer, const std::vector<BlockId>& table, int32_t position) const {
    return Read(layer, table.at(position / block_size_), position % block_size_);
  }
  // By a step: to a block that is FILLING or DRAINING and promised to no transfer.
  void WriteComputed(int32_t layer, BlockId block, int32_t slot, uint64_t tag);
  // By a transfer: to a block that is RESERVED (the node has not heard that it began), FILLING or
  // DRAINING; not to be read before Verify.
  void WriteReceived(int32_t layer, BlockId block, int32_t slot, uint64_t tag);
  // A transfer may write the block from now on, until EndPromise.
  void Promise(BlockId block);
  void EndPromise(BlockId block) { --promises_.at(block); }
  void Verify(BlockId block, int32_t slot);

  // The slots [first_slot, block_size) of the block hold nothing.
  void Poison(BlockId block, int32_t first_slot);
  // Poisons every block that became FREE since the last call. After each turn of the node.
  void PoisonFree();
  // A step or an open transfer may touch these: somebody has to hold them.
  void CheckHeld(BlockId block, std::string_view by) const;

  // The content is final: READY or CACHED.
  bool IsSealed(BlockId block) const;
  int32_t block_size() const { return block_size_; }

 private:
  struct Slot {
    uint64_t tag = kPoison;
    bool verified = false;
  };
  Slot& At(int32_t layer, BlockId block, int32_t slot) {
    return slots_.at((size_t(layer) * num_blocks_ + block) * block_size_ + slot);
  }
  const Slot& At(int32_t layer, BlockId block, int32_t slot) const {
    return slots_.at((size_t(layer) * num_blocks_ + block) * block_size_ + slot);
  }

  const BlockAllocator& allocator_;
  OnViolation violation_;
  int32_t block_size_;
  size_t num_blocks_;
  std::vector<Slot> slots_;
  std::vector<int32_t> promises_;  // Open transfers into the block.
  std::vector<char> poisoned_;     // Per block: FREE, and poisoned already.
};

}  // namespace baton::sim
