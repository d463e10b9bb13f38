#pragma once

#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/api/operands.h"
#include "kernels/api/packed_matrix.h"

namespace baton {

// A layer of experts is MoeRouting, MoeAlign, ExpertGemm (gate and up), ActivationAndMul,
// ExpertGemm (down), MoeCombine. T tokens, E experts, k choices per token; a flat row t * k + c is
// choice c of token t.

// Most experts of a layer.
inline constexpr int64_t kMaxExperts = 1024;

// softmax over the E logits of a token, or 1 / (1 + e^-x) of each.
enum class MoeScoring : uint8_t { kSoftmax, kSigmoid };

// Which k experts a token goes to, and their weights.
//   s      = scores of the logits
//   chosen = the k greatest s + selection_bias, the greatest first
//   w      = s of the chosen; with `renormalize` w / (sum of w + 1e-20); times scaling_factor
// Without a bias the logits themselves are compared, which grow with the scores and are not
// rounded. Equal ones: the lower index first. With num_groups > 1 the experts lie in groups of
// equal size; only those of the top_groups best groups can be chosen. A group is ranked by the sum
// of its two greatest s + selection_bias, or without a bias by its greatest logit.
//   Mixtral, Qwen3-MoE, OLMoE: softmax, renormalised or not. Softmax over the chosen only
//   (gpt-oss) is the same as softmax, renormalised.
//   DeepSeek-V2: softmax, groups. DeepSeek-V3 (arXiv 2412.19437): sigmoid, bias, groups, scaling.
// The ids are k different experts whatever the logits are. A NaN ranks below everything, -inf
// included, and is the weight's value if it is chosen (softmax: all weights of that token; so too
// with a logit of +inf, or with all of -inf). Other tokens do not see it.
struct MoeRoutingArgs {
  const float* logits = nullptr;  // [num_tokens, num_experts]
  int64_t logits_stride = 0;      // Elements from token to token.
  int64_t num_tokens = 0;         // num_tokens * top_k < 2^31.
  int64_t num_experts = 0;        // In [1, kMaxExperts].
  int64_t top_k = 0;              // In [1, num_experts].
  MoeScoring scoring = MoeScoring::kSoftmax;
  bool renormalize = false;
  const float* selection_bias = nullptr;  // [num_experts], or null.
  int64_t num_groups = 1;                 // Divides num_experts.
  int64_t top_groups = 1;         // In [1, num_groups], with at least top_k experts in them.
  float scaling_factor = 1;       // Finite.
  int32_t* expert_ids = nullptr;  // [num_tokens, top_k]
  float* weights = nullptr;       // [num_tokens, top_k]
};

// Sorts the flat rows by expert (vLLM's moe_align_block_size with blocks of 1): stable, so in each
// expert they ascend. With `expert_map` this rank owns num_local_experts of the num_experts; rows
// of the others, and rows with an id below 0 (padding), are left out.
struct MoeAlignArgs {
  const int32_t* expert_ids = nullptr;  // [num_tokens, top_k], each less than num_experts.
  int64_t num_tokens = 0;               // num_tokens * top_k < 2^31.
  int64_t top_k = 0;
  int64_t num_experts = 0;              // In [1, kMaxExperts].
  const int32_t* expert_map = nullptr;  // [num_experts]: local index, no two the same, or -1. Null:
                                        // all are local, by their own index.
  int64_t num_local_experts = 0;        // Without a map num_experts.
  // [num_tokens * top_k]: the flat rows by local expert, then -1.
  int32_t* row_order = nullptr;
  // [num_tokens, top_k]: where row_order has that row; -1 = left out.
  int32_t* row_positions = nullptr;
  // [num_local_experts + 1]: expert e has rows [expert_offsets[e], expert_offsets[e + 1]) of
  // row_order.
  int32_t* expert_offsets = nullptr;
};

// For each expert e and each of its rows i: out[i] = a[row_order[i] / top_k] * weights[e]^T +
// bias[e], or without a row_order a[i] * ... The bits of a row are those of Gemm with that row
// alone. With several `segments` k is cut into so many equal parts, each summed by itself: as if
// a part's columns were matrices of their own. They do not add up here.
struct ExpertGemmArgs {
  ConstFloats a;         // [num_a_rows, k]
  int64_t a_stride = 0;  // Elements from row to row.
  int64_t num_a_rows = 0;
  DType a_rounded_to = DType::kF32;         // As GemmArgs.
  const int32_t* row_order = nullptr;       // [num_rows], of MoeAlign; or null.
  int64_t top_k = 1;                        // Rows of row_order per row of `a`.
  const int32_t* expert_offsets = nullptr;  // [num_experts + 1]: 0 first, ascending.
  int64_t num_experts = 0;                  // On this rank, in [0, kMaxExperts].
  const PackedMatrix* weights = nullptr;    // [num_experts], each [n, k], all of one dtype.
  const float* bias = nullptr;              // [num_experts, n], or null.
  Floats out;  // [num_segments, num_rows = expert_offsets[num_experts], n]
  int64_t out_stride = 0;
  int32_t segments = 1;  // 1, 2, 4 or 8; of several, each has a multiple of 32 of k. No bias then.
  int32_t first_segment = 0;  // Of those to compute.
  int32_t num_segments = 1;
  int64_t segment_stride = 0;  // Elements of `out` from segment to segment, of several.

  int64_t segment_k() const { return weights->k() / segments; }
};

// out[t] = sum over the choices of t of weight * y[row], each a fused multiply-add, from zero in
// ascending order of expert id (of choice, where they are equal); of several `segments` those sums,
// as the tree of GemmArgs; then + shared[t]. Choices whose row is below 0 (experts of other ranks,
// padding) are skipped, not multiplied by 0; a token without others gets 0.
struct MoeCombineArgs {
  ConstFloats y;         // [segments, num_rows, dim], of ExpertGemm.
  int64_t y_stride = 0;  // Elements from row to row.
  int64_t num_rows = 0;
  int32_t segments = 1;                    // 1, 2, 4 or 8.
  int64_t segment_stride = 0;              // Elements of `y` from segment to segment, of several.
  const int32_t* expert_ids = nullptr;     // [num_tokens, top_k]
  const int32_t* row_positions = nullptr;  // [num_tokens, top_k], of MoeAlign; less than num_rows.
  const float* weights = nullptr;          // [num_tokens, top_k]
  int64_t num_tokens = 0;
  int64_t top_k = 0;  // In [1, kMaxExperts].
  int64_t dim = 0;
  // [num_tokens, dim], dense, or null; may be `out` if out_stride = dim.
  ConstFloats shared;
  DType round_to = DType::kF32;  // What `out` is rounded to, kept as float.
  Floats out;                    // [num_tokens, dim]
  int64_t out_stride = 0;
};

}  // namespace baton
