#pragma once

#include "kernels/api/model_args.h"
#include "kernels/cuda/operands.h"

namespace baton::cuda {

// The bits of a row depend on the row alone. `out` may be `x` if their types are the same.
cudaError_t RmsNorm(const RmsNormArgs& args, cudaStream_t stream);
cudaError_t LayerNorm(const LayerNormArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
