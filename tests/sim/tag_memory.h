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

// What the model's answers depend on; not on how many ranks compute them.
struct FakeArch {
  std::vector<int32_t> windows = {0, 0};  // Tokens that a layer's attention sees; 0 = all.
  int32_t spare = 0;  // As KvLayerGroup's, of layers with a window beside others.
  int32_t kv_heads = 1;
  int32_t original_len = 0;  // As ModelInfo's.
  int32_t num_layers() const { return static_cast<int32_t>(windows.size()); }
};

// The heads that a rank of `size` holds: its part of them or, of fewer than there are ranks, one
// that others hold too. Both are powers of two.
HeadRange HeadsHeld(int rank, int size, int32_t kv_heads);
// Of them, how many a rank of a prefill worker sends to one of a decode worker: of those that hold
// a head one does, and not the same one to all.
int32_t NumHeadsSent(int from, int from_size, int to, int to_size, int32_t kv_heads);

// A layout whose K and V of a token are one tag each for each of so many heads.
KvLayout TagLayout(int32_t block_size, const FakeArch& arch, int32_t kv_heads);

// The memory of one rank's block pool: a tag per (plane, block, head, slot) as K, its complement as
// V, of the heads that the rank holds. A plane is that of a layer, or of layers of several groups.
// Every access is checked against the allocator's state of the block: what is read was written
// since the block was handed out and is verified, what is written has one writer.
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

  // Of a block that someone holds, of what was computed here or verified. `table`: rows of the
  // groups, one after the other.
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
  void Verify(int32_t layer, BlockId block, int32_t slot);
  // Every byte of the slot of that head has come since the promise.
  bool HasReceived(int32_t layer, KvPlane plane, BlockId block, int32_t head, int32_t slot) const {
    const int32_t p = PlaneOf(layer) * 2 + static_cast<int32_t>(plane);
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
    int32_t plane = 0;
    int32_t part = 0;  // K or V.
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
  int32_t PlaneOf(int32_t layer) const { return PlaceOf(cache_->layout(), layer).slot; }
  int32_t num_planes() const { return static_cast<int32_t>(planes_.size()); }
  // Where a layer has a position.
  BlockId BlockAt(int32_t layer, const std::vector<BlockId>& table, int32_t position) const {
    const LayerPlace place = PlaceOf(cache_->layout(), layer);
    return RowOf(cache_->layout(), place.group, table)[position / block_size_];
  }
  uint64_t TagAt(int32_t plane, KvPlane part, int64_t slot) const;
  void Set(int32_t plane, int64_t slot, uint64_t tag, bool verified);
  char& VerifiedAt(int32_t plane, int64_t slot) { return verified_.at(plane * num_slots_ + slot); }
  uint8_t& ReceivedAt(int32_t plane, int32_t part, int64_t slot) {
    return received_.at((plane * 2 + part) * num_slots_ + slot);
  }

  const BlockAllocator& allocator_;
  OnViolation violation_;
  std::unique_ptr<KvCache> cache_;
  std::vector<std::array<std::byte*, 2>> planes_;
  HeadRange heads_;
  int32_t block_size_;
  int64_t num_slots_;
  std::vector<char> verified_;        // [plane * num_slots_ + slot]
  std::vector<uint8_t> received_;     // Bytes since the promise: [plane][K, V][slot].
  std::vector<int32_t> promises_;     // Open transfers into the block.
  std::vector<uint32_t> epoch_;       // Of the last promise.
  std::vector<int32_t> loans_;        // Open transfers out of the block.
  std::vector<char> poisoned_;        // Per block: FREE, and poisoned already.
};

}  // namespace baton::sim
