#pragma once

#include <cstdint>

#include "kernels/api/cache_args.h"
#include "kernels/cuda/operands.h"

// Writing to a paged cache and moving its blocks. Planes are given from host memory, their data and
// scales are the device's (or pinned); index arrays and staging memory too. Layouts are kHnd and
// kNhd; kPacked is refused with cudaErrorInvalidValue.
namespace baton::cuda {

// Writes the bytes that the CPU writes.
cudaError_t ReshapeAndCache(const ReshapeAndCacheArgs& args, cudaStream_t stream);

// Blocks here are dense; a range of heads needs kHnd. All planes of a call have one shape.
cudaError_t CopyBlocks(const CopyBlocksArgs& args, cudaStream_t stream);
cudaError_t SwapBlocks(const SwapBlocksArgs& args, cudaStream_t stream);
cudaError_t GatherBlocks(const GatherBlocksArgs& args, cudaStream_t stream);
cudaError_t ScatterBlocks(const ScatterBlocksArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
