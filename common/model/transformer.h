#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/model_config.h"
#include "common/kv_cache/kv_cache.h"
#include "common/model/activation_buffer.h"
#include "common/model/forward_batch.h"
#include "common/model/packed_model.h"
#include "kernels/api/kernels.h"

namespace baton {

// A decoder-only transformer as its ModelConfig describes it: pre-norm, causal attention over the
// paged cache, gated MLP. Reads weights and cache through the device's operators only. One caller
// at a time.
class Transformer {
 public:
  // Called when a layer has written its K/V for all tokens of the pass, layers ascending.
  using LayerDoneFn = std::function<void(int32_t layer)>;

  // Takes its own copy of the weights. `kernels` must outlive the transformer. UNIMPLEMENTED names
  // the feature of `config` that no operator serves. `compute` is f32 or bf16: what the
  // activations that enter a product with weights are rounded to.
  // `release` as in PackModel.
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(const ModelConfig& config,
                                                             const ModelWeights& weights,
                                                             DType compute, Kernels* kernels,
                                                             const ReleaseFn& release = nullptr);

  const ModelConfig& config() const { return config_; }

  // Makes room for passes of so many tokens, so that none allocates. Larger passes grow the room.
  void Reserve(int64_t num_tokens, int64_t num_logit_tokens);

  // Computes the pass: K/V of its tokens into `cache`, and the last hidden states of logit_tokens.
  // The last layer computes no more than that.
  absl::Status Forward(const ForwardBatch& batch, KvCache& cache, const LayerDoneFn& layer_done);

  // Raw logits of logit_tokens [first, first + count) of the last pass: [count, vocab_size]. The
  // span lives until the next call. count <= kLogitRows.
  absl::StatusOr<std::span<const float>> Logits(int64_t first, int64_t count);

  static constexpr int64_t kLogitRows = 32;

 private:
  Transformer(const ModelConfig& config, PackedModel model, DType compute, Kernels* kernels);

  absl::Status WriteKeysAndValues(int32_t layer, const ForwardBatch& batch, KvCache& cache);
  absl::Status AttentionBlock(int32_t layer, const ForwardBatch& queries, KvCache& cache);
  absl::Status MlpBlock(int32_t layer, int64_t num_tokens);
  void KeepLogitTokens(const ForwardBatch& batch);
  void FillRotary(const ForwardBatch& batch);
  absl::Status Linear(const PackedLinear& linear, const float* x, int64_t num_tokens, float* out);
  absl::Status Norm(const std::vector<float>& weight, int64_t num_tokens, bool add_delta);
  absl::Status NormHeads(const std::vector<float>& weight, int64_t num_tokens, float* heads,
                         int64_t num_heads, int64_t stride);
  absl::Status RotateHeads(int64_t num_tokens, float* heads, int64_t num_heads, int64_t stride);

  ModelConfig config_;
  PackedModel model_;
  DType compute_;
  Kernels* kernels_;
  RopeFrequencies rope_;
  int64_t q_width_;   // num_heads * head_dim
  int64_t kv_width_;  // 2 * num_kv_heads * head_dim

  // Activations of the pass in progress.
  ActivationBuffer residual_;  // [T, hidden_size]
  ActivationBuffer delta_;     // [T, hidden_size]: output of a block, not yet added.
  ActivationBuffer normed_;    // [T, hidden_size]; in the end of the logit tokens.
  ActivationBuffer q_;         // [T, q_width_]
  ActivationBuffer kv_;        // [T, kv_width_]: keys, then values.
  ActivationBuffer context_;   // [T, q_width_]
  ActivationBuffer gate_up_;   // [T, 2 * ffn_size]
  ActivationBuffer ffn_;       // [T, ffn_size]
  ActivationBuffer cos_;       // [T, rotary_dim / 2]
  ActivationBuffer sin_;       // [T, rotary_dim / 2]
  ActivationBuffer logits_;    // [kLogitRows, vocab_size]
  ForwardBatch logit_queries_;
  int64_t num_final_ = 0;
};

}  // namespace baton
