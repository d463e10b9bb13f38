#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv_cache/kv_cache.h"
#include "common/model/model_config.h"
#include "common/model/packed_model.h"
#include "kernels/api/kernels.h"

namespace baton {

// The tokens of one forward pass, flattened: T tokens of S sequences.
struct ForwardBatch {
  std::vector<int32_t> tokens;        // [T]
  std::vector<int32_t> positions;     // [T]
  std::vector<int64_t> slot_mapping;  // [T]: block * block_size + offset.
  std::vector<int32_t> cu_seqlens_q;  // [S + 1]
  std::vector<int32_t> seq_lens;      // [S]: with the tokens of this pass.
  std::vector<int32_t> block_table;   // [S, max_blocks], -1 after a sequence's last block.
  int64_t max_blocks = 0;
  std::vector<int32_t> logit_tokens;  // Ascending indexes into the T tokens.
};

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
  absl::Status Forward(const ForwardBatch& batch, KvCache& cache, const LayerDoneFn& layer_done);

  // Raw logits of logit_tokens [first, first + count) of the last pass: [count, vocab_size]. The
  // span lives until the next call. count <= kLogitRows.
  absl::StatusOr<std::span<const float>> Logits(int64_t first, int64_t count);

  static constexpr int64_t kLogitRows = 32;

 private:
  Transformer(const ModelConfig& config, PackedModel model, DType compute, Kernels* kernels);

  absl::Status AttentionBlock(int32_t layer, const ForwardBatch& batch, KvCache& cache,
                              const LayerDoneFn& layer_done);
  absl::Status MlpBlock(int32_t layer, int64_t num_tokens);
  absl::Status FinishHiddenStates(const ForwardBatch& batch);
  absl::Status Linear(const PackedLinear& linear, const float* x, int64_t num_tokens, float* out);
  absl::Status Norm(const std::vector<float>& weight, int64_t num_tokens, bool add_delta);
  absl::Status NormHeads(const std::vector<float>& weight, int64_t num_tokens, float* heads,
                         int64_t num_heads);

  ModelConfig config_;
  PackedModel model_;
  DType compute_;
  Kernels* kernels_;
  RopeFrequencies rope_;
  int64_t qkv_width_;

  // Activations of the pass in progress.
  std::vector<float> residual_;  // [T, hidden_size]
  std::vector<float> delta_;     // [T, hidden_size]: output of a block, not yet added.
  std::vector<float> normed_;    // [T, hidden_size]
  std::vector<float> qkv_;       // [T, qkv_width_]
  std::vector<float> context_;   // [T, num_heads * head_dim]
  std::vector<float> gate_up_;   // [T, 2 * ffn_size]
  std::vector<float> ffn_;       // [T, ffn_size]
  std::vector<float> cos_;       // [T, rotary_dim / 2]
  std::vector<float> sin_;       // [T, rotary_dim / 2]
  std::vector<float> final_;     // [logit_tokens, hidden_size]
  int64_t num_final_ = 0;
  std::vector<float> logits_;  // [kLogitRows, vocab_size]
};

}  // namespace baton
