#include "kernels/api/check_shapes.h"

#include <cmath>
#include <string>

#include "common/base/status.h"
#include "kernels/api/require.h"

namespace baton {
namespace {

absl::Status RequireKind(ActivationKind kind) {
  return Require(kind <= ActivationKind::kRelu, "activation", static_cast<int>(kind),
                 "SILU, GELU, GELU_TANH or RELU");
}

constexpr const char* kShardNames[kMaxRanks] = {"shards[0]", "shards[1]", "shards[2]", "shards[3]",
                                                "shards[4]", "shards[5]", "shards[6]", "shards[7]"};
constexpr const char* kPartNames[kMaxRanks] = {"parts[0]", "parts[1]", "parts[2]", "parts[3]",
                                               "parts[4]", "parts[5]", "parts[6]", "parts[7]"};

// Parts of one table, cut where rows_each says.
absl::Status RequireShards(const EmbeddingArgs& args) {
  RETURN_IF_ERROR(RequireIn(args.num_shards, 1, kMaxRanks, "num_shards"));
  RETURN_IF_ERROR(RequirePointer(args.shards[0], kShardNames[0]));
  if (args.num_shards == 1) return absl::OkStatus();
  const PackedMatrix& first = *args.shards[0];
  RETURN_IF_ERROR(RequireAtLeast(args.rows_each, 1, "rows_each"));
  for (int32_t i = 0; i < args.num_shards; ++i) {
    RETURN_IF_ERROR(RequirePointer(args.shards[i], kShardNames[i]));
    const PackedMatrix& shard = *args.shards[i];
    RETURN_IF_ERROR(Require(shard.k() == first.k(), {kShardNames[i], ".k"}, shard.k(),
                            "that of the first, ", first.k()));
    RETURN_IF_ERROR(Require(shard.dtype() == first.dtype(), {kShardNames[i], ".dtype"},
                            static_cast<int>(shard.dtype()), "that of the first"));
    const bool last = i + 1 == args.num_shards;
    RETURN_IF_ERROR(RequireIn(shard.n(), last ? 1 : args.rows_each, args.rows_each,
                              {kShardNames[i], ".n"}));
  }
  return absl::OkStatus();
}

// Those of the weights.
absl::Status RequireRows(const GemmArgs& args) {
  const int64_t n = args.weights->n();
  // Only an error costs memory.
  if (args.first_row < 0 || args.first_row >= n || args.first_row % kWeightRows != 0) {
    return Require(false, "first_row", args.first_row,
                   absl::StrCat("a multiple of ", kWeightRows, " in [0, ", n, ")"));
  }
  return RequireIn(args.num_rows, 0, n - args.first_row, "num_rows");
}

// The number of elements of a head that are rotated.
absl::Status RequireRotaryDim(int64_t rotary_dim, int64_t head_dim) {
  return Require(rotary_dim >= 0 && rotary_dim % 2 == 0 && rotary_dim <= head_dim, "rotary_dim",
                 rotary_dim, "even and at most head_dim = ", head_dim);
}

}  // namespace

absl::Status CheckShapes(const AdvanceStepArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_seqs, 0, "num_seqs"));
  RETURN_IF_ERROR(Require(args.num_queries >= 0 && args.num_queries <= args.num_seqs, "num_queries",
                          args.num_queries,
                          absl::StrCat("in [0, num_seqs = ", args.num_seqs, "]")));
  if (args.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequireAtLeast(args.block_size, 1, "block_size"));
  RETURN_IF_ERROR(RequirePointer(args.tokens, "tokens"));
  RETURN_IF_ERROR(RequirePointer(args.positions, "positions"));
  RETURN_IF_ERROR(RequirePointer(args.seq_lens, "seq_lens"));
  RETURN_IF_ERROR(RequirePointer(args.slot_mapping, "slot_mapping"));
  if (args.num_queries == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.sampled_tokens, "sampled_tokens"));
  RETURN_IF_ERROR(RequirePointer(args.block_tables, "block_tables"));
  return Require(args.max_blocks >= 1 && args.max_blocks <= INT32_MAX, "max_blocks",
                 args.max_blocks, absl::StrCat("in [1, ", INT32_MAX, "]"));
}

