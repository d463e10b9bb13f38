#pragma once

#include "kernels/api/sample_args.h"
#include "kernels/cuda/dialect.h"

// Choosing tokens: the CPU's results, bit by bit. All arrays are in device memory or pinned.
namespace baton::cuda {

cudaError_t Sample(const SampleArgs& args, cudaStream_t stream);
cudaError_t Score(const ScoreArgs& args, cudaStream_t stream);
cudaError_t TakeTokens(const TakeTokensArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
