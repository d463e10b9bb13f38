#pragma once

#include "kernels/api/model_args.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// Whether the thread's device runs what is compiled for sm_90a.
bool IsSm90();

// Whether GemmSm90 takes them: rows of both operands, and of all their segments, begin at multiples
// of 16 bytes. The types are the caller's to check.
bool GemmSm90Takes(const GemmArgs& args);

// Gemm with wgmma and tensor copies, for sm_90a alone: the bits that MmaGemm has there. Segments
// are folded where they are summed, and need no scratch.
cudaError_t GemmSm90(const GemmArgs& args, cudaStream_t stream);

// The same where its tiles are of 256 weights, which they are where that pays, of one segment.
cudaError_t WideGemmSm90(const GemmArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
