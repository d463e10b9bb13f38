#include <algorithm>

#include "kernels/cuda/cache.h"
#include "kernels/cuda/strided_rows.h"

namespace baton::cuda {
namespace cache_rows {

constexpr int kThreads = 128;
constexpr int kParts = 4;  // Blocks that read the rows of a sequence and head.

// New K and V and where they go: by slots, or behind what each sequence has in the cache.
struct NewRows {
  ConstFloats k, v;
  int64_t k_stride;  // Elements from token to token.
  int64_t v_stride;
  int64_t num_tokens;
  StridedPlane k_cache, v_cache;
  const int64_t* slots;  // [num_tokens]; null: num_new tokens of each sequence.
  int64_t num_new;
  const int32_t* cache_seqlens;  // As those below in AttentionWithKvCacheArgs.
  int32_t cache_seqlen;
  const int32_t* batch_blocks;
  const int32_t* block_table;
  int64_t max_blocks;
  Rotation rotation;  // Of K.
};

struct Place {
  int64_t block;  // -1: none.
  int64_t offset;
  int64_t position;  // To rotate by.
};

BATON_DEVICE Place PlaceOf(const NewRows& args, int64_t token) {
  const int64_t size = args.k_cache.plane.block_size;
  if (args.slots != nullptr) {
    const int64_t slot = args.slots[token];
    return {slot < 0 ? -1 : slot / size, slot % size, 0};
  }
  const int64_t s = token / args.num_new;
  const int64_t row =
      CacheSeqlenOf(args.cache_seqlens, args.cache_seqlen, s) + token % args.num_new;
  const int64_t capacity = args.block_table == nullptr ? size : args.max_blocks * size;
  if (row < 0 || row >= capacity) return {-1, 0, 0};
  if (args.block_table != nullptr) {
    return {args.block_table[s * args.max_blocks + row / size], row % size, row};
  }
  return {args.batch_blocks == nullptr ? s : args.batch_blocks[s], row, row};
}

// A thread for each element; the grid's z tells K from V.
__global__ void __launch_bounds__(kThreads) WriteKernel(NewRows args) {
  const bool is_key = blockIdx.z == 0;
  const StridedPlane& to = is_key ? args.k_cache : args.v_cache;
  const int64_t width = int64_t{to.plane.num_heads} * to.plane.dim;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.num_tokens * width) return;
  const int64_t token = index / width, head = index % width / to.plane.dim;
  const auto d = static_cast<int32_t>(index % to.plane.dim);
  const Place place = PlaceOf(args, token);
  if (place.block < 0) return;
  const int64_t row = token * (is_key ? args.k_stride : args.v_stride) + head * to.plane.dim;
  const Rotation rotation = is_key ? args.rotation : Rotation{};
  const float x = RotatedElement(rotation, place.position, is_key ? args.k : args.v, row, d);
  StoreElement(to, head,
               RowOf(to.strides, place.block, head, place.offset) + ElementOf(to.strides, d), x);
}

struct GatheredRows {
  StridedPlane k_cache, v_cache;
  Floats k, v;
  int64_t k_stride;
  int64_t v_stride;
  int64_t num_heads;
  const int32_t* starts;       // [S + 1]
  const int32_t* block_table;  // Null: block s.
  int64_t max_blocks;
};

// Blocks for each sequence and head; the grid's z tells K from V.
__global__ void __launch_bounds__(kThreads) GatherKernel(GatheredRows args) {
  const bool is_key = blockIdx.z == 0;
  const StridedPlane& from = is_key ? args.k_cache : args.v_cache;
  const int64_t s = blockIdx.x / args.num_heads, head = blockIdx.x % args.num_heads;
  const int64_t first = args.starts[s], elements = (args.starts[s + 1] - first) * from.plane.dim;
  for (int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x; i < elements;
       i += kParts * kThreads) {
    const auto d = static_cast<int32_t>(i % from.plane.dim);
    const int64_t row = i / from.plane.dim, size = from.plane.block_size;
    const int64_t block =
        args.block_table == nullptr ? s : args.block_table[s * args.max_blocks + row / size];
    const int64_t at = RowOf(from.strides, block, head, row % size) + ElementOf(from.strides, d);
    const float x = LoadElement(from, head, at);
    const int64_t to = (first + row) * (is_key ? args.k_stride : args.v_stride);
    StoreFloat(is_key ? args.k : args.v, to + head * from.plane.dim + d, x);
  }
}

}  // namespace cache_rows

