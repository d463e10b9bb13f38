#include "common/base/status.h"
#include "common/model/transformer.h"

// Norms, and what lies between the residual and the blocks.
namespace baton {

absl::Status Transformer::Norm(const PackedNorm& norm, int64_t num_tokens, bool add_delta) {
  const int64_t hidden = config_.hidden_size;
  if (config_.norm == NormKind::kLayer) {
    if (add_delta) RETURN_IF_ERROR(AddDelta(num_tokens));
    const bool exists = norm.weight.data() != nullptr;
    if (exists && !config_.normed_residual) {
      return LayerNorm(norm, num_tokens, normed_in_use_, compute_);
    }
    if (exists) RETURN_IF_ERROR(LayerNorm(norm, num_tokens, residual_in_use_, DType::kF32));
    return Round(residual_in_use_, num_tokens, hidden, normed_in_use_);
  }
  const Floats x = add_delta ? delta_.data() : residual_in_use_;
  return ops().RmsNorm({.x = x,
                        .x_stride = Stride(hidden),
                        .num_tokens = num_tokens,
                        .dim = hidden,
                        .weight = norm.weight.floats(DType::kF32).f32(),
                        .one_plus_weight = config_.norm_one_plus_weight,
                        .eps = config_.norm_eps,
                        .residual = add_delta ? residual_in_use_.f32() : nullptr,
                        .residual_stride = Stride(hidden),
                        .round_to = compute_,
                        .out = normed_in_use_,
                        .out_stride = Stride(hidden)});
}

absl::Status Transformer::EndBlock(const PackedLinear& linear, int32_t segments, Floats x,
                                   int64_t num_tokens, const Buffer& output_norm,
                                   const PackedNorm& next) {
  const bool direct = output_norm.data() == nullptr && group_ == nullptr;
  if (config_.norm == NormKind::kRms && direct) {
    GemmArgs product = ProductOf(linear, x, num_tokens, delta_.data());
    product.segments = segments;
    return ops().GemmAndNorm({.product = product,
                              .weight = next.weight.floats(DType::kF32).f32(),
                              .one_plus_weight = config_.norm_one_plus_weight,
                              .eps = config_.norm_eps,
                              .residual = residual_in_use_.f32(),
                              .residual_stride = Stride(config_.hidden_size),
                              .round_to = compute_,
                              .out = normed_in_use_,
                              .out_stride = Stride(config_.hidden_size)});
  }
  RETURN_IF_ERROR(SumOverRanks(linear, segments, x, num_tokens, delta_.data()));
  RETURN_IF_ERROR(NormOutput(output_norm, num_tokens));
  return Norm(next, num_tokens, /*add_delta=*/true);
}

// Of the residual.
absl::Status Transformer::LayerNorm(const PackedNorm& norm, int64_t num_tokens, Floats out,
                                    DType round_to) {
  return ops().LayerNorm({.x = residual_in_use_,
                          .x_stride = Stride(config_.hidden_size),
                          .num_tokens = num_tokens,
                          .dim = config_.hidden_size,
                          .weight = norm.weight.floats(DType::kF32).f32(),
                          .bias = norm.bias.floats(DType::kF32).f32(),
                          .eps = config_.norm_eps,
                          .round_to = round_to,
                          .out = out,
                          .out_stride = Stride(config_.hidden_size)});
}

absl::Status Transformer::AddDelta(int64_t num_tokens) {
  const int64_t stride = Stride(config_.hidden_size);
  return ops().FoldPartials({.parts = {residual_in_use_.f32(), delta_.data().f32()},
                             .num_parts = 2,
                             .part_stride = stride,
                             .num_tokens = num_tokens,
                             .dim = config_.hidden_size,
                             .out = residual_in_use_,
                             .out_stride = stride});
}

// What enters a product with weights.
absl::Status Transformer::Round(Floats from, int64_t num_tokens, int64_t width, Floats out) {
  return ops().FoldPartials({.parts = {from.f32()},
                             .part_stride = Stride(width),
                             .num_tokens = num_tokens,
                             .dim = width,
                             .round_to = compute_,
                             .out = out,
                             .out_stride = Stride(width)});
}

absl::Status Transformer::NormHeads(const Buffer& weight, int64_t num_tokens, Floats heads,
                                    int64_t num_heads) {
  if (weight.data() == nullptr) return absl::OkStatus();
  return ops().RmsNorm({.x = heads,
                        .x_stride = Stride(kv_width_ + q_width_),
                        .num_tokens = num_tokens,
                        .rows_per_token = num_heads,
                        .dim = config_.head_dim,
                        .weight = weight.floats(DType::kF32).f32(),
                        .one_plus_weight = config_.norm_one_plus_weight,
                        .eps = config_.norm_eps,
                        .round_to = heads.dtype,
                        .out = heads,
                        .out_stride = Stride(kv_width_ + q_width_)});
}

absl::Status Transformer::NormOutput(const Buffer& weight, int64_t num_tokens) {
  if (weight.data() == nullptr) return absl::OkStatus();
  return ops().RmsNorm({.x = delta_.data(),
                        .x_stride = Stride(config_.hidden_size),
                        .num_tokens = num_tokens,
                        .dim = config_.hidden_size,
                        .weight = weight.floats(DType::kF32).f32(),
                        .one_plus_weight = config_.norm_one_plus_weight,
                        .eps = config_.norm_eps,
                        .out = delta_.data(),
                        .out_stride = Stride(config_.hidden_size)});
}

}  // namespace baton
