#pragma once

#include "kernels/api/cache_args.h"
#include "kernels/cpu/thread_pool.h"

namespace baton {

// Bytes of `num_heads` heads of one block; 0 stands for all.
inline int64_t HeadRangeBytes(const CachePlane& plane, int32_t num_heads) {
  return int64_t{num_heads == 0 ? plane.num_heads : num_heads} * plane.block_size * plane.dim *
         SizeOf(plane.dtype);
}

// Copies of whole blocks and head ranges, on checked arguments, divided over the pool by plane and
// block when there is enough to copy.
void CopyBlocks(const CopyBlocksArgs& args, ThreadPool& pool);
void SwapBlocks(const SwapBlocksArgs& args, ThreadPool& pool);
void GatherBlocks(const GatherBlocksArgs& args, ThreadPool& pool);
void ScatterBlocks(const ScatterBlocksArgs& args, ThreadPool& pool);

}  // namespace baton
