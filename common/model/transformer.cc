#include "common/model/transformer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/cache_planes.h"
#include "common/model/rotary_table.h"

namespace baton {
namespace {

absl::Status CheckSupported(const ModelConfig& config) {
  if (config.norm != NormKind::kRms) {
    return absl::UnimplementedError("layer norm is not supported: only RMS norm");
  }
  if (!config.gated_mlp) {
    return absl::UnimplementedError("an MLP without a gate is not supported");
  }
  if (config.activation != Activation::kSilu && config.activation != Activation::kGeluTanh) {
    return absl::UnimplementedError(absl::StrCat("hidden_act of ", config.architecture,
                                                 " is not supported: only silu and "
                                                 "gelu_pytorch_tanh"));
  }
  return absl::OkStatus();
}

void Grow(std::vector<float>& v, int64_t size) {
  if (static_cast<int64_t>(v.size()) < size) v.resize(size);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(const ModelConfig& config,
                                                                 const ModelWeights& weights,
                                                                 DType compute, Kernels* kernels,
                                                                 const ReleaseFn& release) {
  RETURN_IF_ERROR(CheckSupported(config));
  ASSIGN_OR_RETURN(PackedModel model, PackModel(config, weights, *kernels, release));
  return std::unique_ptr<Transformer>(new Transformer(config, std::move(model), compute, kernels));
}

Transformer::Transformer(const ModelConfig& config, PackedModel model, DType compute,
                         Kernels* kernels)
    : config_(config),
      model_(std::move(model)),
      compute_(compute),
      kernels_(kernels),
      rope_(ComputeRopeFrequencies(config.rope, config.rotary_dim)),
      qkv_width_(int64_t{config.num_heads + 2 * config.num_kv_heads} * config.head_dim) {}

void Transformer::Reserve(int64_t num_tokens, int64_t num_logit_tokens) {
  Grow(residual_, num_tokens * config_.hidden_size);
  Grow(delta_, num_tokens * config_.hidden_size);
  Grow(normed_, num_tokens * config_.hidden_size);
  Grow(qkv_, num_tokens * qkv_width_);
  Grow(context_, num_tokens * config_.num_heads * config_.head_dim);
  Grow(gate_up_, num_tokens * 2 * config_.ffn_size);
  Grow(ffn_, num_tokens * config_.ffn_size);
  Grow(cos_, num_tokens * config_.rotary_dim / 2);
  Grow(sin_, num_tokens * config_.rotary_dim / 2);
  Grow(final_, num_logit_tokens * config_.hidden_size);
  Grow(logits_, std::min(num_logit_tokens, kLogitRows) * config_.vocab_size);
}

absl::Status Transformer::Linear(const PackedLinear& linear, const float* x, int64_t num_tokens,
                                 float* out) {
  return kernels_->Gemm({.a = x,
                         .a_stride = linear.weights.k(),
                         .m = num_tokens,
                         .a_rounded_to = compute_,
                         .weights = &linear.weights,
                         .bias = linear.bias.empty() ? nullptr : linear.bias.data(),
                         .out = out,
                         .out_stride = linear.weights.n()});
}

// normed_ = norm(residual_), after residual_ += delta_ if asked.
absl::Status Transformer::Norm(const std::vector<float>& weight, int64_t num_tokens,
                               bool add_delta) {
  return kernels_->RmsNorm({.x = add_delta ? delta_.data() : residual_.data(),
                            .x_stride = config_.hidden_size,
                            .num_tokens = num_tokens,
                            .dim = config_.hidden_size,
                            .weight = weight.data(),
                            .one_plus_weight = config_.norm_one_plus_weight,
                            .eps = config_.norm_eps,
                            .residual = add_delta ? residual_.data() : nullptr,
                            .round_to = compute_,
                            .out = normed_.data(),
                            .out_stride = config_.hidden_size});
}

absl::Status Transformer::NormHeads(const std::vector<float>& weight, int64_t num_tokens,
                                    float* heads, int64_t num_heads) {
  if (weight.empty()) return absl::OkStatus();
  return kernels_->RmsNorm({.x = heads,
                            .x_stride = qkv_width_,
                            .num_tokens = num_tokens,
                            .rows_per_token = num_heads,
                            .dim = config_.head_dim,
                            .weight = weight.data(),
                            .one_plus_weight = config_.norm_one_plus_weight,
                            .eps = config_.norm_eps,
                            .out = heads,
                            .out_stride = qkv_width_});
}

absl::Status Transformer::AttentionBlock(int32_t layer, const ForwardBatch& batch, KvCache& cache,
                                         const LayerDoneFn& layer_done) {
  const PackedLayer& weights = model_.layers[layer];
  const auto num_tokens = static_cast<int64_t>(batch.tokens.size());
  RETURN_IF_ERROR(Norm(weights.attention_norm, num_tokens, /*add_delta=*/layer > 0));
  RETURN_IF_ERROR(Linear(weights.qkv, normed_.data(), num_tokens, qkv_.data()));
  float* q = qkv_.data();
  float* k = q + int64_t{config_.num_heads} * config_.head_dim;
  float* v = k + int64_t{config_.num_kv_heads} * config_.head_dim;
  RETURN_IF_ERROR(NormHeads(weights.q_norm, num_tokens, q, config_.num_heads));
  RETURN_IF_ERROR(NormHeads(weights.k_norm, num_tokens, k, config_.num_kv_heads));
  // q and k lie side by side: one rotation serves both.
  RETURN_IF_ERROR(kernels_->Rope({.x = q,
                                  .x_stride = qkv_width_,
                                  .num_tokens = num_tokens,
                                  .num_heads = config_.num_heads + config_.num_kv_heads,
                                  .head_dim = config_.head_dim,
                                  .rotary_dim = config_.rotary_dim,
                                  .cos = cos_.data(),
                                  .sin = sin_.data()}));
  const CachePlane k_cache = PlaneOf(cache, layer, KvPlane::kK);
  const CachePlane v_cache = PlaneOf(cache, layer, KvPlane::kV);
  RETURN_IF_ERROR(kernels_->ReshapeAndCache({.key = k,
                                             .key_stride = qkv_width_,
                                             .value = v,
                                             .value_stride = qkv_width_,
                                             .slot_mapping = batch.slot_mapping.data(),
                                             .num_tokens = num_tokens,
                                             .k_cache = k_cache,
                                             .v_cache = v_cache}));
  layer_done(layer);
  const int64_t context_width = int64_t{config_.num_heads} * config_.head_dim;
  RETURN_IF_ERROR(kernels_->VarlenAttention(
      {.q = q,
       .q_stride = qkv_width_,
       .num_heads = config_.num_heads,
       .num_seqs = static_cast<int64_t>(batch.seq_lens.size()),
       .cu_seqlens_q = batch.cu_seqlens_q.data(),
       .seq_lens = batch.seq_lens.data(),
       .block_table = batch.block_table.data(),
       .max_blocks = batch.max_blocks,
       .k_cache = k_cache,
       .v_cache = v_cache,
       // No window, 0, gives -1: infinite.
       .scores = {.scale = config_.attention_scale, .window_left = config_.windows[layer] - 1},
       .round_to = compute_,
       .out = context_.data(),
       .out_stride = context_width}));
  return Linear(weights.o, context_.data(), num_tokens, delta_.data());
}

absl::Status Transformer::MlpBlock(int32_t layer, int64_t num_tokens) {
  const PackedLayer& weights = model_.layers[layer];
  RETURN_IF_ERROR(Norm(weights.ffn_norm, num_tokens, /*add_delta=*/true));
  RETURN_IF_ERROR(Linear(weights.gate_up, normed_.data(), num_tokens, gate_up_.data()));
  const bool silu = config_.activation == Activation::kSilu;
  RETURN_IF_ERROR(kernels_->ActivationAndMul(
      {.gate_up = gate_up_.data(),
       .num_tokens = num_tokens,
       .dim = config_.ffn_size,
       .activation = silu ? ActivationKind::kSilu : ActivationKind::kGeluTanh,
       .round_to = compute_,
       .out = ffn_.data()}));
  return Linear(weights.down, ffn_.data(), num_tokens, delta_.data());
}

// final_ = norm(residual_ + delta_) of the tokens whose logits are wanted.
absl::Status Transformer::FinishHiddenStates(const ForwardBatch& batch) {
  num_final_ = static_cast<int64_t>(batch.logit_tokens.size());
  const int64_t size = config_.hidden_size;
  for (int64_t i = 0; i < num_final_; ++i) {
    const int64_t token = batch.logit_tokens[i];
    for (int64_t d = 0; d < size; ++d) {
      final_[i * size + d] = residual_[token * size + d] + delta_[token * size + d];
    }
  }
  return kernels_->RmsNorm({.x = final_.data(),
                            .x_stride = size,
                            .num_tokens = num_final_,
                            .dim = size,
                            .weight = model_.final_norm.data(),
                            .one_plus_weight = config_.norm_one_plus_weight,
                            .eps = config_.norm_eps,
                            .round_to = compute_,
                            .out = final_.data(),
                            .out_stride = size});
}

absl::Status Transformer::Forward(const ForwardBatch& batch, KvCache& cache,
                                  const LayerDoneFn& layer_done) {
  const auto num_tokens = static_cast<int64_t>(batch.tokens.size());
  Reserve(num_tokens, static_cast<int64_t>(batch.logit_tokens.size()));
  num_final_ = 0;
  const int64_t half = config_.rotary_dim / 2;
  FillRotaryTable(rope_, batch.positions, std::span(cos_).first(num_tokens * half),
                  std::span(sin_).first(num_tokens * half));
  RETURN_IF_ERROR(kernels_->Embedding({.table = &model_.embedding,
                                       .tokens = batch.tokens.data(),
                                       .num_tokens = num_tokens,
                                       .out = residual_.data()}));
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    RETURN_IF_ERROR(AttentionBlock(layer, batch, cache, layer_done));
    RETURN_IF_ERROR(MlpBlock(layer, num_tokens));
  }
  return FinishHiddenStates(batch);
}

absl::StatusOr<std::span<const float>> Transformer::Logits(int64_t first, int64_t count) {
  BATON_CHECK(first >= 0 && count >= 0 && count <= kLogitRows && first + count <= num_final_);
  RETURN_IF_ERROR(kernels_->Gemm({.a = final_.data() + first * config_.hidden_size,
                                  .a_stride = config_.hidden_size,
                                  .m = count,
                                  .a_rounded_to = compute_,
                                  .weights = &model_.output(),
                                  .out = logits_.data(),
                                  .out_stride = config_.vocab_size}));
  return std::span<const float>(logits_).first(count * config_.vocab_size);
}

}  // namespace baton
