#include "common/base/status.h"
#include "common/model/transformer.h"

// What a layer does behind its attention: an MLP, or experts.
namespace baton {
namespace {

ActivationKind KindOf(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return ActivationKind::kSilu;
    case Activation::kGelu:
      return ActivationKind::kGelu;
    case Activation::kGeluTanh:
      return ActivationKind::kGeluTanh;
    case Activation::kRelu:
      break;
  }
  return ActivationKind::kRelu;
}

}  // namespace

absl::Status Transformer::MakeExperts() {
  if (config_.experts.count == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(experts_, ExpertLayer::Create({.config = config_,
                                                  .shape = shape_,
                                                  .compute = compute_,
                                                  .activation = KindOf(config_.activation),
                                                  .device = device_,
                                                  .max_tokens = max_tokens_}));
  return absl::OkStatus();
}

absl::Status Transformer::MlpBlock(int32_t layer, int64_t num_tokens) {
  const PackedLayer& weights = model_.layers[layer];
  RETURN_IF_ERROR(Norm(weights.ffn_norm, num_tokens, !config_.parallel_residual));
  if (config_.parallel_residual) RETURN_IF_ERROR(AddDelta(num_tokens));
  if (weights.experts.gate_up.empty()) {
    RETURN_IF_ERROR(
        Mlp(weights, shape_.ffn_size, shape_.down_segments, num_tokens, delta_.data()));
  } else {
    RETURN_IF_ERROR(Experts(weights, num_tokens));
  }
  return NormOutput(weights.ffn_output_norm, num_tokens);
}

absl::Status Transformer::Mlp(const PackedLayer& weights, int64_t ffn_size, int32_t segments,
                              int64_t num_tokens, Floats out) {
  RETURN_IF_ERROR(Activations(weights.gate_up, ffn_size, num_tokens));
  return SumOverRanks(weights.down, segments, ffn_.data(), num_tokens, out);
}

absl::Status Transformer::Activations(const PackedLinear& gate_up, int64_t ffn_size,
                                      int64_t num_tokens) {
  const ActivationKind activation = KindOf(config_.activation);
  const GemmArgs product = ProductOf(gate_up, normed_in_use_, num_tokens, gate_up_.data());
  if (config_.gated_mlp) {
    return ops().GatedGemm({.product = product,
                            .activation = activation,
                            .round_to = compute_,
                            .out = ffn_.data(),
                            .out_stride = Stride(ffn_size)});
  }
  RETURN_IF_ERROR(ops().Gemm(product));
  // Rows as they lie, with what fills them up.
  return ops().Activation({.x = gate_up_.data(),
                           .num_tokens = num_tokens,
                           .dim = Stride(ffn_size),
                           .activation = activation,
                           .round_to = compute_,
                           .out = ffn_.data()});
}

absl::Status Transformer::Experts(const PackedLayer& weights, int64_t num_tokens) {
  RETURN_IF_ERROR(
      experts_->Run(weights.experts, normed_in_use_, num_tokens, OwnPartial(delta_.data())));
  RETURN_IF_ERROR(FoldRanks(nullptr, num_tokens, delta_.data()));
  if (shape_.shared_ffn_size == 0) return absl::OkStatus();
  RETURN_IF_ERROR(Mlp(weights, shape_.shared_ffn_size, shape_.shared_down_segments, num_tokens,
                      shared_.data()));
  return experts_->AddShared(weights.experts, normed_in_use_, shared_.data(), num_tokens,
                             delta_.data());
}

int64_t Transformer::GateUpWidth(int64_t ffn_size) const {
  return config_.gated_mlp ? 2 * ffn_size : ffn_size;
}

}  // namespace baton
