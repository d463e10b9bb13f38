#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/model_config.h"
#include "common/collective/rank_group.h"
#include "common/kv_cache/kv_cache.h"
#include "common/model/activation_rows.h"
#include "common/model/expert_layer.h"
#include "common/model/packed_model.h"
#include "common/model/rank_shape.h"
#include "common/model/step_metadata.h"
#include "kernels/api/device.h"

namespace baton {

class Transformer;

// What a transformer is made of; what is pointed to outlives it.
struct TransformerParts {
  ModelConfig config;
  // Of all ranks; this one's number is `rank`.
  std::shared_ptr<const PackedRanks> weights;
  int rank = 0;
  DType compute = DType::kF32;  // What activations that enter a product with weights become.
  Device* device = nullptr;
  int64_t max_tokens = 0;  // Of the largest pass.
  // Of several ranks only.
  Communicator* group = nullptr;
  const Transformer* lead = nullptr;  // Rank 0's, which gets the logits of all; null for itself.
};

// A decoder-only transformer as its ModelConfig describes it, with causal attention over the paged
// cache; or one rank's part of it, which gives the same bits. Touches weights, activations and
// cache by the device's operators only, which it enqueues. One caller at a time.
class Transformer {
 public:
  // Called when all is enqueued that writes a layer's K/V of all tokens of the pass, layers
  // ascending. An error ends the pass.
  using LayerDoneFn = absl::FunctionRef<absl::Status(int32_t layer)>;

  // Of one partial that ranks exchange.
  static int64_t PartialFloats(const ModelConfig& config, const Device& device,
                               int64_t max_tokens);

  // Takes room for its passes.
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(TransformerParts parts);

  const ModelConfig& config() const { return config_; }
  int64_t weight_bytes() const { return SizeBytes(model_); }

  // Computes the pass: K/V of its tokens into `cache`, and the last hidden states of the tokens
  // whose logits are wanted. The last layer computes no more than that.
  absl::Status Forward(const StepMetadata& batch, KvCache& cache, LayerDoneFn layer_done);

  // As Forward, by a graph that holds what Forward enqueues for a pass of so many tokens whose
  // logits are all wanted. Of several ranks the first has it, the others say null.
  absl::Status Replay(const Graph* graph, int64_t num_tokens);

  // Raw logits of wanted tokens [first, first + count) of the last pass: [count, vocab_size], f32,
  // in the device's memory, until the next call. count is at most the device's logit_rows. Of
  // several ranks each writes its token ids' into one of two buffers of the lead, which may read
  // them when all have, until the next call but one of any rank.
  absl::StatusOr<Floats> Logits(int64_t first, int64_t count);

 private:
  // Angles of one rope form for the tokens of the pass in progress.
  struct RotaryTables {
    Buffer inv_freq;        // f32 [RotatedElements / 2], or empty.
    Buffer other_inv_freq;  // Likewise, of sequences beyond OriginalLen.
    float scaling = 1;
    ActivationRows cos;  // f32 [T, RotatedElements / 2]
    ActivationRows sin;
  };

  explicit Transformer(TransformerParts parts);
  absl::Status MakeRoom();

  // Which of qkv_ a product computes.
  enum class Heads : uint8_t { kAll, kKeysAndValues, kQueries };

