#include "common/model/expert_layer.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/model/device_memory.h"

namespace baton {
namespace {

// Rows of so few choices have room for all segments at once, however small the largest pass is.
constexpr int64_t kFewRows = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertLayer>> ExpertLayer::Create(ExpertLayerParts parts) {
  std::unique_ptr<ExpertLayer> layer(new ExpertLayer(std::move(parts)));
  RETURN_IF_ERROR(layer->MakeRoom());
  return layer;
}

absl::Status ExpertLayer::MakeRoom() {
  const ExpertConfig& experts = parts_.config.experts;
  const int64_t tokens = parts_.max_tokens, rows = tokens * experts.top_k;
  const int64_t hidden = parts_.config.hidden_size, ffn = parts_.shape.expert_ffn_size;
  const int64_t segments = parts_.shape.expert_down_segments;
  y_rows_ = std::max(rows, segments * std::min(rows, kFewRows));
  const int64_t most_parts = segments / SegmentsAtOnce(rows);
  const DType activations = parts_.device->Activations(parts_.compute);
  struct Room {
    ActivationRows& activation;
    int64_t rows;
    int64_t width;
    DType dtype;
  };
  const Room rooms[] = {{logits_, tokens, experts.count, DType::kF32},
                        {weights_, tokens, experts.top_k, DType::kF32},
                        {gate_up_, rows, 2 * ffn, activations},
                        {ffn_, rows, ffn, activations},
                        {y_, y_rows_, hidden, DType::kF32},
                        {sums_, most_parts > 1 ? most_parts * tokens : 0, hidden, DType::kF32}};
  for (const Room& room : rooms) {
    ASSIGN_OR_RETURN(room.activation,
                     AllocateRows(*parts_.device, room.rows, Stride(room.width), room.dtype));
  }
  std::vector<int32_t> numbers(std::max<int64_t>(rows, experts.count + 1));
  std::iota(numbers.begin(), numbers.end(), 0);
  for (Buffer* buffer : {&expert_ids_, &row_order_, &row_positions_, &offsets_, &own_rows_}) {
    ASSIGN_OR_RETURN(*buffer, CopyToDevice(*parts_.device, std::as_bytes(std::span(numbers))));
  }
  return absl::OkStatus();
}

absl::Status ExpertLayer::Score(const PackedMatrix& router, Floats x, int64_t num_tokens) {
  return ops().Gemm({.a = x,
                     .a_stride = Stride(router.k()),
                     .m = num_tokens,
                     .a_rounded_to = parts_.compute,
                     .weights = &router,
                     .out = logits_.data(),
                     .out_stride = Stride(router.n())});
}

absl::Status ExpertLayer::Choose(const PackedExperts& experts, Floats x, int64_t num_tokens) {
  const ExpertConfig& config = parts_.config.experts;
  RETURN_IF_ERROR(Score(experts.router, x, num_tokens));
  RETURN_IF_ERROR(ops().MoeRouting({.logits = logits_.data().f32(),
                                    .logits_stride = Stride(config.count),
                                    .num_tokens = num_tokens,
                                    .num_experts = config.count,
                                    .top_k = config.top_k,
                                    .renormalize = config.renormalize,
                                    .expert_ids = expert_ids_.array<int32_t>(),
                                    .weights = weights_.data().f32()}));
  return ops().MoeAlign({.expert_ids = expert_ids_.array<int32_t>(),
                         .num_tokens = num_tokens,
                         .top_k = config.top_k,
                         .num_experts = config.count,
                         .num_local_experts = config.count,
                         .row_order = row_order_.array<int32_t>(),
                         .row_positions = row_positions_.array<int32_t>(),
                         .expert_offsets = offsets_.array<int32_t>()});
}

absl::Status ExpertLayer::GateAndUp(const PackedExperts& experts, Floats x, int64_t num_tokens) {
  const ExpertConfig& config = parts_.config.experts;
  const int64_t ffn = parts_.shape.expert_ffn_size;
  RETURN_IF_ERROR(ops().ExpertGemm({.a = x,
                                    .a_stride = Stride(parts_.config.hidden_size),
                                    .num_a_rows = num_tokens,
                                    .a_rounded_to = parts_.compute,
                                    .row_order = row_order_.array<int32_t>(),
                                    .top_k = config.top_k,
                                    .expert_offsets = offsets_.array<int32_t>(),
                                    .num_experts = config.count,
                                    .weights = experts.gate_up.data(),
                                    .out = gate_up_.data(),
                                    .out_stride = Stride(2 * ffn)}));
  return ops().ActivationAndMul({.gate_up = gate_up_.data(),
                                 .num_tokens = num_tokens * config.top_k,
                                 .dim = ffn,
                                 .activation = parts_.activation,
                                 .round_to = parts_.compute,
                                 .out = ffn_.data(),
                                 .gate_up_stride = Stride(2 * ffn),
                                 .out_stride = Stride(ffn)});
}

int32_t ExpertLayer::SegmentsAtOnce(int64_t rows) const {
  int32_t count = parts_.shape.expert_down_segments;
  while (count > 1 && count * rows > y_rows_) count /= 2;
  return count;
}

absl::Status ExpertLayer::Down(const PackedExperts& experts, Range segments, int64_t num_tokens,
                               Floats out) {
  const ExpertConfig& config = parts_.config.experts;
  const int64_t hidden = parts_.config.hidden_size, stride = Stride(hidden);
  const int64_t rows = num_tokens * config.top_k;
  RETURN_IF_ERROR(ops().ExpertGemm({.a = ffn_.data(),
                                    .a_stride = Stride(parts_.shape.expert_ffn_size),
                                    .num_a_rows = rows,
                                    .a_rounded_to = parts_.compute,
                                    .expert_offsets = offsets_.array<int32_t>(),
                                    .num_experts = config.count,
                                    .weights = experts.down.data(),
                                    .out = y_.data(),
                                    .out_stride = stride,
                                    .segments = parts_.shape.expert_down_segments,
                                    .first_segment = segments.first,
                                    .num_segments = segments.count,
                                    .segment_stride = rows * stride}));
  return ops().MoeCombine({.y = y_.data(),
                           .y_stride = stride,
                           .num_rows = rows,
                           .segments = segments.count,
                           .segment_stride = rows * stride,
                           .expert_ids = expert_ids_.array<int32_t>(),
                           .row_positions = row_positions_.array<int32_t>(),
                           .weights = weights_.data().f32(),
                           .num_tokens = num_tokens,
                           .top_k = config.top_k,
                           .dim = hidden,
                           .out = out,
                           .out_stride = stride});
}

absl::Status ExpertLayer::Run(const PackedExperts& experts, Floats x, int64_t num_tokens,
                              Floats out) {
  RETURN_IF_ERROR(Choose(experts, x, num_tokens));
  RETURN_IF_ERROR(GateAndUp(experts, x, num_tokens));
  const int32_t count = SegmentsAtOnce(num_tokens * parts_.config.experts.top_k);
  const int32_t num_parts = parts_.shape.expert_down_segments / count;
  if (num_parts == 1) return Down(experts, {0, count}, num_tokens, out);
  const int64_t hidden = parts_.config.hidden_size, stride = Stride(hidden);
  FoldPartialsArgs fold{.num_parts = num_parts,
                        .part_stride = stride,
                        .num_tokens = num_tokens,
                        .dim = hidden,
                        .out = out,
                        .out_stride = stride};
  for (int32_t i = 0; i < num_parts; ++i) {
    const Floats part = sums_.data().At(i * num_tokens * stride);
    RETURN_IF_ERROR(Down(experts, {i * count, count}, num_tokens, part));
    fold.parts[i] = part.f32();
  }
  return ops().FoldPartials(fold);
}

absl::Status ExpertLayer::AddShared(const PackedExperts& experts, Floats x, Floats shared,
                                    int64_t num_tokens, Floats sum) {
  const int64_t hidden = parts_.config.hidden_size, stride = Stride(hidden);
  RETURN_IF_ERROR(Score(experts.shared_gate, x, num_tokens));
  RETURN_IF_ERROR(ops().MoeRouting({.logits = logits_.data().f32(),
                                    .logits_stride = Stride(1),
                                    .num_tokens = num_tokens,
                                    .num_experts = 1,
                                    .top_k = 1,
                                    .scoring = MoeScoring::kSigmoid,
                                    .expert_ids = expert_ids_.array<int32_t>(),
                                    .weights = weights_.data().f32()}));
  RETURN_IF_ERROR(ops().MoeCombine({.y = shared,
                                    .y_stride = stride,
                                    .num_rows = num_tokens,
                                    .expert_ids = expert_ids_.array<int32_t>(),
                                    .row_positions = own_rows_.array<int32_t>(),
                                    .weights = weights_.data().f32(),
                                    .num_tokens = num_tokens,
                                    .top_k = 1,
                                    .dim = hidden,
                                    .out = y_.data(),
                                    .out_stride = stride}));
  return ops().FoldPartials({.parts = {sum.f32(), y_.data().f32()},
                             .num_parts = 2,
                             .part_stride = stride,
                             .num_tokens = num_tokens,
                             .dim = hidden,
                             .out = sum,
                             .out_stride = stride});
}

}  // namespace baton
