#pragma once

#include "kernels/api/model_args.h"
#include "kernels/cuda/operands.h"

namespace baton::cuda {

// The bits of a row depend on the row alone. `out` may be `x` if their types are the same.
cudaError_t RmsNorm(const RmsNormArgs& args, cudaStream_t stream);
// With the bits of FoldPartials and of RmsNorm of what that gives; fold.out and norm.x are not
// looked at. Of several parts, with a residual.
cudaError_t FoldAndNorm(const FoldPartialsArgs& fold, const RmsNormArgs& norm, cudaStream_t stream);
cudaError_t LayerNorm(const LayerNormArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
