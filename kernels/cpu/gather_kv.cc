#include "kernels/cpu/gather_kv.h"

#include "kernels/cpu/head_rows.h"

namespace baton::BATON_KERNEL_SET {
namespace {

// Of one plane: the rows of sequence s, from element `out` on.
void GatherPlane(const UpdateKvCacheArgs& args, const CachePlane& plane, CacheRole role, int64_t s,
                 float* out, int64_t stride) {
  const auto own_block = static_cast<int32_t>(s);
  const int64_t length = args.cu_seqlens_k[s + 1] - args.cu_seqlens_k[s];
  for (int64_t h = 0; h < plane.num_heads; ++h) {
    HeadRows rows = RowsOfPlane(plane, role, h);
    rows.blocks =
        args.block_table == nullptr ? &own_block : args.block_table + s * args.max_blocks;
    rows.num_cached = length;
    for (int64_t i = 0; i < length; ++i) LoadRow(rows, i, out + i * stride + h * plane.dim, 1);
  }
}

}  // namespace

void GatherKv(const UpdateKvCacheArgs& args, int64_t begin, int64_t end) {
  for (int64_t s = begin; s < end; ++s) {
    const int64_t first = args.cu_seqlens_k[s];
    if (args.cu_seqlens_k[s + 1] == first) continue;  // There may be no memory to point to.
    GatherPlane(args, args.append.k_cache, CacheRole::kKey, s,
                args.k_out.f32() + first * args.k_out_stride, args.k_out_stride);
    GatherPlane(args, args.append.v_cache, CacheRole::kValue, s,
                args.v_out.f32() + first * args.v_out_stride, args.v_out_stride);
  }
}

}  // namespace baton::BATON_KERNEL_SET
