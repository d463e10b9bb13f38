#pragma once

// Where in a batch a block's queries are, if no block is to be launched in vain for sequences that
// are shorter than the longest.

#include "kernels/cuda/attention_problem.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda::attention {

// Which queries of which sequence a block has.
struct Place {
  int64_t s;  // Below 0: none.
  int tile;
};

// The tiles of all sequences one after the other, however much longer than the others one is. The
// last rows of a sequence see the most keys: they come first. By each warp.
BATON_DEVICE Place PlaceOf(const Problem& args, int queries, int64_t index) {
  const int lane = threadIdx.x % 32;
  int64_t before = 0;
  BATON_ROLLED
  for (int64_t first = 0; first < args.num_seqs; first += 32) {
    int64_t end = 0;
    if (first + lane < args.num_seqs) {
      const int32_t* starts = args.cu_seqlens_q + first + lane;
      end = (starts[1] - starts[0] + queries - 1) / queries;
    }
    BATON_UNROLL
    for (int by = 1; by < 32; by *= 2) {
      const int64_t other = __shfl_up_sync(~0u, end, by);
      if (lane >= by) end += other;
    }
    end += before;
    const unsigned behind = __ballot_sync(~0u, end > index);
    if (behind != 0) {
      const int at = __ffs(static_cast<int>(behind)) - 1;
      return {first + at, static_cast<int>(__shfl_sync(~0u, end, at) - 1 - index)};
    }
    before = __shfl_sync(~0u, end, 31);
  }
  return {-1, 0};
}

}  // namespace baton::cuda::attention
