#pragma once

// Rows of a cache that is not packed, a group of neighbours at a time.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/api/cache_args.h"
#include "kernels/cuda/operands.h"

namespace baton::cuda {

constexpr int kGroup = 8;  // Elements of a row that a thread writes.

// Elements from token to token and from head to head within a block.
struct Steps {
  int64_t token;
  int64_t head;
};

// kCount neighbours, aligned to their common size or to 16 bytes.
template <int kCount, typename Cache>
BATON_DEVICE void StoreVectors(Cache* to, const Cache (&values)[kCount]) {
  constexpr int kBytes = kCount * int{sizeof(Cache)};
  using Vector =
      std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 8, uint2, uint4>>;
  Vector raw[kBytes / sizeof(Vector)];
  memcpy(raw, values, sizeof(values));
  BATON_UNROLL
  for (int i = 0; i < kBytes / int{sizeof(Vector)}; ++i) reinterpret_cast<Vector*>(to)[i] = raw[i];
}

// A head's row of the cache.
template <typename Cache>
BATON_DEVICE Cache* RowOf(const CachePlane& cache, const Steps& steps, int64_t slot, int64_t head) {
  return reinterpret_cast<Cache*>(cache.data) + slot / cache.block_size * cache.block_stride +
         slot % cache.block_size * steps.token + head * steps.head;
}

BATON_DEVICE float ScaleOf(const CachePlane& cache, int64_t head) {
  if (cache.num_scales == 0) return 1.0f;
  return cache.scales[cache.num_scales == 1 ? 0 : head];
}

inline Steps StepsOf(const CachePlane& plane) {
  if (plane.layout == CacheLayout::kHnd) {
    const int64_t token = plane.token_stride == 0 ? plane.dim : plane.token_stride;
    return {token, plane.head_stride == 0 ? plane.block_size * token : plane.head_stride};
  }
  const int64_t head = plane.head_stride == 0 ? plane.dim : plane.head_stride;
  return {plane.token_stride == 0 ? plane.num_heads * head : plane.token_stride, head};
}

// Whether every group of a row can be read and written as vectors.
inline bool HasGroups(ConstFloats from, int64_t stride, const CachePlane& plane,
                      const Steps& steps) {
  const int64_t bytes = std::min(16, kGroup * SizeOf(plane.dtype));
  return plane.dim % kGroup == 0 && HasVectors(from.data, from.dtype, plane.dim, stride) &&
         plane.block_stride % kGroup == 0 && steps.token % kGroup == 0 &&
         steps.head % kGroup == 0 && reinterpret_cast<uintptr_t>(plane.data) % bytes == 0;
}

}  // namespace baton::cuda