  absl::Status WriteKeysAndValues(int32_t layer, const BatchView& batch, Heads heads,
                                  KvCache& cache);
  absl::Status LateQueries(int32_t layer, int64_t num_tokens);
  absl::Status AttentionBlock(int32_t layer, const BatchView& queries, KvCache& cache);
  absl::Status MlpBlock(int32_t layer, int64_t num_tokens);
  // That of the next layer, after the last that of the output.
  const PackedNorm& NormAfter(int32_t layer) const;
  // residual += what a block gives, which is this product; normed = the next norm of it.
  absl::Status EndBlock(const PackedLinear& linear, int32_t segments, Floats x, int64_t num_tokens,
                        const Buffer& output_norm, const PackedNorm& next);
  absl::Status KeepWanted(const StepMetadata& batch);
  absl::Status MakeExperts();
  absl::Status Experts(const PackedLayer& weights, int64_t num_tokens);
  // Into ffn_: what leads out of an MLP multiplies.
  absl::Status Activations(const PackedLinear& gate_up, int64_t ffn_size, int64_t num_tokens);
  int64_t GateUpWidth(int64_t ffn_size) const;
  absl::Status Embed(const BatchView& batch);
  absl::Status EmbedTokens(const BatchView& batch, Floats out);
  absl::Status Finish(int64_t num_tokens);
  absl::Status FillRotary(const BatchView& batch);
  GemmArgs ProductOf(const PackedLinear& linear, Floats x, int64_t num_tokens, Floats out) const;
  // out = the product with a matrix whose columns are divided among the ranks.
  absl::Status SumOverRanks(const PackedLinear& linear, int32_t segments, Floats x,
                            int64_t num_tokens, Floats out);
  // Where this rank writes its part of a sum over the ranks, and the sum of what all wrote there.
  Floats OwnPartial(Floats out) const;
  absl::Status FoldRanks(const float* bias, int64_t num_tokens, Floats out);
  // normed = norm(residual), after residual += delta if asked.
  absl::Status Norm(const PackedNorm& norm, int64_t num_tokens, bool add_delta);
  absl::Status LayerNorm(const PackedNorm& norm, int64_t num_tokens, Floats out, DType round_to);
  absl::Status AddDelta(int64_t num_tokens);
  absl::Status Round(Floats from, int64_t num_tokens, int64_t width, Floats out);
  absl::Status NormHeads(const Buffer& weight, int64_t num_tokens, Floats heads, int64_t num_heads);
  // delta = norm(delta), if there is such a norm.
  absl::Status NormOutput(const Buffer& weight, int64_t num_tokens);
  // Of the rows of qkv_; and the norms of those that the product has computed, if there are such.
  absl::Status ProjectHeads(const PackedLayer& weights, Heads heads, int64_t num_tokens);
  Floats Queries() const { return qkv_.data().At(kv_width_); }
  const RotaryTables& TablesOf(int32_t layer) const;
  // Elements from row to row of activations of that width; logits and rotary tables are dense.
  int64_t Stride(int64_t width) const;
  ModelOps& ops() { return device_->ops(); }

  const ModelConfig config_;
  const RankShape shape_;
  const std::shared_ptr<const PackedRanks> all_ranks_;
  const PackedModel& model_;  // This rank's.
  const DType compute_;
  Device* const device_;
  Communicator* const group_;
  const Transformer* const lead_;
  const int64_t q_width_;   // num_heads * head_dim, of this rank
  const int64_t kv_width_;  // 2 * num_kv_heads * head_dim, of this rank
  const int64_t max_tokens_;
  Buffer alibi_slopes_;  // f32 [num_heads], of this rank; or empty.
  RotaryTables rotary_[2];  // The second with a local rope.
  std::unique_ptr<ExpertLayer> experts_;  // Of a model with such layers.

  // Activations of the pass in progress.
  ActivationRows residual_;         // f32 [T, hidden_size]
  ActivationRows delta_;            // f32 [T, hidden_size]: output of a block, not yet added.
  ActivationRows normed_;           // [T, hidden_size]
  ActivationRows wanted_residual_;  // Of the wanted tokens, where these are not all.
  ActivationRows wanted_normed_;
  ActivationRows qkv_;      // [T, kv_width_ + q_width_]: keys, values, queries.
  ActivationRows context_;  // [T, q_width_]
  ActivationRows projected_;  // [T, embedding_dim], where it is not the hidden size
  ActivationRows gate_up_;  // [T, 2 * ffn_size], of this rank; without a gate half of it
  ActivationRows ffn_;      // [T, ffn_size], of this rank
  ActivationRows shared_;   // f32 [T, hidden_size]: of the shared expert
  // f32 [logit_rows, vocab_size], the lead's; the second with several ranks only.
  ActivationRows logits_[2];
  int slice_ = 0;  // Which of them is next.

  // The two above that the layers in progress read and write.
  Floats residual_in_use_;
  Floats normed_in_use_;
  int64_t num_final_ = 0;
};

}  // namespace baton
