#pragma once

#include <cstdint>

#include "kernels/cuda/operands.h"

namespace baton::cuda {

// baton::GemmArgs over device memory: out = a * weights^T + bias, on tensor cores. Each output
// starts from zero and adds its products in steps of 16 of k, ascending, as one mma.sync.m16n8k16
// does (kernels/emulation/tensor_core.h), whatever m and n are; then the bias; then it is rounded to
// the type of `out`. So a row's bits depend on nothing but the row and the weights.
struct GemmArgs {
  ConstFloats a;                // [m, k], bf16 or f16.
  int64_t a_stride = 0;         // Elements from row to row.
  ConstFloats weights;          // [n, k], the type of `a`.
  int64_t weights_stride = 0;   // Elements from row to row. Fast are multiples of 8, as for `a`.
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const float* bias = nullptr;  // [n], or null.
  Floats out;                   // [m, n], f32 or the type of `a`.
  int64_t out_stride = 0;
};

// cudaErrorInvalidValue for other types.
cudaError_t Gemm(const GemmArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
