#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_cache/kv_layout.h"
#include "kernels/api/buffer.h"

namespace baton {

// The memory of a worker's block pool, a device's or the host's: one plane per (slot, K or V), each
// [num_blocks, num_kv_heads, block_size, dim]. Layers of different groups share a slot's planes:
// which of them a block holds is its table's business. Holds memory only; who may touch a block is
// the BlockAllocator's business. Threads: planes are plain memory, the compute thread and the
// transport's thread write disjoint blocks.
class KvCache {
 public:
  // RESOURCE_EXHAUSTED with the size when the memory cannot be had.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const KvLayout& layout,
                                                         int32_t num_blocks);

  // Over memory of PoolBytes at least. `host`: the process may touch it.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const KvLayout& layout, int32_t num_blocks,
                                                         Buffer memory, bool host);

  // What a pool takes. Errors as of Create.
  static absl::StatusOr<int64_t> PoolBytes(const KvLayout& layout, int32_t num_blocks);

  const KvLayout& layout() const { return layout_; }
  int32_t num_blocks() const { return num_blocks_; }
  bool host() const { return host_; }

  // Where the pool begins; an address of its device.
  std::byte* base() const { return memory_.data(); }

  // Whose blocks a layer takes.
  int32_t GroupOf(int32_t layer) const { return layers_[layer].place.group; }

  // The plane of a layer's slot, and the distance of its blocks in bytes.
  std::byte* Plane(int32_t layer, KvPlane plane) const;
  int64_t BlockStride(int32_t layer, KvPlane plane) const;

  // Of all slots, K and V: where blocks lie.
  struct BlockPlane {
    int64_t offset = 0;  // Bytes from base().
    int64_t stride = 0;  // Of a block.
  };
  const std::vector<BlockPlane>& planes() const { return planes_; }
  // Bytes from base() to a block in one of them.
  int64_t BlockOffset(size_t plane, BlockId block) const;

  // Bytes from base() to [block_size, dim] of one head of one block.
  int64_t HeadBlockOffset(int32_t layer, KvPlane plane, BlockId block, int32_t head) const;

  // These bytes themselves. Of a pool of the host's.
  std::span<std::byte> HeadBlock(int32_t layer, KvPlane plane, BlockId block, int32_t head) const;

 private:
  struct Layer {
    LayerPlace place;
    int32_t num_kv_heads = 0;
    int64_t head_bytes[2] = {};  // Of a block, K and V.
  };
  // In planes_.
  size_t PlaneOfLayer(int32_t layer, KvPlane plane) const {
    return size_t{2} * layers_[layer].place.slot + static_cast<size_t>(plane);
  }

  KvCache(const KvLayout& layout, int32_t num_blocks, Buffer memory, bool host);

  KvLayout layout_;
  int32_t num_blocks_;
  Buffer memory_;
  bool host_;
  std::vector<BlockPlane> planes_;  // [2 * num_slots]
  std::vector<Layer> layers_;
};

}  // namespace baton