namespace {

using cache_rows::kThreads;
using cache_rows::NewRows;

NewRows NewRowsOf(const CachePlane& k_cache, const CachePlane& v_cache) {
  NewRows rows{};
  rows.k_cache = StridedPlaneOf(k_cache, CacheRole::kKey);
  rows.v_cache = StridedPlaneOf(v_cache, CacheRole::kValue);
  return rows;
}

cudaError_t LaunchWrite(const NewRows& rows, cudaStream_t stream) {
  const CachePlane& k = rows.k_cache.plane;
  const CachePlane& v = rows.v_cache.plane;
  const int64_t elements = rows.num_tokens * k.num_heads * std::max(k.dim, v.dim);
  if (elements == 0) return cudaSuccess;
  return Launch(cache_rows::WriteKernel, dim3(BlocksFor(elements, kThreads), 1, 2), kThreads, 0,
                stream, rows);
}

}  // namespace

cudaError_t WriteStridedRows(const ReshapeAndCacheArgs& args, cudaStream_t stream) {
  NewRows rows = NewRowsOf(args.k_cache, args.v_cache);
  rows.k = args.key;
  rows.v = args.value;
  rows.k_stride = args.key_stride;
  rows.v_stride = args.value_stride;
  rows.num_tokens = args.num_tokens;
  rows.slots = args.slot_mapping;
  return LaunchWrite(rows, stream);
}

cudaError_t AppendRows(const AttentionWithKvCacheArgs& args, cudaStream_t stream) {
  NewRows rows = NewRowsOf(args.k_cache, args.v_cache);
  rows.k = args.k;
  rows.v = args.v;
  rows.k_stride = int64_t{args.k_cache.num_heads} * args.k_cache.dim;
  rows.v_stride = int64_t{args.v_cache.num_heads} * args.v_cache.dim;
  rows.num_tokens = args.num_seqs * args.num_new;
  rows.num_new = args.num_new;
  rows.cache_seqlens = args.cache_seqlens;
  rows.cache_seqlen = args.cache_seqlen;
  rows.batch_blocks = args.cache_batch_idx;
  rows.block_table = args.block_table;
  rows.max_blocks = args.max_blocks;
  rows.rotation = RotationOf(args);
  return LaunchWrite(rows, stream);
}

cudaError_t UpdateKvCache(const UpdateKvCacheArgs& args, cudaStream_t stream) {
  const cudaError_t error = ReshapeAndCache(args.append, stream);
  if (error != cudaSuccess || args.num_seqs == 0) return error;
  const CachePlane& k = args.append.k_cache;
  const CachePlane& v = args.append.v_cache;
  const int64_t blocks = args.num_seqs * k.num_heads;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  const cache_rows::GatheredRows rows{.k_cache = StridedPlaneOf(k, CacheRole::kKey),
                                      .v_cache = StridedPlaneOf(v, CacheRole::kValue),
                                      .k = args.k_out,
                                      .v = args.v_out,
                                      .k_stride = args.k_out_stride,
                                      .v_stride = args.v_out_stride,
                                      .num_heads = k.num_heads,
                                      .starts = args.cu_seqlens_k,
                                      .block_table = args.block_table,
                                      .max_blocks = args.max_blocks};
  return Launch(cache_rows::GatherKernel,
                dim3(static_cast<unsigned>(blocks), cache_rows::kParts, 2), kThreads, 0, stream,
                rows);
}

}  // namespace baton::cuda
