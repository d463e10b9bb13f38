#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "kernels/api/cache_strides.h"
#include "kernels/api/check_shapes.h"
#include "kernels/api/require.h"

namespace baton {
namespace {

constexpr int64_t kMaxDimension = 1 << 16;
constexpr int64_t kMaxBlockSize = 1 << 20;
// Times 2^16 heads and 2^20 tokens neither overflows.
constexpr int64_t kMaxInnerStride = 1 << 22;
constexpr int64_t kMaxBlocks = INT32_MAX;  // What a block table can name.
constexpr int64_t kMaxPlaneElements = int64_t{1} << 58;

absl::Status CheckScales(const CachePlane& cache, absl::string_view field) {
  const FieldName name(field, ".num_scales");
  if (!IsFp8(cache.dtype)) return Require(cache.num_scales == 0, name, cache.num_scales, "0");
  if (cache.num_scales == 0) return absl::OkStatus();
  RETURN_IF_ERROR(Require(cache.num_scales == 1 || cache.num_scales == cache.num_heads, name,
                          cache.num_scales, "0, 1 or num_heads = ", cache.num_heads));
  return RequirePointer(cache.scales, {field, ".scales"});
}

// From the first element of a block to behind its last; of checked strides.
int64_t BlockElements(const CachePlane& cache) {
  if (cache.layout == CacheLayout::kPacked) {
    return int64_t{cache.num_heads} * cache.block_size * cache.dim;
  }
  const CacheStrides s = StridesOf(cache, CacheRole::kKey);
  return s.head * (cache.num_heads - 1) + s.token * (cache.block_size - 1) + cache.dim;
}

// The inner strides, after the dimensions.
absl::Status CheckBlock(const CachePlane& cache, absl::string_view field) {
  const bool packed = cache.layout == CacheLayout::kPacked;
  const FieldName layout(field, ".layout");
  RETURN_IF_ERROR(Require(cache.layout <= CacheLayout::kPacked, layout,
                          static_cast<int>(cache.layout), "HND, NHD or PACKED"));
  const FieldName head(field, ".head_stride");
  const FieldName token(field, ".token_stride");
  if (packed) {
    RETURN_IF_ERROR(Require(cache.head_stride == 0, head, cache.head_stride, "0 in PACKED"));
    RETURN_IF_ERROR(Require(cache.token_stride == 0, token, cache.token_stride, "0 in PACKED"));
    return Require(
        cache.dim % PackedGroup(cache.dtype) == 0, absl::StrCat(field, ".dim"), cache.dim,
        absl::StrCat("a multiple of ", PackedGroup(cache.dtype),
                     " (16 bytes) in a PACKED plane of ", std::string(ToString(cache.dtype))));
  }
  // Neither rows nor what holds them may overlap.
  const bool by_head = cache.layout == CacheLayout::kHnd;
  const int64_t explicit_inner = by_head ? cache.token_stride : cache.head_stride;
  const int64_t least = explicit_inner == 0 ? 0 : cache.dim;
  RETURN_IF_ERROR(RequireIn(explicit_inner, least, kMaxInnerStride, by_head ? token : head));
  const CacheStrides s = StridesOf(cache, CacheRole::kKey);
  const int64_t span =
      (by_head ? s.token : s.head) * ((by_head ? cache.block_size : cache.num_heads) - 1) +
      cache.dim;
  const int64_t outer = by_head ? s.head : s.token;
  return RequireIn(outer, span, kMaxStride, by_head ? head : token);
}

absl::Status CheckSamePlanes(const CachePlane& from, const CachePlane& to,
                             const std::string& field) {
  RETURN_IF_ERROR(Require(to.dtype == from.dtype, field + ".dtype", static_cast<int>(to.dtype),
                          "that of the source"));
  RETURN_IF_ERROR(Require(to.layout == from.layout, field + ".layout", static_cast<int>(to.layout),
                          "that of the source"));
  RETURN_IF_ERROR(Require(to.block_size == from.block_size, field + ".block_size", to.block_size,
                          "that of the source"));
  return Require(to.dim == from.dim, field + ".dim", to.dim, "that of the source");
}

absl::Status CheckHeads(const SwapBlocksArgs& args, const CachePlane& from, const CachePlane& to,
                        const std::string& field) {
  const HeadRun& heads = args.heads;
  if (heads.count == 0) {
    RETURN_IF_ERROR(Require(heads.source == 0, "heads.source", heads.source, "0 for all heads"));
    RETURN_IF_ERROR(
        Require(heads.destination == 0, "heads.destination", heads.destination, "0 for all heads"));
    return Require(to.num_heads == from.num_heads, field + ".num_heads", to.num_heads,
                   "that of the source, or name a head range");
  }
  RETURN_IF_ERROR(RequireIn(heads.count, 1, std::min(from.num_heads, to.num_heads), "heads.count"));
  RETURN_IF_ERROR(CheckRange(heads.source, heads.count, from.num_heads, "heads.source"));
  return CheckRange(heads.destination, heads.count, to.num_heads, "heads.destination");
}

// The bytes of a plane: of each block the first `block`, every `stride` from `begin` to `end`.
struct PlaneBytes {
  explicit PlaneBytes(const CachePlane& plane)
      : begin(reinterpret_cast<intptr_t>(plane.data)),
        block(BlockElements(plane) * SizeOf(plane.dtype)),
        stride(plane.block_stride * SizeOf(plane.dtype)),
        end(begin + (plane.num_blocks - 1) * stride + block) {}

