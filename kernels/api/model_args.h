#pragma once

#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/api/operands.h"
#include "kernels/api/packed_matrix.h"

namespace baton {

// out = x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang, Sennrich 2019), or
// * (1 + weight). With `residual`, first residual += x and the sum is what is normalised.
// `out` may be `x`.
struct RmsNormArgs {
  ConstFloats x;         // [num_tokens, rows_per_token, dim]
  int64_t x_stride = 0;  // Elements from token to token; rows of a token are dense.
  int64_t num_tokens = 0;
  int64_t rows_per_token = 1;  // E.g. the heads of q.
  int64_t dim = 0;
  const float* weight = nullptr;  // [dim]
  bool one_plus_weight = false;
  float eps = 0;                 // Finite, >= 0.
  float* residual = nullptr;     // [num_tokens, dim], or null; needs rows_per_token = 1.
  int64_t residual_stride = 0;   // Elements from token to token; 0: dense.
  DType round_to = DType::kF32;  // What `out` is rounded to, kept as float.
  Floats out;                    // [num_tokens, rows_per_token, dim]
  int64_t out_stride = 0;
};

// out = (x - mean) / sqrt(variance + eps) * weight + bias over the last dimension (Ba et al. 2016);
// the variance is that of the population. `out` may be `x`.
struct LayerNormArgs {
  ConstFloats x;         // [num_tokens, dim]
  int64_t x_stride = 0;  // Elements from token to token.
  int64_t num_tokens = 0;
  int64_t dim = 0;
  const float* weight = nullptr;  // [dim]
  const float* bias = nullptr;    // [dim], or null.
  float eps = 0;                  // Finite, >= 0.
  DType round_to = DType::kF32;   // What `out` is rounded to, kept as float.
  Floats out;                     // [num_tokens, dim]
  int64_t out_stride = 0;
};

// Rotates pairs (x[i], x[i + rotary_dim/2]) of each head in place, or with `interleaved`
// (x[2 i], x[2 i + 1]); the other elements stay.
struct RopeArgs {
  Floats x;              // [num_tokens, num_heads, head_dim]
  int64_t x_stride = 0;  // Elements from token to token.
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;      // Even, <= head_dim.
  const float* cos = nullptr;  // [num_tokens, rotary_dim / 2]
  const float* sin = nullptr;  // [num_tokens, rotary_dim / 2]
  bool interleaved = false;
};

// x * sigmoid(x), x * Phi(x), its tanh approximation (Hendrycks, Gimpel 2016), max(x, 0).
enum class ActivationKind : uint8_t { kSilu, kGelu, kGeluTanh, kRelu };

// out = act(x). `out` may be `x`.
struct ActivationArgs {
  ConstFloats x;  // [num_tokens, dim], dense
  int64_t num_tokens = 0;
  int64_t dim = 0;
  ActivationKind activation = ActivationKind::kSilu;
  DType round_to = DType::kF32;  // What `out` is rounded to, kept as float.
  Floats out;                    // [num_tokens, dim], dense
};

// out = act(gate) * up.
struct ActivationAndMulArgs {
  ConstFloats gate_up;  // [num_tokens, 2 * dim]: gate, then up.
  int64_t num_tokens = 0;
  int64_t dim = 0;
  ActivationKind activation = ActivationKind::kSilu;
  DType round_to = DType::kF32;  // What `out` is rounded to, kept as float.
  Floats out;                    // [num_tokens, dim]
  int64_t gate_up_stride = 0;    // Elements from token to token; 0: dense. So too the next.
  int64_t out_stride = 0;
};

// x = cap * tanh(x / cap) in place, of logits (Gemma 2).
struct SoftcapArgs {
  Floats x;  // [num_tokens, dim]
  int64_t x_stride = 0;
  int64_t num_tokens = 0;
  int64_t dim = 0;
  float cap = 0;  // > 0, finite
};

// Ranks that a model may be divided among.
inline constexpr int32_t kMaxRanks = 8;

// out[t] = table[tokens[t]] * scale. The rows of the table may be divided among matrices, one of
// each rank: row i is row i % rows_each of shards[i / rows_each].
struct EmbeddingArgs {
  const PackedMatrix* shards[kMaxRanks] = {};  // [rows_each, dim] each; the last may have fewer.
  int32_t num_shards = 1;
  int64_t rows_each = 0;            // Of several shards.
  const int32_t* tokens = nullptr;  // [num_tokens], each in [0, vocab_size)
  int64_t num_tokens = 0;
  float scale = 1;         // Multiplies what is read, finite.
  Floats out;              // [num_tokens, dim]
  int64_t out_stride = 0;  // Elements from token to token; 0: dense.

