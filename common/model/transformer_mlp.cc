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
  if (weights.experts.gate_up.empty()) {
    RETURN_IF_ERROR(Activations(weights.gate_up, shape_.ffn_size, num_tokens));
    return EndBlock(weights.down, shape_.down_segments, ffn_.data(), num_tokens,
                    weights.ffn_output_norm, NormAfter(layer));
  }
  RETURN_IF_ERROR(Experts(weights, num_tokens));
  RETURN_IF_ERROR(NormOutput(weights.ffn_output_norm, num_tokens));
  return Norm(NormAfter(layer), num_tokens, /*add_delta=*/true);
}

const PackedNorm& Transformer::NormAfter(int32_t layer) const {
  const bool last = layer + 1 == config_.num_layers;
  return last ? model_.final_norm : model_.layers[layer + 1].attention_norm;
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
  RETURN_IF_ERROR(Activations(weights.gate_up, shape_.shared_ffn_size, num_tokens));
  RETURN_IF_ERROR(SumOverRanks(weights.down, shape_.shared_down_segments, ffn_.data(), num_tokens,
                               shared_.data()));
  return experts_->AddShared(weights.experts, normed_in_use_, shared_.data(), num_tokens,
                             delta_.data());
}

int64_t Transformer::GateUpWidth(int64_t ffn_size) const {
  return config_.gated_mlp ? 2 * ffn_size : ffn_size;
}

}  // namespace baton