absl::Status CheckShapes(const RmsNormArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.x, "x"));
  RETURN_IF_ERROR(RequireRounded(args.out, args.round_to));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireFiniteAtLeast0(args.eps, "eps"));
  RETURN_IF_ERROR(RequireAtLeast(args.rows_per_token, 1, "rows_per_token"));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.x.data, "x"));
  RETURN_IF_ERROR(RequirePointer(args.weight, "weight"));
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  const int64_t row = args.rows_per_token * args.dim;
  RETURN_IF_ERROR(RequireStride(args.x_stride, row, "x_stride"));
  RETURN_IF_ERROR(RequireStride(args.out_stride, row, "out_stride"));
  RETURN_IF_ERROR(RequireStrideOrDense(args.residual_stride, args.dim, "residual_stride"));
  return Require(args.residual == nullptr || args.rows_per_token == 1, "rows_per_token",
                 args.rows_per_token, "1 with a residual");
}

absl::Status CheckShapes(const LayerNormArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.x, "x"));
  RETURN_IF_ERROR(RequireRounded(args.out, args.round_to));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireFiniteAtLeast0(args.eps, "eps"));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.x.data, "x"));
  RETURN_IF_ERROR(RequirePointer(args.weight, "weight"));
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  RETURN_IF_ERROR(RequireStride(args.x_stride, args.dim, "x_stride"));
  return RequireStride(args.out_stride, args.dim, "out_stride");
}

absl::Status CheckShapes(const RopeArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.x, "x"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_heads, 1, "num_heads"));
  RETURN_IF_ERROR(RequireAtLeast(args.head_dim, 1, "head_dim"));
  RETURN_IF_ERROR(RequireRotaryDim(args.rotary_dim, args.head_dim));
  if (args.num_tokens == 0 || args.rotary_dim == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.x.data, "x"));
  RETURN_IF_ERROR(RequirePointer(args.cos, "cos"));
  RETURN_IF_ERROR(RequirePointer(args.sin, "sin"));
  return RequireStride(args.x_stride, args.num_heads * args.head_dim, "x_stride");
}

absl::Status CheckShapes(const RopeAndCacheArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args.Write()));
  RETURN_IF_ERROR(RequireOperand(args.q, "q"));
  RETURN_IF_ERROR(RequireRotaryDim(args.rotary_dim, args.k_cache.dim));
  if (args.num_tokens == 0 || args.rotary_dim == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.cos, "cos"));
  RETURN_IF_ERROR(RequirePointer(args.sin, "sin"));
  if (!args.q) return absl::OkStatus();
  RETURN_IF_ERROR(RequireAtLeast(args.num_heads, 1, "num_heads"));
  return RequireStride(args.q_stride, args.num_heads * args.k_cache.dim, "q_stride");
}

absl::Status CheckShapes(const RotaryTableArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireAtLeast(args.half, 0, "half"));
  if (args.num_tokens == 0 || args.half == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.positions, "positions"));
  RETURN_IF_ERROR(RequirePointer(args.inv_freq, "inv_freq"));
  RETURN_IF_ERROR(RequirePointer(args.cos, "cos"));
  return RequirePointer(args.sin, "sin");
}

absl::Status CheckShapes(const SelectRowsArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_rows, 0, "num_rows"));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  RETURN_IF_ERROR(RequireComputeType(args.from.dtype, "from.dtype"));
  RETURN_IF_ERROR(Require(args.to.dtype == args.from.dtype, "to.dtype",
                          static_cast<int>(args.to.dtype), "that of from"));
  if (args.num_rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.from.data, "from"));
  RETURN_IF_ERROR(RequirePointer(args.rows, "rows"));
  RETURN_IF_ERROR(RequirePointer(args.to.data, "to"));
  RETURN_IF_ERROR(RequireStride(args.from_stride, args.dim, "from_stride"));
  return RequireStride(args.to_stride, args.dim, "to_stride");
}

absl::Status CheckShapes(const ActivationArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.x, "x"));
  RETURN_IF_ERROR(RequireRounded(args.out, args.round_to));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireKind(args.activation));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.x.data, "x"));
  return RequirePointer(args.out.data, "out");
}

absl::Status CheckShapes(const ActivationAndMulArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.gate_up, "gate_up"));
  RETURN_IF_ERROR(RequireRounded(args.out, args.round_to));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireKind(args.activation));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.gate_up.data, "gate_up"));
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  RETURN_IF_ERROR(RequireStrideOrDense(args.gate_up_stride, 2 * args.dim, "gate_up_stride"));
  return RequireStrideOrDense(args.out_stride, args.dim, "out_stride");
}

absl::Status CheckShapes(const SoftcapArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.x, "x"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  RETURN_IF_ERROR(RequireFloat(args.cap > 0 && std::isfinite(args.cap), "cap", args.cap,
                               "finite and greater than 0"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.x.data, "x"));
  return RequireStride(args.x_stride, args.dim, "x_stride");
}

