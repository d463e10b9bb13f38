#pragma once

#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// What the tensor cores give to mma.sync, the one instruction that kernels for every GPU have for
// them: blocks that issue nothing else.
struct TensorPeak {
  static constexpr int kThreads = 256;
  static constexpr int kChains = 8;  // Of a warp, each behind the other's results.

  int blocks = 1;
  int rounds = 1;  // Of each chain.

  double ops() const { return 2.0 * 16 * 8 * 16 * kChains * (kThreads / 32.0) * blocks * rounds; }
};

// Of bf16. sums: one float of each thread, in device memory.
cudaError_t MultiplyOnly(const TensorPeak& peak, float* sums, cudaStream_t stream);

// And on sm_90a to wgmma, of operands in shared memory that nobody fills anew, by two warpgroups of
// a block.
struct TensorPeakSm90 {
  static constexpr int kThreads = 256;
  static constexpr int kRows = 64;  // Of a warpgroup's product.
  static constexpr int kColumns = 256;
  static constexpr int kTileK = 64;  // Of a round.

  int blocks = 1;
  int rounds = 1;

  double ops() const {
    return 2.0 * kRows * kColumns * kTileK * (kThreads / 128.0) * blocks * rounds;
  }
};

// As MultiplyOnly, where IsSm90().
cudaError_t MultiplyOnlySm90(const TensorPeakSm90& peak, float* sums, cudaStream_t stream);

}  // namespace baton::cuda
