#pragma once

#include "common/base/thread_pool.h"
#include "kernels/api/cache_args.h"

namespace baton {

// Copies of whole blocks and head ranges, on checked arguments, divided over the pool by plane and
// block when there is enough to copy.
void CopyBlocks(const CopyBlocksArgs& args, ThreadPool& pool);
void SwapBlocks(const SwapBlocksArgs& args, ThreadPool& pool);
void GatherBlocks(const GatherBlocksArgs& args, ThreadPool& pool);
void ScatterBlocks(const ScatterBlocksArgs& args, ThreadPool& pool);

}  // namespace baton