absl::Status CheckShapes(const EmbeddingArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.out, "out"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequireShards(args));
  RETURN_IF_ERROR(RequireFloat(std::isfinite(args.scale), "scale", args.scale, "finite"));
  RETURN_IF_ERROR(RequirePointer(args.tokens, "tokens"));
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  return RequireStrideOrDense(args.out_stride, args.shards[0]->k(), "out_stride");
}

absl::Status RequirePackedShards(const EmbeddingArgs& args, WeightFormat format) {
  for (int32_t i = 0; i < kMaxRanks; ++i) {
    if (args.shards[i] == nullptr) continue;
    RETURN_IF_ERROR(RequirePacked(*args.shards[i], format, kShardNames[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckWeights(const PackedMatrix& weights, absl::string_view field) {
  RETURN_IF_ERROR(RequirePointer(weights.data(), {field, ".data"}));
  RETURN_IF_ERROR(RequireAtLeast(weights.n(), 1, {field, ".n"}));
  RETURN_IF_ERROR(RequireAtLeast(weights.k(), 1, {field, ".k"}));
  return RequireComputeType(weights.dtype(), {field, ".dtype"});
}

absl::Status RequireSegments(int64_t segments, int64_t k) {
  RETURN_IF_ERROR(RequireTree(segments, "segments"));
  return Require(segments == 1 || k % (32 * segments) == 0, "segments", segments,
                 "1, or each of a multiple of 32 of weights.k = ", k);
}

absl::Status CheckShapes(const GemmArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.a, "a"));
  RETURN_IF_ERROR(RequireOperand(args.out, "out"));
  RETURN_IF_ERROR(RequireAtLeast(args.m, 0, "m"));
  RETURN_IF_ERROR(RequirePointer(args.weights, "weights"));
  RETURN_IF_ERROR(CheckWeights(*args.weights, "weights"));
  RETURN_IF_ERROR(RequireSegments(args.segments, args.weights->k()));
  RETURN_IF_ERROR(RequireRows(args));
  if (args.m == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.a.data, "a"));
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  RETURN_IF_ERROR(RequireStride(args.a_stride, args.weights->k(), "a_stride"));
  return RequireStride(args.out_stride, args.n(), "out_stride");
}

absl::Status CheckShapes(const GatedGemmArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args.product));
  const int64_t n = args.product.n();
  RETURN_IF_ERROR(Require(n % 2 == 0, "product.n", n, "even: as many rows of gate as of up"));
  return CheckShapes(args.Activation());
}

absl::Status CheckShapes(const GemmAndNormArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args.product));
  RETURN_IF_ERROR(CheckShapes(args.Norm()));
  if (args.product.m == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.residual, "residual"));
  return RequireStride(args.residual_stride, args.product.n(), "residual_stride");
}

absl::Status CheckShapes(const FoldPartialsArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.out, "out"));
  RETURN_IF_ERROR(RequireComputeType(args.round_to, "round_to"));
  RETURN_IF_ERROR(RequireTree(args.num_parts, "num_parts"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  if (args.num_tokens == 0) return absl::OkStatus();
  for (int32_t i = 0; i < args.num_parts; ++i) {
    RETURN_IF_ERROR(RequirePointer(args.parts[i], kPartNames[i]));
  }
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  RETURN_IF_ERROR(RequireStrideOrDense(args.part_stride, args.dim, "part_stride"));
  return RequireStrideOrDense(args.out_stride, args.dim, "out_stride");
}

absl::Status CheckShapes(const PackWeightsArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_parts, 1, "num_parts"));
  RETURN_IF_ERROR(RequireAtLeast(args.k, 1, "k"));
  RETURN_IF_ERROR(RequirePointer(args.parts, "parts"));
  for (int64_t i = 0; i < args.num_parts; ++i) {
    const std::string field = absl::StrCat("parts[", i, "]");
    RETURN_IF_ERROR(RequirePointer(args.parts[i].data, field + ".data"));
    RETURN_IF_ERROR(RequireAtLeast(args.parts[i].num_rows, 1, field + ".num_rows"));
    RETURN_IF_ERROR(RequireComputeType(args.parts[i].dtype, field + ".dtype"));
    RETURN_IF_ERROR(RequireStrideOrDense(args.parts[i].row_stride, args.k, field + ".row_stride"));
  }
  return absl::OkStatus();
}

}  // namespace baton
