#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/model_config.h"
#include "common/model/activation_rows.h"
#include "common/model/packed_model.h"
#include "common/model/rank_shape.h"
#include "kernels/api/device.h"

namespace baton {

struct ExpertLayerParts {
  ModelConfig config;
  RankShape shape;
  DType compute = DType::kF32;
  ActivationKind activation = ActivationKind::kSilu;
  Device* device = nullptr;  // Outlives it.
  int64_t max_tokens = 0;    // Of the largest pass.
};

// What one rank computes of a layer of experts, and the room for it. Enqueues; reads the weights of
// the chosen experts only. The down products are cut into segments of the whole model: of each the
// choices of a token are added up by themselves, then the segments as a tree, of which the ranks
// have branches. So the bits are those of one rank. Of few tokens all segments are computed at
// once, of more as many as there is room for.
class ExpertLayer {
 public:
  static absl::StatusOr<std::unique_ptr<ExpertLayer>> Create(ExpertLayerParts parts);

  // out[t] = this rank's part of the sum of the experts of token t. `x` is what the layer's MLP
  // would get, `out` f32: [num_tokens, hidden_size] both, with the device's strides, as all here.
  absl::Status Run(const PackedExperts& experts, Floats x, int64_t num_tokens, Floats out);

  // sum[t] += sigmoid(gate of x[t]) * shared[t].
  absl::Status AddShared(const PackedExperts& experts, Floats x, Floats shared,
                         int64_t num_tokens, Floats sum);

 private:
  explicit ExpertLayer(ExpertLayerParts parts) : parts_(std::move(parts)) {}
  absl::Status MakeRoom();
  // Scores of `x` by the rows of `router`, into logits_.
  absl::Status Score(const PackedMatrix& router, Floats x, int64_t num_tokens);
  absl::Status Choose(const PackedExperts& experts, Floats x, int64_t num_tokens);
  absl::Status GateAndUp(const PackedExperts& experts, Floats x, int64_t num_tokens);
  struct Range {
    int32_t first = 0;
    int32_t count = 0;
  };
  // Of a pass with so many rows: a branch of the tree.
  int32_t SegmentsAtOnce(int64_t rows) const;
  absl::Status Down(const PackedExperts& experts, Range segments, int64_t num_tokens, Floats out);
  int64_t Stride(int64_t width) const { return StrideOf(width, *parts_.device); }
  ModelOps& ops() { return parts_.device->ops(); }

  const ExpertLayerParts parts_;
  ActivationRows logits_;     // [T, count]
  ActivationRows weights_;    // [T, top_k]
  Buffer expert_ids_;         // int32 [T, top_k]
  Buffer row_order_;          // int32 [T * top_k]
  Buffer row_positions_;      // int32 [T, top_k]
  Buffer offsets_;            // int32 [count + 1]
  Buffer own_rows_;           // int32 [T]: 0, 1, 2, ...
  ActivationRows gate_up_;    // [T * top_k, 2 * expert_ffn_size], of this rank
  ActivationRows ffn_;        // [T * top_k, expert_ffn_size]
  ActivationRows y_;          // [segments at once, rows, hidden_size], at most y_rows_ rows
  int64_t y_rows_ = 0;        // At least T * top_k.
  ActivationRows sums_;  // [parts, T, hidden_size], of segments at once, where there are several
};

}  // namespace baton
