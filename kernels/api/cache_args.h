#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"

namespace baton {

// One plane (K or V) of one layer of a paged cache in HND order:
// [num_blocks, num_heads, block_size, dim]. Borrowed.
struct CachePlane {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_blocks = 0;
  int32_t num_heads = 0;
  int32_t block_size = 0;    // Tokens per block.
  int32_t dim = 0;           // Elements of one head of one token.
  int64_t block_stride = 0;  // Elements from block to block; >= num_heads * block_size * dim.
};

// Writes the K and V of new tokens into their slots, rounded to the cache's dtype (nearest, ties
// to even). Bytes outside those slots are not touched.
struct ReshapeAndCacheArgs {
  const float* key = nullptr;    // [>= num_tokens, num_heads, dim of k_cache]
  int64_t key_stride = 0;        // Elements from token to token.
  const float* value = nullptr;  // [>= num_tokens, num_heads, dim of v_cache]
  int64_t value_stride = 0;
  const int64_t* slot_mapping = nullptr;  // [num_tokens]: block * block_size + offset; < 0 = skip.
  int64_t num_tokens = 0;
  CachePlane k_cache;
  CachePlane v_cache;
};

struct BlockPair {
  int64_t source = 0;
  int64_t destination = 0;
};

// Copies whole blocks within each plane, byte for byte. One source may have several destinations; a
// destination named twice, or that is also a source, is refused.
struct CopyBlocksArgs {
  const CachePlane* planes = nullptr;  // [num_planes], e.g. K and V of every layer.
  int64_t num_planes = 0;
  const BlockPair* pairs = nullptr;  // [num_pairs]
  int64_t num_pairs = 0;
};

// Copies whole blocks from one cache to another of the same block shape and dtype. A destination
// named twice is refused.
struct SwapBlocksArgs {
  const CachePlane* sources = nullptr;       // [num_planes]
  const CachePlane* destinations = nullptr;  // [num_planes]
  int64_t num_planes = 0;
  const BlockPair* pairs = nullptr;  // [num_pairs]
  int64_t num_pairs = 0;
};

}  // namespace baton
