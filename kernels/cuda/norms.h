#pragma once

#include <cstdint>

#include "kernels/cuda/operands.h"

namespace baton::cuda {

// baton::RmsNormArgs over device memory: out = x / sqrt(mean(x^2) + eps) * weight, or
// * (1 + weight), rounded to the type of `out`. With `residual`, first residual += x and the sum is
// what is normalised. Bits depend on the row alone. `out` may be `x` if their types are the same.
struct RmsNormArgs {
  ConstFloats x;         // [num_tokens, rows_per_token, dim]
  int64_t x_stride = 0;  // Elements from token to token; rows of a token are dense.
  int64_t num_tokens = 0;
  int64_t rows_per_token = 1;
  int64_t dim = 0;
  const float* weight = nullptr;  // [dim]
  bool one_plus_weight = false;
  float eps = 0;
  float* residual = nullptr;  // [num_tokens, dim] dense, or null; needs rows_per_token = 1.
  Floats out;                 // [num_tokens, rows_per_token, dim]
  int64_t out_stride = 0;
};
cudaError_t RmsNorm(const RmsNormArgs& args, cudaStream_t stream);

// baton::LayerNormArgs over device memory: out = (x - mean) / sqrt(variance + eps) * weight + bias.
struct LayerNormArgs {
  ConstFloats x;         // [num_tokens, dim]
  int64_t x_stride = 0;  // Elements from token to token.
  int64_t num_tokens = 0;
  int64_t dim = 0;
  const float* weight = nullptr;  // [dim]
  const float* bias = nullptr;    // [dim], or null.
  float eps = 0;
  Floats out;  // [num_tokens, dim]
  int64_t out_stride = 0;
};
cudaError_t LayerNorm(const LayerNormArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
