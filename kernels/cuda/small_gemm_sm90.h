#pragma once

#include "kernels/api/fused_args.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// Gemm of few rows of `a` with wgmma and tensor copies, for sm_90a alone: the bits that MmaGemm has
// there. It takes what GemmSm90Takes says. A block for each segment of k, of which a cluster of 1,
// 2, 4 or 8 folds all in its blocks' shared memory, and needs no scratch.
// Any number of rows is right.
cudaError_t SmallGemmSm90(const GemmArgs& args, cudaStream_t stream);

// Whether it is rather for it than for GemmSm90: up to 64 rows, and up to 256, or 128 of several
// segments, if that would leave SMs without a block which this gives one.
bool SmallGemmSm90Pays(const GemmArgs& args);

// The same of what GatedGemmServes, with the bits of GatedGemm.
cudaError_t SmallGatedGemmSm90(const GatedGemmArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
