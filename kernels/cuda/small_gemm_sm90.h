#pragma once

#include "kernels/api/fused_args.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// Gemm of at most 64 rows of `a` with wgmma and tensor copies, for sm_90a alone: the bits that
// MmaGemm has there. It takes what GemmSm90Takes says. A block for each segment of k, of which a
// cluster of 1, 2, 4 or 8 folds all in its blocks' shared memory, and needs no scratch.
cudaError_t SmallGemmSm90(const GemmArgs& args, cudaStream_t stream);

// The same of what GatedGemmServes, with the bits of GatedGemm.
cudaError_t SmallGatedGemmSm90(const GatedGemmArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
