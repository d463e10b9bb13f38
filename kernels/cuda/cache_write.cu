#include <algorithm>

#include "kernels/cuda/cache.h"
#include "kernels/cuda/cache_groups.h"

namespace baton::cuda {
namespace cache_write {

constexpr int kThreads = 256;

// A thread for each group of a token's head; the grid's z tells K from V.
template <typename X, typename Cache>
__global__ void __launch_bounds__(kThreads)
    WriteKernel(ReshapeAndCacheArgs args, Steps k_steps, Steps v_steps, bool k_vectors,
                bool v_vectors) {
  const bool is_key = blockIdx.z == 0;
  const CachePlane& cache = is_key ? args.k_cache : args.v_cache;
  const Steps steps = is_key ? k_steps : v_steps;
  const int64_t per_row = (cache.dim + kGroup - 1) / kGroup;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.num_tokens * cache.num_heads * per_row) return;
  const int64_t first = index % per_row * kGroup, head = index / per_row % cache.num_heads;
  const int64_t token = index / per_row / cache.num_heads;
  const int64_t slot = args.slot_mapping[token];
  if (slot < 0) return;

  const X* from = static_cast<const X*>(is_key ? args.key.data : args.value.data) +
                  token * (is_key ? args.key_stride : args.value_stride) + head * cache.dim + first;
  Cache* const to = RowOf<Cache>(cache, steps, slot, head) + first;
  const float scale = ScaleOf(cache, head);
  if (is_key ? k_vectors : v_vectors) {
    Cache values[kGroup];
    BATON_UNROLL
    for (int i = 0; i < kGroup; i += 4) {
      float x[4];
      LoadFour(from + i, 4, true, x);
      BATON_UNROLL
      for (int j = 0; j < 4; ++j) values[i + j] = ToCache<Cache>(x[j], scale);
    }
    StoreVectors(to, values);
  } else {
    for (int i = 0; i < kGroup && first + i < cache.dim; ++i) {
      to[i] = ToCache<Cache>(ToFloat(from[i]), scale);
    }
  }
}

}  // namespace cache_write

namespace {

template <typename X, typename Cache>
cudaError_t LaunchWrite(const ReshapeAndCacheArgs& args, cudaStream_t stream) {
  const Steps k = StepsOf(args.k_cache), v = StepsOf(args.v_cache);
  const int64_t dim = std::max(args.k_cache.dim, args.v_cache.dim);
  const int64_t threads = args.num_tokens * args.k_cache.num_heads * ((dim + kGroup - 1) / kGroup);
  if (threads == 0) return cudaSuccess;
  return Launch(cache_write::WriteKernel<X, Cache>,
                dim3(BlocksFor(threads, cache_write::kThreads), 1, 2), cache_write::kThreads, 0,
                stream, args, k, v, HasGroups(args.key, args.key_stride, args.k_cache, k),
                HasGroups(args.value, args.value_stride, args.v_cache, v));
}

}  // namespace

cudaError_t ReshapeAndCache(const ReshapeAndCacheArgs& args, cudaStream_t stream) {
  const DType cache = args.k_cache.dtype, key = args.key.dtype;
  if (cache != args.v_cache.dtype || args.k_cache.layout != args.v_cache.layout) {
    return cudaErrorInvalidValue;
  }
  const bool is_model =  // What a model writes, in one type or two of which one is f32 or fp8.
      key == args.value.dtype && args.k_cache.layout != CacheLayout::kPacked &&
      (key == DType::kF32 || cache == DType::kF32 || cache == key || IsFp8(cache));
  if (!is_model) return WriteStridedRows(args, stream);
  return WithFloatType(args.key.dtype, [&](auto x) {
    using X = decltype(x);
    if (cache == DType::kFp8E4M3) return LaunchWrite<X, Fp8E4M3>(args, stream);
    if (cache == DType::kFp8E5M2) return LaunchWrite<X, Fp8E5M2>(args, stream);
    return WithFloatTypes(args.key.dtype, cache, [&](auto, auto stored) {
      return LaunchWrite<X, decltype(stored)>(args, stream);
    });
  });
}

}  // namespace baton::cuda
