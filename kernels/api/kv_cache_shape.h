#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/cache_args.h"

namespace baton {

// Of one layer, whose K and V have the same shape.
struct KvCacheShapeArgs {
  CacheLayout layout = CacheLayout::kHnd;
  DType dtype = DType::kF32;
  int64_t num_blocks = 0;
  int32_t block_size = 0;
  int32_t num_kv_heads = 0;
  int32_t head_size = 0;
};

// The shape of one tensor that holds K, then V (vLLM's get_kv_cache_shape):
//   kPacked  [2, num_blocks, block_size * num_kv_heads * head_size]
//   kNhd     [2, num_blocks, block_size, num_kv_heads, head_size]
//   kHnd     [2, num_blocks, num_kv_heads, block_size, head_size]
absl::StatusOr<std::vector<int64_t>> KvCacheShape(const KvCacheShapeArgs& args);

struct SplitKvCacheResult {
  CachePlane k_cache;
  CachePlane v_cache;
  // kPacked: [num_blocks, num_kv_heads, head_size / x, block_size, x] with x elements in 16 bytes,
  // and [num_blocks, num_kv_heads, head_size, block_size]; else those of the tensor without its 2.
  std::vector<int64_t> k_shape;
  std::vector<int64_t> v_shape;
};

// The planes of such a tensor (vLLM's split_kv_cache). Borrows `data`, of which bytes behind the
// tensor are left alone.
absl::StatusOr<SplitKvCacheResult> SplitKvCache(const KvCacheShapeArgs& args, std::byte* data,
                                                int64_t num_bytes);

}  // namespace baton
