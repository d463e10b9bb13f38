#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_cache/kv_layout.h"

namespace baton {

// The bytes of a worker's block pool: one plane per (layer, K or V), each
// [num_blocks, num_kv_heads, block_size, dim]. Holds memory only; who may touch a block is the
// BlockAllocator's business. Threads: planes are plain memory, the compute thread and the
// transport's thread write disjoint blocks.
class KvCache {
 public:
  // RESOURCE_EXHAUSTED with the size when the memory cannot be had.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const KvLayout& layout,
                                                         int32_t num_blocks);

  const KvLayout& layout() const { return layout_; }
  int32_t num_blocks() const { return num_blocks_; }

  // The whole plane of a layer.
  std::byte* Plane(int32_t layer, KvPlane plane) const;

  // The bytes [block_size, dim] of one head of one block.
  std::span<std::byte> HeadBlock(int32_t layer, KvPlane plane, BlockId block, int32_t head) const;

 private:
  KvCache(const KvLayout& layout, int32_t num_blocks);

  KvLayout layout_;
  int32_t num_blocks_;
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::vector<int64_t> plane_offset_;  // [2 * num_layers], bytes.
};

}  // namespace baton