  // Planes whose ranges intersect share nothing if their blocks take turns: K and V of all layers
  // of a block beside each other.
  bool Intersects(const PlaneBytes& other) const {
    if (end <= other.begin || other.end <= begin) return false;
    if (stride != other.stride) return true;
    const int64_t behind = ((other.begin - begin) % stride + stride) % stride;
    return behind < block || behind + other.block > stride;
  }

  int64_t begin, block, stride, end;
};

// What a destination is written to belongs to no other plane: pieces are copied in any order.
absl::Status CheckOwnMemory(const SwapBlocksArgs& args) {
  std::vector<PlaneBytes> sources, destinations;
  for (int64_t p = 0; p < args.num_planes; ++p) sources.emplace_back(args.sources[p]);
  for (int64_t p = 0; p < args.num_planes; ++p) {
    const PlaneBytes to(args.destinations[p]);
    for (const auto& [others, name] :
         {std::pair{&sources, "sources["}, {&destinations, "destinations["}}) {
      for (size_t i = 0; i < others->size(); ++i) {
        if (!(*others)[i].Intersects(to)) continue;
        const int64_t distance = to.begin - (*others)[i].begin;
        return absl::InvalidArgumentError(
            absl::StrCat("destinations[", p, "].data = ", name, i, "].data + ", distance,
                         ": must be memory of its own; use CopyBlocks within one cache"));
      }
    }
    destinations.push_back(to);
  }
  return absl::OkStatus();
}

// Of a gather or scatter.
template <typename Args>
absl::Status CheckStaging(const Args& args) {
  RETURN_IF_ERROR(RequireIn(args.num_planes, 0, INT32_MAX, "num_planes"));
  RETURN_IF_ERROR(RequireIn(args.num_blocks, 0, kMaxBlocks, "num_blocks"));
  if (args.num_planes == 0 || args.num_blocks == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.planes, "planes"));
  RETURN_IF_ERROR(RequirePointer(args.blocks, "blocks"));
  RETURN_IF_ERROR(RequirePointer(args.staging, "staging"));
  int64_t needed = 0;
  for (int64_t p = 0; p < args.num_planes; ++p) {
    const CachePlane& plane = args.planes[p];
    RETURN_IF_ERROR(CheckPlane(plane, absl::StrCat("planes[", p, "]")));
    RETURN_IF_ERROR(RequireIn(args.num_heads, 0, plane.num_heads, "num_heads"));
    RETURN_IF_ERROR(CheckRange(args.first_head,
                               args.num_heads == 0 ? plane.num_heads : args.num_heads,
                               plane.num_heads, "first_head"));
    const int64_t bytes = HeadRangeBytes(plane, args.num_heads);
    if (bytes > (args.staging_bytes - needed) / args.num_blocks) {  // A product may overflow.
      return Require(false, "staging_bytes", args.staging_bytes,
                     absl::StrCat("at least ", needed, " + ", args.num_blocks, " * ", bytes));
    }
    needed += args.num_blocks * bytes;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlane(const CachePlane& cache, absl::string_view field) {
  RETURN_IF_ERROR(RequirePointer(cache.data, {field, ".data"}));
  RETURN_IF_ERROR(Require(cache.dtype <= DType::kFp8E5M2, {field, ".dtype"},
                          static_cast<int>(cache.dtype), "f32, f16, bf16, fp8_e4m3 or fp8_e5m2"));
  RETURN_IF_ERROR(RequireIn(cache.num_blocks, 1, kMaxBlocks, {field, ".num_blocks"}));
  RETURN_IF_ERROR(RequireIn(cache.num_heads, 1, kMaxDimension, {field, ".num_heads"}));
  RETURN_IF_ERROR(RequireIn(cache.block_size, 1, kMaxBlockSize, {field, ".block_size"}));
  RETURN_IF_ERROR(RequireIn(cache.dim, 1, kMaxDimension, {field, ".dim"}));
  RETURN_IF_ERROR(CheckBlock(cache, field));
  const FieldName stride(field, ".block_stride");
  RETURN_IF_ERROR(RequireAtLeast(cache.block_stride, BlockElements(cache), stride));
  RETURN_IF_ERROR(Require(cache.block_stride <= kMaxPlaneElements / cache.num_blocks, stride,
                          cache.block_stride, "such that the plane fits in memory"));
  return CheckScales(cache, field);
}

absl::Status CheckPlanes(const CachePlane& k, const CachePlane& v) {
  RETURN_IF_ERROR(CheckPlane(k, "k_cache"));
  RETURN_IF_ERROR(CheckPlane(v, "v_cache"));
  RETURN_IF_ERROR(
      Require(v.dtype == k.dtype, "v_cache.dtype", static_cast<int>(v.dtype), "that of k_cache"));
  RETURN_IF_ERROR(Require(v.layout == k.layout, "v_cache.layout", static_cast<int>(v.layout),
                          "that of k_cache"));
  RETURN_IF_ERROR(
      Require(v.num_blocks == k.num_blocks, "v_cache.num_blocks", v.num_blocks, "that of k_cache"));
  RETURN_IF_ERROR(
      Require(v.num_heads == k.num_heads, "v_cache.num_heads", v.num_heads, "that of k_cache"));
  return Require(v.block_size == k.block_size, "v_cache.block_size", v.block_size,
                 "that of k_cache");
}

absl::Status CheckShapes(const ReshapeAndCacheArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.key, "key"));
  RETURN_IF_ERROR(RequireOperand(args.value, "value"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(CheckPlanes(args.k_cache, args.v_cache));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.key.data, "key"));
  RETURN_IF_ERROR(RequirePointer(args.value.data, "value"));
  RETURN_IF_ERROR(RequirePointer(args.slot_mapping, "slot_mapping"));
  const int64_t heads = args.k_cache.num_heads;
  RETURN_IF_ERROR(RequireStride(args.key_stride, heads * args.k_cache.dim, "key_stride"));
  return RequireStride(args.value_stride, heads * args.v_cache.dim, "value_stride");
}

absl::Status CheckShapes(const UpdateKvCacheArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args.append));
  RETURN_IF_ERROR(RequireOperand(args.k_out, "k_out"));
  RETURN_IF_ERROR(RequireOperand(args.v_out, "v_out"));
  RETURN_IF_ERROR(RequireIn(args.num_seqs, 0, INT32_MAX - 1, "num_seqs"));
  if (args.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.cu_seqlens_k, "cu_seqlens_k"));
  RETURN_IF_ERROR(RequireIn(args.max_blocks, 0, INT32_MAX, "max_blocks"));
  const int64_t blocks = args.append.k_cache.num_blocks;
  if (args.block_table != nullptr || args.num_seqs <= blocks) return absl::OkStatus();
  return Require(false, "num_seqs", args.num_seqs,
                 absl::StrCat("at most k_cache.num_blocks = ", blocks, " without a block_table"));
}

