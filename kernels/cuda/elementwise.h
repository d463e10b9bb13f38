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

// out[t] = table[tokens[t]].
struct EmbeddingArgs {
  ConstFloats table;                // [vocab_size, dim]
  int64_t table_stride = 0;         // Elements from row to row.
  const int32_t* tokens = nullptr;  // [num_tokens], each in [0, vocab_size)
  int64_t num_tokens = 0;
  int64_t dim = 0;
  Floats out;              // [num_tokens, dim]
  int64_t out_stride = 0;  // Elements from row to row; 0: dense.
};
cudaError_t Embedding(const EmbeddingArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
