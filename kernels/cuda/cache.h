#pragma once

#include <cstdint>

#include "kernels/api/attention_args.h"
#include "kernels/api/cache_args.h"
#include "kernels/api/fused_args.h"
#include "kernels/cuda/operands.h"

// Writing to a paged cache and moving its blocks. Planes are given from host memory, their data and
// scales are the device's (or pinned); index arrays and staging memory too.
namespace baton::cuda {

// Writes the bytes that the CPU writes. cudaErrorInvalidValue for planes of two types or layouts.
cudaError_t ReshapeAndCache(const ReshapeAndCacheArgs& args, cudaStream_t stream);

// Whether RopeAndCache serves it: half types, planes of such or of fp8 that are not packed, and all
// that vectors can load. Else Rope and ReshapeAndCache do.
bool RopeAndCacheServes(const RopeAndCacheArgs& args);

// With the bits of Rope and ReshapeAndCache; new keys stay as they are.
cudaError_t RopeAndCache(const RopeAndCacheArgs& args, cudaStream_t stream);

// Of any layout and type, element by element: the same, and what AttentionWithKvCache does first.
// Rows that the cache does not have for a sequence are not written.
cudaError_t WriteStridedRows(const ReshapeAndCacheArgs& args, cudaStream_t stream);
cudaError_t AppendRows(const AttentionWithKvCacheArgs& args, cudaStream_t stream);
cudaError_t UpdateKvCache(const UpdateKvCacheArgs& args, cudaStream_t stream);

// In one launch where all planes have one shape and the heads of a block lie in one piece; else in
// one for each plane.
cudaError_t CopyBlocks(const CopyBlocksArgs& args, cudaStream_t stream);
cudaError_t SwapBlocks(const SwapBlocksArgs& args, cudaStream_t stream);
cudaError_t GatherBlocks(const GatherBlocksArgs& args, cudaStream_t stream);
cudaError_t ScatterBlocks(const ScatterBlocksArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
