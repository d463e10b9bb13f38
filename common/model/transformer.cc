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
  if (!config.gated_mlp) return absl::UnimplementedError("an MLP without a gate is not supported");
  if (config.activation != Activation::kSilu && config.activation != Activation::kGeluTanh) {
    return absl::UnimplementedError(absl::StrCat("hidden_act of ", config.architecture,
                                                 " is not supported: only silu and "
                                                 "gelu_pytorch_tanh"));
  }
  return absl::OkStatus();
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
      q_width_(int64_t{config_.num_heads} * config_.head_dim),
      kv_width_(int64_t{2} * config_.num_kv_heads * config_.head_dim) {}

void Transformer::Reserve(int64_t num_tokens, int64_t num_logit_tokens) {
  residual_.Reserve(num_tokens * config_.hidden_size);
  delta_.Reserve(num_tokens * config_.hidden_size);
  normed_.Reserve(num_tokens * config_.hidden_size);
  q_.Reserve(num_tokens * q_width_);
  kv_.Reserve(num_tokens * kv_width_);
  context_.Reserve(num_tokens * q_width_);
  gate_up_.Reserve(num_tokens * 2 * config_.ffn_size);
  ffn_.Reserve(num_tokens * config_.ffn_size);
  cos_.Reserve(num_tokens * config_.rotary_dim / 2);
  sin_.Reserve(num_tokens * config_.rotary_dim / 2);
  logits_.Reserve(std::min(num_logit_tokens, kLogitRows) * config_.vocab_size);
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
                                    float* heads, int64_t num_heads, int64_t stride) {
  if (weight.empty()) return absl::OkStatus();
  return kernels_->RmsNorm({.x = heads,
                            .x_stride = stride,
                            .num_tokens = num_tokens,
                            .rows_per_token = num_heads,
                            .dim = config_.head_dim,
                            .weight = weight.data(),
                            .one_plus_weight = config_.norm_one_plus_weight,
                            .eps = config_.norm_eps,
                            .out = heads,
                            .out_stride = stride});
}

absl::Status Transformer::RotateHeads(int64_t num_tokens, float* heads, int64_t num_heads,
                                      int64_t stride) {
  return kernels_->Rope({.x = heads,
                         .x_stride = stride,
                         .num_tokens = num_tokens,
                         .num_heads = num_heads,
                         .head_dim = config_.head_dim,
                         .rotary_dim = config_.rotary_dim,
                         .cos = cos_.data(),
                         .sin = sin_.data()});
}

// Also leaves the layer's input, normed, in normed_.
absl::Status Transformer::WriteKeysAndValues(int32_t layer, const ForwardBatch& batch,
                                             KvCache& cache) {
  const PackedLayer& weights = model_.layers[layer];
  const auto num_tokens = static_cast<int64_t>(batch.tokens.size());
  RETURN_IF_ERROR(Norm(weights.attention_norm, num_tokens, /*add_delta=*/layer > 0));
  RETURN_IF_ERROR(Linear(weights.kv, normed_.data(), num_tokens, kv_.data()));
  float* k = kv_.data();
  RETURN_IF_ERROR(NormHeads(weights.k_norm, num_tokens, k, config_.num_kv_heads, kv_width_));
  RETURN_IF_ERROR(RotateHeads(num_tokens, k, config_.num_kv_heads, kv_width_));
  return kernels_->ReshapeAndCache({.key = k,
                                    .key_stride = kv_width_,
                                    .value = k + kv_width_ / 2,
                                    .value_stride = kv_width_,
                                    .slot_mapping = batch.slot_mapping.data(),
                                    .num_tokens = num_tokens,
                                    .k_cache = PlaneOf(cache, layer, KvPlane::kK),
                                    .v_cache = PlaneOf(cache, layer, KvPlane::kV)});
}

