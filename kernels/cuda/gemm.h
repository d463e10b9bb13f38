#pragma once

#include <span>

#include "kernels/api/fused_args.h"
#include "kernels/cuda/operands.h"

namespace baton::cuda {

// On tensor cores: `a` is bf16 or f16, the weights are of its type, `out` is f32 or of its type.
// Each output starts from zero and adds its products in steps of 16 of k, ascending, as one
// mma.sync.m16n8k16 does (kernels/emulation/tensor_core.h), whatever m and n are; then the bias;
// then it is rounded to the type of `out`. So a row's bits depend on nothing but the row and the
// weights. Each of several segments is such a sum, in `scratch`: cudaErrorMemoryAllocation where
// there is no room for those of one row (only the form for every GPU needs any).
// cudaErrorInvalidValue for other types, and for weights
// that another device has packed.
cudaError_t Gemm(const GemmArgs& args, std::span<float> scratch, cudaStream_t stream);

// The form of it for every GPU: mma.sync and cp.async. sm_90a has two others with the same bits:
// for few rows (small_gemm_sm90.h), and for more (gemm_sm90.h).
cudaError_t MmaGemm(const GemmArgs& args, std::span<float> scratch, cudaStream_t stream);
enum class GemmForm { kMma, kFewRowsSm90, kManyRowsSm90 };
// Which of them computes it here.
GemmForm FormOf(const GemmArgs& args);

// Whether GemmAndNorm serves it: of several segments. Else Gemm and RmsNorm do.
bool GemmAndNormServes(const GemmAndNormArgs& args);

// With the bits of Gemm and RmsNorm; product.out is not touched.
cudaError_t GemmAndNorm(const GemmAndNormArgs& args, std::span<float> scratch, cudaStream_t stream);

}  // namespace baton::cuda