absl::Status CheckShapes(const CopyBlocksArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_planes, 0, "num_planes"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_pairs, 0, "num_pairs"));
  if (args.num_planes == 0 || args.num_pairs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.planes, "planes"));
  RETURN_IF_ERROR(RequirePointer(args.pairs, "pairs"));
  for (int64_t p = 0; p < args.num_planes; ++p) {
    RETURN_IF_ERROR(CheckPlane(args.planes[p], absl::StrCat("planes[", p, "]")));
  }
  return absl::OkStatus();
}

absl::Status CheckShapes(const SwapBlocksArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_planes, 0, "num_planes"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_runs, 0, "num_runs"));
  if (args.num_planes == 0 || args.num_runs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.sources, "sources"));
  RETURN_IF_ERROR(RequirePointer(args.destinations, "destinations"));
  RETURN_IF_ERROR(RequirePointer(args.runs, "runs"));
  for (int64_t p = 0; p < args.num_planes; ++p) {
    const CachePlane& from = args.sources[p];
    const CachePlane& to = args.destinations[p];
    const std::string field = absl::StrCat("destinations[", p, "]");
    RETURN_IF_ERROR(CheckPlane(from, absl::StrCat("sources[", p, "]")));
    RETURN_IF_ERROR(CheckPlane(to, field));
    RETURN_IF_ERROR(CheckSamePlanes(from, to, field));
    RETURN_IF_ERROR(CheckHeads(args, from, to, field));
  }
  return CheckOwnMemory(args);
}

absl::Status CheckShapes(const GatherBlocksArgs& args) { return CheckStaging(args); }
absl::Status CheckShapes(const ScatterBlocksArgs& args) { return CheckStaging(args); }

}  // namespace baton
