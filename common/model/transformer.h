#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/model_config.h"
#include "common/kv_cache/kv_cache.h"
#include "common/model/packed_model.h"
#include "common/model/step_metadata.h"
#include "kernels/api/device.h"

namespace baton {

// A decoder-only transformer as its ModelConfig describes it: pre-norm, causal attention over the
// paged cache, gated MLP. Touches weights, activations and cache by the device's operators only,
// which it enqueues. One caller at a time.
class Transformer {
 public:
  // Called when all is enqueued that writes a layer's K/V of all tokens of the pass, layers
  // ascending. An error ends the pass.
  using LayerDoneFn = absl::FunctionRef<absl::Status(int32_t layer)>;

  // Takes its own copy of the weights, and room for passes of so many tokens. `device` must outlive
  // the transformer. UNIMPLEMENTED names the feature of `config` that no operator serves. `compute`
  // is what the activations that enter a product with weights are rounded to. `release` as in
  // PackModel.
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(const ModelConfig& config,
                                                             const ModelWeights& weights,
                                                             DType compute, Device* device,
                                                             int64_t max_tokens,
                                                             const ReleaseFn& release = nullptr);

  const ModelConfig& config() const { return config_; }
  int64_t weight_bytes() const { return SizeBytes(model_); }

  // Computes the pass: K/V of its tokens into `cache`, and the last hidden states of the tokens
  // whose logits are wanted. The last layer computes no more than that.
  absl::Status Forward(const StepMetadata& batch, KvCache& cache, LayerDoneFn layer_done);

  // As Forward, by a graph that holds what Forward enqueues for a pass of so many tokens whose
  // logits are all wanted.
  absl::Status Replay(const Graph& graph, int64_t num_tokens);

  // Raw logits of wanted tokens [first, first + count) of the last pass: [count, vocab_size], f32,
  // in the device's memory, until the next call. count is at most the device's logit_rows.
  absl::StatusOr<Floats> Logits(int64_t first, int64_t count);

 private:
  // Numbers that each pass overwrites before it reads them.
  struct ActivationRows {
    Buffer memory;
    DType dtype = DType::kF32;
    Floats data() const { return memory.floats(dtype); }
  };

  Transformer(const ModelConfig& config, DType compute, Device* device);
  absl::Status Load(const ModelWeights& weights, int64_t max_tokens, const ReleaseFn& release);
  absl::Status MakeRoom(int64_t max_tokens);

  absl::Status WriteKeysAndValues(int32_t layer, const BatchView& batch, KvCache& cache);
  absl::Status AttentionBlock(int32_t layer, const BatchView& queries, KvCache& cache);
  absl::Status MlpBlock(int32_t layer, int64_t num_tokens);
  absl::Status KeepWanted(const StepMetadata& batch);
  absl::Status FillRotary(const BatchView& batch);
  absl::Status Linear(const PackedLinear& linear, Floats x, int64_t num_tokens, Floats out);
  absl::Status Norm(const Buffer& weight, int64_t num_tokens, bool add_delta);
  absl::Status NormHeads(const Buffer& weight, int64_t num_tokens, Floats heads, int64_t num_heads,
                         int64_t stride);
  absl::Status RotateHeads(int64_t num_tokens, Floats heads, int64_t num_heads, int64_t stride);
  // Elements from row to row of activations of that width; logits and rotary tables are dense.
  int64_t Stride(int64_t width) const;
  ModelOps& ops() { return device_->ops(); }

  ModelConfig config_;
  DType compute_;
  Device* device_;
  int64_t q_width_;   // num_heads * head_dim
  int64_t kv_width_;  // 2 * num_kv_heads * head_dim
  int64_t max_tokens_ = 0;
  PackedModel model_;
  Buffer inv_freq_;  // f32 [rotary_dim / 2]
  float rotary_scaling_ = 1;

  // Activations of the pass in progress.
  ActivationRows residual_;         // f32 [T, hidden_size]
  ActivationRows delta_;            // f32 [T, hidden_size]: output of a block, not yet added.
  ActivationRows normed_;           // [T, hidden_size]
  ActivationRows wanted_residual_;  // Of the wanted tokens, where these are not all.
  ActivationRows wanted_normed_;
  ActivationRows q_;        // [T, q_width_]
  ActivationRows kv_;       // [T, kv_width_]: keys, then values.
  ActivationRows context_;  // [T, q_width_]
  ActivationRows gate_up_;  // [T, 2 * ffn_size]
  ActivationRows ffn_;      // [T, ffn_size]
  ActivationRows cos_;      // f32 [T, rotary_dim / 2]
  ActivationRows sin_;      // f32 [T, rotary_dim / 2]
  ActivationRows logits_;   // f32 [logit_rows, vocab_size]

  // The two above that the layers in progress read and write.
  Floats residual_in_use_;
  Floats normed_in_use_;
  int64_t num_final_ = 0;
};

}  // namespace baton