  int64_t num_rows() const { return (num_shards - 1) * rows_each + shards[num_shards - 1]->n(); }
};

// Rows of weights that a product may begin at are multiples of it.
inline constexpr int64_t kWeightRows = 32;

// out = a * weights^T + bias. Each output starts from zero and adds its k products in one order,
// whatever m is, then the bias. The order is ascending, with fused multiply-adds; but where the
// device has an instruction for bf16 by bf16, and weights are bf16 and a_rounded_to is too, it is
// that of the instruction, which reads subnormals as zero and turns subnormal results into zero:
// - a bf16 dot product (VDPBF16PS): pairs (2i, 2i + 1) ascending, within a pair the odd product
//   first, each by a fused multiply-add;
// - tiles (TDPBF16PS): groups of 32 of k ascending; of a group, products of even and of odd k are
//   summed apart from zero, ascending, by fused multiply-adds, then added to each other, and that
//   to the sum of the groups before.
// With several `segments` k is cut into so many equal parts. Each starts from zero and has the
// order above; then neighbours are added in f32, as a balanced tree: ((0 + 1) + (2 + 3)) + ...;
// then the bias. So a product that is divided among ranks by k has the bits of the whole: a rank's
// segments make a subtree, and FoldPartials adds what the ranks have.
// With the output layer's weights this makes the logits.
struct GemmArgs {
  ConstFloats a;         // [m, k]
  int64_t a_stride = 0;  // Elements from row to row.
  int64_t m = 0;
  DType a_rounded_to = DType::kF32;       // bf16: the values of `a` are bf16 values.
  const PackedMatrix* weights = nullptr;  // [>= first_row + n, k]
  const float* bias = nullptr;            // [n], or null.
  Floats out;                             // [m, n]
  int64_t out_stride = 0;
  int32_t segments = 1;   // 1, 2, 4 or 8; of several, each has a multiple of 32 of k.
  int64_t first_row = 0;  // Of the weights; a multiple of kWeightRows.
  int64_t num_rows = 0;   // n; 0: all from first_row on.

  int64_t n() const { return num_rows == 0 ? weights->n() - first_row : num_rows; }
};

// out = parts[0] + ... + bias in f32, as the tree of GemmArgs: of one part a copy, of two of which
// `out` is the first an addition to it.
struct FoldPartialsArgs {
  const float* parts[kMaxRanks] = {};  // [num_tokens, dim] each, wherever the device can read.
  int32_t num_parts = 1;               // 1, 2, 4 or 8.
  int64_t part_stride = 0;             // Elements from token to token; 0: dense.
  int64_t num_tokens = 0;
  int64_t dim = 0;
  const float* bias = nullptr;   // [dim], or null.
  DType round_to = DType::kF32;  // What `out` is rounded to, kept as float.
  Floats out;                    // [num_tokens, dim]; apart from the parts, or one of them.
  int64_t out_stride = 0;        // As part_stride.
};

// Puts parts with the same k one under the other. A CPU keeps their dtype, and parts of different
// ones become f32; a GPU rounds them to what it computes in.
struct PackWeightsArgs {
  const WeightRows* parts = nullptr;  // [num_parts]
  int64_t num_parts = 0;
  int64_t k = 0;
  DType compute = DType::kF32;
};

}  // namespace baton
