#pragma once

#include <cstdint>

#include "kernels/api/model_args.h"
#include "kernels/api/step_args.h"
#include "kernels/cuda/operands.h"

// Operators that work on each element alone: their bits are those of the CPU.
namespace baton::cuda {

cudaError_t Rope(const RopeArgs& args, cudaStream_t stream);
cudaError_t Activation(const ActivationArgs& args, cudaStream_t stream);
cudaError_t ActivationAndMul(const ActivationAndMulArgs& args, cudaStream_t stream);
cudaError_t Softcap(const SoftcapArgs& args, cudaStream_t stream);
cudaError_t AdvanceStep(const AdvanceStepArgs& args, cudaStream_t stream);
cudaError_t FoldPartials(const FoldPartialsArgs& args, cudaStream_t stream);
cudaError_t Embedding(const EmbeddingArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
