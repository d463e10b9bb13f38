#include "kernels/api/kv_cache_shape.h"

#include "common/base/status.h"
#include "kernels/api/cache_strides.h"
#include "kernels/api/check_shapes.h"
#include "kernels/api/require.h"

namespace baton {
namespace {

// Of one plane, without memory.
absl::StatusOr<CachePlane> PlaneOf(const KvCacheShapeArgs& args) {
  RETURN_IF_ERROR(RequireIn(args.num_blocks, 0, INT32_MAX, "num_blocks"));
  RETURN_IF_ERROR(RequireIn(args.block_size, 1, 1 << 20, "block_size"));
  RETURN_IF_ERROR(RequireIn(args.num_kv_heads, 1, 1 << 16, "num_kv_heads"));
  RETURN_IF_ERROR(RequireIn(args.head_size, 1, 1 << 16, "head_size"));
  RETURN_IF_ERROR(Require(args.dtype <= DType::kFp8E5M2, "dtype", static_cast<int>(args.dtype),
                          "f32, f16, bf16, fp8_e4m3 or fp8_e5m2"));
  RETURN_IF_ERROR(Require(args.layout <= CacheLayout::kPacked, "layout",
                          static_cast<int>(args.layout), "HND, NHD or PACKED"));
  const int32_t x = PackedGroup(args.dtype);
  RETURN_IF_ERROR(Require(args.layout != CacheLayout::kPacked || args.head_size % x == 0,
                          "head_size", args.head_size, "a multiple, in PACKED, of ", x));
  // The bytes of both planes fit in 64 bits.
  const int64_t block = int64_t{args.block_size} * args.num_kv_heads * args.head_size;
  const int64_t most = INT64_MAX / 2 / SizeOf(args.dtype) / block;
  RETURN_IF_ERROR(
      Require(args.num_blocks <= most, "num_blocks", args.num_blocks, "at most ", most));
  return CachePlane{.dtype = args.dtype,
                    .layout = args.layout,
                    .num_blocks = args.num_blocks,
                    .num_heads = args.num_kv_heads,
                    .block_size = args.block_size,
                    .dim = args.head_size,
                    .block_stride = block};
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> KvCacheShape(const KvCacheShapeArgs& args) {
  const absl::StatusOr<CachePlane> plane = PlaneOf(args);
  if (!plane.ok()) return plane.status();
  const int64_t blocks = args.num_blocks;
  switch (args.layout) {
    case CacheLayout::kHnd:
      return std::vector<int64_t>{2, blocks, args.num_kv_heads, args.block_size, args.head_size};
    case CacheLayout::kNhd:
      return std::vector<int64_t>{2, blocks, args.block_size, args.num_kv_heads, args.head_size};
    case CacheLayout::kPacked:
      break;
  }
  return std::vector<int64_t>{2, blocks, plane->block_stride};
}

absl::StatusOr<SplitKvCacheResult> SplitKvCache(const KvCacheShapeArgs& args, std::byte* data,
                                                int64_t num_bytes) {
  absl::StatusOr<std::vector<int64_t>> shape = KvCacheShape(args);
  if (!shape.ok()) return shape.status();
  SplitKvCacheResult split{.k_cache = *PlaneOf(args)};
  const int64_t plane_bytes = args.num_blocks * split.k_cache.block_stride * SizeOf(args.dtype);
  RETURN_IF_ERROR(Require(num_bytes >= 2 * plane_bytes, "num_bytes", num_bytes, "at least ",
                          2 * plane_bytes));
  RETURN_IF_ERROR(RequirePointer(data, "data"));
  split.k_cache.data = data;
  split.v_cache = split.k_cache;
  split.v_cache.data = data + plane_bytes;
  split.k_shape = split.v_shape = {shape->begin() + 1, shape->end()};
  if (args.layout == CacheLayout::kPacked) {
    const int64_t x = PackedGroup(args.dtype);
    split.k_shape = {args.num_blocks, args.num_kv_heads, args.head_size / x, args.block_size, x};
    split.v_shape = {args.num_blocks, args.num_kv_heads, args.head_size, args.block_size};
  }
  return split;
}

}  // namespace baton