absl::Status Transformer::AttentionBlock(int32_t layer, const ForwardBatch& queries,
                                         KvCache& cache) {
  const PackedLayer& weights = model_.layers[layer];
  const auto num_tokens = static_cast<int64_t>(queries.positions.size());
  RETURN_IF_ERROR(Linear(weights.q, normed_.data(), num_tokens, q_.data()));
  RETURN_IF_ERROR(NormHeads(weights.q_norm, num_tokens, q_.data(), config_.num_heads, q_width_));
  RETURN_IF_ERROR(RotateHeads(num_tokens, q_.data(), config_.num_heads, q_width_));
  RETURN_IF_ERROR(kernels_->VarlenAttention(
      {.q = q_.data(),
       .q_stride = q_width_,
       .num_heads = config_.num_heads,
       .num_seqs = static_cast<int64_t>(queries.seq_lens.size()),
       .cu_seqlens_q = queries.cu_seqlens_q.data(),
       .seq_lens = queries.seq_lens.data(),
       .block_table = queries.block_table.data(),
       .max_blocks = queries.max_blocks,
       .k_cache = PlaneOf(cache, layer, KvPlane::kK),
       .v_cache = PlaneOf(cache, layer, KvPlane::kV),
       // No window, 0, gives -1: infinite.
       .scores = {.scale = config_.attention_scale, .window_left = config_.windows[layer] - 1},
       .round_to = compute_,
       .out = context_.data(),
       .out_stride = q_width_}));
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

void Transformer::FillRotary(const ForwardBatch& batch) {
  const auto size = static_cast<int64_t>(batch.positions.size()) * config_.rotary_dim / 2;
  FillRotaryTable(rope_, batch.positions, cos_.First(size), sin_.First(size));
}

// Moves the rows of the tokens whose logits are wanted to the front: nobody reads the others.
void Transformer::KeepLogitTokens(const ForwardBatch& batch) {
  SelectLogitTokens(batch, logit_queries_);
  const int64_t size = config_.hidden_size;
  for (size_t i = 0; i < batch.logit_tokens.size(); ++i) {
    const int64_t from = batch.logit_tokens[i] * size;
    const int64_t to = static_cast<int64_t>(i) * size;
    if (from == to) continue;
    std::copy_n(residual_.data() + from, size, residual_.data() + to);
    std::copy_n(normed_.data() + from, size, normed_.data() + to);
  }
  FillRotary(logit_queries_);
}

absl::Status Transformer::Forward(const ForwardBatch& batch, KvCache& cache,
                                  const LayerDoneFn& layer_done) {
  Reserve(static_cast<int64_t>(batch.tokens.size()),
          static_cast<int64_t>(batch.logit_tokens.size()));
  num_final_ = 0;
  FillRotary(batch);
  RETURN_IF_ERROR(kernels_->Embedding({.table = &model_.embedding,
                                       .tokens = batch.tokens.data(),
                                       .num_tokens = static_cast<int64_t>(batch.tokens.size()),
                                       .out = residual_.data()}));
  const ForwardBatch* queries = &batch;
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    RETURN_IF_ERROR(WriteKeysAndValues(layer, batch, cache));
    layer_done(layer);
    if (layer + 1 == config_.num_layers) {
      KeepLogitTokens(batch);
      queries = &logit_queries_;
    }
    if (queries->positions.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(AttentionBlock(layer, *queries, cache));
    RETURN_IF_ERROR(MlpBlock(layer, static_cast<int64_t>(queries->positions.size())));
  }
  num_final_ = static_cast<int64_t>(queries->positions.size());
  return Norm(model_.final_norm, num_final_, /*add_delta=*/true);
}

absl::StatusOr<std::span<const float>> Transformer::Logits(int64_t first, int64_t count) {
  BATON_CHECK(first >= 0 && count >= 0 && count <= kLogitRows && first + count <= num_final_);
  RETURN_IF_ERROR(kernels_->Gemm({.a = normed_.data() + first * config_.hidden_size,
                                  .a_stride = config_.hidden_size,
                                  .m = count,
                                  .a_rounded_to = compute_,
                                  .weights = &model_.output(),
                                  .out = logits_.data(),
                                  .out_stride = config_.vocab_size}));
  return logits_.First(count * config_.vocab_size);
}

}  // namespace baton
