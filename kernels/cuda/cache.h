#pragma once

#include <cstdint>

#include "kernels/api/cache_args.h"
#include "kernels/cuda/operands.h"

// Writing to a paged cache and moving its blocks. Planes are given from host memory, their data and
// scales are the device's (or pinned); index arrays and staging memory too. Layouts are kHnd and
// kNhd; kPacked is refused with cudaErrorInvalidValue.
namespace baton::cuda {

// baton::ReshapeAndCacheArgs over device memory: the bytes that the CPU writes.
struct ReshapeAndCacheArgs {
  ConstFloats key;         // [>= num_tokens, num_heads, dim of k_cache]
  int64_t key_stride = 0;  // Elements from token to token.
  ConstFloats value;       // [>= num_tokens, num_heads, dim of v_cache]; the type of `key`.
  int64_t value_stride = 0;
  const int64_t* slot_mapping = nullptr;  // [num_tokens]: block * block_size + offset; < 0 = skip.
  int64_t num_tokens = 0;
  CachePlane k_cache;
  CachePlane v_cache;
};
cudaError_t ReshapeAndCache(const ReshapeAndCacheArgs& args, cudaStream_t stream);

// Blocks here are dense; a range of heads needs kHnd. All planes of a call have one shape.
cudaError_t CopyBlocks(const CopyBlocksArgs& args, cudaStream_t stream);
cudaError_t SwapBlocks(const SwapBlocksArgs& args, cudaStream_t stream);
cudaError_t GatherBlocks(const GatherBlocksArgs& args, cudaStream_t stream);
cudaError_t ScatterBlocks(const ScatterBlocksArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
