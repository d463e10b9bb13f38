#pragma once

#include <cstdint>

#include "kernels/api/model_args.h"
#include "kernels/api/step_args.h"
#include "kernels/cuda/operands.h"

// Operators that work on each element alone: their bits are those of the CPU.
namespace baton::cuda {

// baton::RopeArgs over device memory, in place: rotates pairs (x[i], x[i + rotary_dim / 2]) of each
// head, or with `interleaved` (x[2 i], x[2 i + 1]).
struct RopeArgs {
  Floats x;              // [num_tokens, num_heads, head_dim]
  int64_t x_stride = 0;  // Elements from token to token.
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;              // Even, <= head_dim.
  const float* cos = nullptr;          // [rows, rotary_dim / 2]
  const float* sin = nullptr;          // [rows, rotary_dim / 2]
  const int32_t* positions = nullptr;  // [num_tokens]: a token's row of the tables; null: its own.
  bool interleaved = false;
};
cudaError_t Rope(const RopeArgs& args, cudaStream_t stream);

// out = act(x).
struct ActivationArgs {
  ConstFloats x;  // [num_tokens, dim], dense
  int64_t num_tokens = 0;
  int64_t dim = 0;
  ActivationKind activation = ActivationKind::kSilu;
  Floats out;  // [num_tokens, dim], dense; may be `x`.
};
cudaError_t Activation(const ActivationArgs& args, cudaStream_t stream);

// out = act(gate) * up.
struct ActivationAndMulArgs {
  ConstFloats gate_up;  // [num_tokens, 2 * dim]: gate, then up. Dense.
  int64_t num_tokens = 0;
  int64_t dim = 0;
  ActivationKind activation = ActivationKind::kSilu;
  Floats out;  // [num_tokens, dim], dense
};
cudaError_t ActivationAndMul(const ActivationAndMulArgs& args, cudaStream_t stream);

// x = cap * tanh(x / cap) in place.
struct SoftcapArgs {
  Floats x;  // [num_tokens, dim]
  int64_t x_stride = 0;
  int64_t num_tokens = 0;
  int64_t dim = 0;
  float cap = 0;
};
cudaError_t Softcap(const SoftcapArgs& args, cudaStream_t stream);

// out[t] = table[tokens[t]].
struct EmbeddingArgs {
  ConstFloats table;                // [vocab_size, dim], dense
  const int32_t* tokens = nullptr;  // [num_tokens], each in [0, vocab_size)
  int64_t num_tokens = 0;
  int64_t dim = 0;
  Floats out;  // [num_tokens, dim], dense
};
cudaError_t Embedding(const EmbeddingArgs& args, cudaStream_t stream);

// baton::AdvanceStepArgs whose arrays are in device memory.
cudaError_t AdvanceStep(const AdvanceStepArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
