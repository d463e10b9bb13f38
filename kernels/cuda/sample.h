#pragma once

#include <cstdint>
#include <span>

#include "kernels/api/sample_args.h"
#include "kernels/cuda/dialect.h"

// Choosing tokens: the CPU's results, bit by bit. All arrays are in device memory or pinned.
namespace baton::cuda {

// With scratch memory of SampleScratchBytes, aligned to 8 bytes, long rows are divided among
// blocks, four launches; with less a block has each row. The results are the same.
cudaError_t Sample(const SampleArgs& args, std::span<float> scratch, cudaStream_t stream);
int64_t SampleScratchBytes(const SampleArgs& args);
// Of what Sample makes use: each row in so many parts, at most 32.
cudaError_t SampleByParts(const SampleArgs& args, void* scratch, int parts, cudaStream_t stream);
cudaError_t Score(const ScoreArgs& args, cudaStream_t stream);
cudaError_t TakeTokens(const TakeTokensArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
