#pragma once

#include "kernels/api/fused_args.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// Whether GatedGemm serves it: half types throughout, one segment, and whole groups of 8 gates.
// Else Gemm and ActivationAndMul do.
bool GatedGemmServes(const GatedGemmArgs& args);

// With the bits of Gemm and ActivationAndMul; product.out is not touched.
cudaError_t GatedGemm(const GatedGemmArgs& args, cudaStream_t stream);

// The form of it for every GPU, of what GatedGemmServes. On sm_90a GatedGemm has another for few
// rows (small_gemm_sm90.h).
cudaError_t MmaGatedGemm(const GatedGemmArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
