#pragma once

#include <algorithm>
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
#include "common/transport/transfer_plan.h"

namespace baton::sim {

inline constexpr int32_t kLayers = 2;

// The heads that a rank of `size` holds: its part of them or, of fewer than there are ranks, one
// that others hold too. Both are powers of two.
HeadRange HeadsHeld(int rank, int size, int32_t kv_heads);
// Of them, how many a rank of a prefill worker sends to one of a decode worker: of those that hold
// a head one does, and not the same one to all.
int32_t NumHeadsSent(int from, int from_size, int to, int to_size, int32_t kv_heads);

// A layout whose K and V of a token are one tag each for each head.
KvLayout TagLayout(int32_t block_size, int32_t window, int32_t kv_heads);

// The memory of one rank's block pool: a tag per (layer, block, head, slot) as K, its complement as
// V, of the heads that the rank holds. Every access is checked against the allocator's state of the
// block: what is read was written since the block was handed out and is verified, what is written
// has one writer.
class TagMemory {
 public:
  using OnViolation = std::function<void(std::string)>;

  // `layout` is the rank's.
  TagMemory(const KvLayout& layout, const BlockAllocator& allocator, HeadRange heads,
            OnViolation violation);

  static constexpr uint64_t kPoison = 0xDEADDEADDEADDEADull;

  const KvCache& cache() const { return *cache_; }
  // By their index in the model; those of the functions below count from the first of them.
  HeadRange heads() const { return heads_; }

  // Of a block that someone holds, of what was computed here or verified.
  uint64_t ReadToken(int32_t layer, int32_t head, const std::vector<BlockId>& table,
                     int32_t position) const;
  // By a step: to a block that is FILLING or DRAINING and promised to no transfer.
  void WriteToken(int32_t layer, int32_t head, const std::vector<BlockId>& table, int32_t position,
                  uint64_t tag);
  // A whole block of `from` as it is, by a step. `may_be_free`: who wanted the copy may have gone.
  void CopyFrom(const TagMemory& from, BlockId source, BlockId destination, bool may_be_free);

  // A transfer may write the block from now on, under this epoch, until EndPromise.
  void Promise(const BlockRef& ref);
  void EndPromise(BlockId block) { --promises_.at(block); }
  // The transport verified what it wrote to the slot, of all heads.
  void Verify(BlockId block, int32_t slot);
  // Every byte of the slot of that head has come since the promise.
  bool HasReceived(int32_t layer, KvPlane plane, BlockId block, int32_t head, int32_t slot) const {
    const int32_t p = layer * 2 + static_cast<int32_t>(plane);
    return received_.at(p * num_slots_ + SlotOf(block, head, slot)) == 8;
  }
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
    int32_t plane = 0;
    int64_t first = 0;
    int64_t end = 0;
    int64_t first_byte = 0;  // Of the plane.
    int64_t end_byte = 0;
    int64_t BytesOf(int64_t slot) const {
      return std::min(8 * slot + 8, end_byte) - std::max(8 * slot, first_byte);
    }
  };
  Slots SlotsAt(const std::byte* start, size_t size) const;
  // A slot of one head of a block, as planes have them: [block][head][slot].
  int64_t SlotOf(BlockId block, int32_t head, int32_t slot) const {
    return (int64_t{block} * heads_.count + head) * block_size_ + slot;
  }
  BlockId BlockOf(int64_t slot) const {
    return static_cast<BlockId>(slot / (int64_t{heads_.count} * block_size_));
  }
  uint64_t TagAt(int32_t layer, KvPlane plane, int64_t slot) const;
  void Set(int32_t layer, int64_t slot, uint64_t tag, bool verified);
  char& VerifiedAt(int32_t layer, int64_t slot) { return verified_.at(layer * num_slots_ + slot); }
  uint8_t& ReceivedAt(int32_t layer, int32_t plane, int64_t slot) {
    return received_.at((layer * 2 + plane) * num_slots_ + slot);
  }

  const BlockAllocator& allocator_;
  OnViolation violation_;
  std::unique_ptr<KvCache> cache_;
  std::array<std::array<std::byte*, 2>, kLayers> planes_;
  HeadRange heads_;
  int32_t block_size_;
  int64_t num_slots_;
  std::vector<char> verified_;        // [layer * num_slots_ + slot]
  std::vector<uint8_t> received_;     // Bytes since the promise: [layer][plane][slot].
  std::vector<int32_t> promises_;     // Open transfers into the block.
  std::vector<uint32_t> epoch_;       // Of the last promise.
  std::vector<int32_t> loans_;        // Open transfers out of the block.
  std::vector<char> poisoned_;        // Per block: FREE, and poisoned already.
};

}  // namespace baton::sim
