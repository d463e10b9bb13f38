#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/api/operands.h"

namespace baton {

// How a block of a plane lies in memory, the last dimension first.
enum class CacheLayout : uint8_t {
  kHnd,  // [num_heads, block_size, dim]: Baton's own.
  kNhd,  // [block_size, num_heads, dim]: FlashAttention's, and with one block per sequence that of
         // a contiguous cache.
  // vLLM's: K [num_heads, dim / x, block_size, x] with x elements in 16 bytes, V [num_heads, dim,
  // block_size]. dim is a multiple of x in both.
  kPacked,
};

// One plane (K or V) of one layer of a paged cache: num_blocks blocks of a layout. Borrowed.
//
// An fp8 plane stores saturate(x / scale) and reads stored * scale, both in f32.
struct CachePlane {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  CacheLayout layout = CacheLayout::kHnd;
  int64_t num_blocks = 0;
  int32_t num_heads = 0;
  int32_t block_size = 0;         // Tokens per block, in [1, 2^20].
  int32_t dim = 0;                // Elements of one head of one token.
  int64_t block_stride = 0;       // Elements from block to block; at least those of a block.
  int64_t head_stride = 0;        // Elements from head to head of a token; 0: dense. kPacked: 0.
  int64_t token_stride = 0;       // From token to token of a head; 0: dense. kPacked: 0.
  const float* scales = nullptr;  // [num_scales], > 0, fixed for the life of the plane's contents.
  int32_t num_scales = 0;         // 0: a scale of 1. fp8 also: 1, or one per head.
};

// Writes the K and V of new tokens into their slots, rounded to the cache's dtype (nearest, ties
// to even; fp8 saturates). Bytes outside those slots are not touched. A slot that two tokens name
// holds either of them, or parts of both.
struct ReshapeAndCacheArgs {
  ConstFloats key;         // [>= num_tokens, num_heads, dim of k_cache]
  int64_t key_stride = 0;  // Elements from token to token.
  ConstFloats value;       // [>= num_tokens, num_heads, dim of v_cache]
  int64_t value_stride = 0;
  const int64_t* slot_mapping = nullptr;  // [num_tokens]: block * block_size + offset; < 0 = skip.
  int64_t num_tokens = 0;
  CachePlane k_cache;
  CachePlane v_cache;
};

// The K and V of whole sequences out of a cache, beside each other, after those of new tokens were
// written into it: what DenseKeys take (Hugging Face's Cache.update; vLLM's gather_cache). A cache
// of one block per sequence is the contiguous one: then there is no table. fp8 planes are read with
// their scales. The outputs must not share memory with the planes.
struct UpdateKvCacheArgs {
  ReshapeAndCacheArgs append;  // num_tokens = 0: nothing is new. Its planes are read as well.
  int64_t num_seqs = 0;
  const int32_t* cu_seqlens_k = nullptr;  // [S + 1], cu_seqlens_k[0] = 0, not descending.
  const int32_t* block_table = nullptr;   // [S, max_blocks]; null: block s.
  int64_t max_blocks = 0;
  Floats k_out;  // [cu_seqlens_k[S], num_heads, dim of k_cache]; the heads of a token are dense.
  int64_t k_out_stride = 0;  // Elements from token to token.
  Floats v_out;              // [cu_seqlens_k[S], num_heads, dim of v_cache]
  int64_t v_out_stride = 0;
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

// Blocks [source, source + count) go to [destination, destination + count).
struct BlockRun {
  int64_t source = 0;
  int64_t destination = 0;
  int64_t count = 1;
};

// Heads [source, source + count) go to [destination, destination + count). A count of 0 stands for
// all heads of both planes.
struct HeadRun {
  int32_t source = 0;
  int32_t destination = 0;
  int32_t count = 0;
};

// Copies blocks, or a range of their heads, byte for byte from one cache to another of the same
// dtype, layout, block size and dim; strides and, with a head range, numbers of heads may differ.
// Long runs become few copies; a head range is one piece per head in kPacked, one per block in a
// dense kHnd and one per token in kNhd. A destination named twice is refused, and so is a
// destination plane that shares memory with another plane of the call; planes of one block stride
// whose blocks take turns share none. Scales are the caller's to compare.
struct SwapBlocksArgs {
  const CachePlane* sources = nullptr;       // [num_planes]
  const CachePlane* destinations = nullptr;  // [num_planes]
  int64_t num_planes = 0;
  const BlockRun* runs = nullptr;  // [num_runs]
  int64_t num_runs = 0;
  HeadRun heads;
};

// Copies a head range of some blocks into one dense piece of memory, byte for byte: what a
// transport sends. It is [num_planes][num_blocks][a block of the plane's layout with num_heads
// heads and no gaps].
struct GatherBlocksArgs {
  const CachePlane* planes = nullptr;  // [num_planes]
  int64_t num_planes = 0;
  const int32_t* blocks = nullptr;  // [num_blocks]
  int64_t num_blocks = 0;
  int32_t first_head = 0;
  int32_t num_heads = 0;         // 0: all, then first_head is 0.
  std::byte* staging = nullptr;  // [staging_bytes]
  int64_t staging_bytes = 0;     // >= what the blocks need; the rest is not touched.
};

// The way back. A block named twice is refused.
struct ScatterBlocksArgs {
  const CachePlane* planes = nullptr;
  int64_t num_planes = 0;
  const int32_t* blocks = nullptr;
  int64_t num_blocks = 0;
  int32_t first_head = 0;
  int32_t num_heads = 0;
  const std::byte* staging = nullptr;
  int64_t staging_bytes = 0;
};

}  // namespace baton
