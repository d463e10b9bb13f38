#pragma once

// Where an element of a cache plane lies. Internal linkage: also included by files compiled per
// kernel set.

#include <cstdint>

#include "kernels/api/cache_args.h"

namespace baton {
namespace {

// What tells the two planes of the packed layout apart.
enum class CacheRole { kKey, kValue };

// Elements that lie together in the packed K plane.
inline int32_t PackedGroup(DType dtype) { return 16 / SizeOf(dtype); }

// Element d of a token and head lies at block * block + head * head + token * token +
// d / group_dim * group + d % group_dim.
struct CacheStrides {
  int64_t block = 0;
  int64_t head = 0;
  int64_t token = 0;
  int64_t group = 0;
  int32_t group_dim = 1;

  int64_t At(int64_t b, int64_t h, int64_t t) const { return b * block + h * head + t * token; }
};

inline CacheStrides StridesOf(const CachePlane& plane, CacheRole role) {
  const int64_t dim = plane.dim;
  const int64_t size = plane.block_size;
  CacheStrides s{.block = plane.block_stride, .group = dim, .group_dim = plane.dim};
  switch (plane.layout) {
    case CacheLayout::kHnd:
      s.token = plane.token_stride == 0 ? dim : plane.token_stride;
      s.head = plane.head_stride == 0 ? size * s.token : plane.head_stride;
      break;
    case CacheLayout::kNhd:
      s.head = plane.head_stride == 0 ? dim : plane.head_stride;
      s.token = plane.token_stride == 0 ? plane.num_heads * s.head : plane.token_stride;
      break;
    case CacheLayout::kPacked:
      s.group_dim = role == CacheRole::kKey ? PackedGroup(plane.dtype) : 1;
      s.token = s.group_dim;
      s.group = size * s.group_dim;
      s.head = size * dim;
      break;
  }
  return s;
}

// Whether the elements of a block lie in one piece.
inline bool IsDenseBlock(const CachePlane& plane) {
  return plane.head_stride == 0 && plane.token_stride == 0;
}

// Bytes of `num_heads` heads of one block; 0 stands for all.
inline int64_t HeadRangeBytes(const CachePlane& plane, int32_t num_heads) {
  return int64_t{num_heads == 0 ? plane.num_heads : num_heads} * plane.block_size * plane.dim *
         SizeOf(plane.dtype);
}

}  // namespace
}  // namespace baton
