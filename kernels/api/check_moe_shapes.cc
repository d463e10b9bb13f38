#include <cmath>

#include "common/base/status.h"
#include "kernels/api/check_shapes.h"
#include "kernels/api/require.h"

namespace baton {
namespace {

absl::Status CheckGroups(const MoeRoutingArgs& args) {
  RETURN_IF_ERROR(Require(args.num_groups >= 1 && args.num_experts % args.num_groups == 0,
                          "num_groups", args.num_groups,
                          "a divisor of num_experts = ", args.num_experts));
  RETURN_IF_ERROR(RequireIn(args.top_groups, 1, args.num_groups, "top_groups"));
  const int64_t reachable = args.top_groups * (args.num_experts / args.num_groups);
  return Require(args.top_k <= reachable, "top_k", args.top_k,
                 "at most the experts of top_groups groups, ", reachable);
}

// Flat rows are numbered in 32 bits.
absl::Status CheckRows(int64_t num_tokens, int64_t top_k) {
  RETURN_IF_ERROR(RequireIn(top_k, 1, kMaxExperts, "top_k"));
  return RequireIn(num_tokens, 0, INT32_MAX / top_k, "num_tokens");
}

// Like the first, so that their rows are packed in one way.
absl::Status CheckExpertWeights(const ExpertGemmArgs& args) {
  RETURN_IF_ERROR(RequirePointer(args.weights, "weights"));
  const PackedMatrix& first = args.weights[0];
  for (int64_t e = 0; e < args.num_experts; ++e) {
    const PackedMatrix& w = args.weights[e];
    const bool same = w.n() == first.n() && w.k() == first.k() && w.dtype() == first.dtype();
    if (same && CheckWeights(w, "weights").ok()) continue;
    const std::string field = absl::StrCat("weights[", e, "]");
    RETURN_IF_ERROR(CheckWeights(w, field));
    RETURN_IF_ERROR(
        Require(w.n() == first.n(), {field, ".n"}, w.n(), "that of weights[0], ", first.n()));
    RETURN_IF_ERROR(
        Require(w.k() == first.k(), {field, ".k"}, w.k(), "that of weights[0], ", first.k()));
    return Require(false, {field, ".dtype"}, static_cast<int>(w.dtype()), "that of weights[0], ",
                   static_cast<int>(first.dtype()));
  }
  return absl::OkStatus();
}

absl::Status CheckSegments(const ExpertGemmArgs& args) {
  RETURN_IF_ERROR(RequireSegments(args.segments, args.weights->k()));
  RETURN_IF_ERROR(RequireIn(args.first_segment, 0, args.segments - 1, "first_segment"));
  RETURN_IF_ERROR(
      RequireIn(args.num_segments, 1, args.segments - args.first_segment, "num_segments"));
  return Require(args.segments == 1 || args.bias == nullptr, "segments", args.segments,
                 "1 with a bias");
}

}  // namespace

absl::Status CheckShapes(const MoeRoutingArgs& args) {
  RETURN_IF_ERROR(RequireIn(args.num_experts, 1, kMaxExperts, "num_experts"));
  RETURN_IF_ERROR(RequireIn(args.top_k, 1, args.num_experts, "top_k"));
  RETURN_IF_ERROR(CheckRows(args.num_tokens, args.top_k));
  RETURN_IF_ERROR(Require(args.scoring <= MoeScoring::kSigmoid, "scoring",
                          static_cast<int>(args.scoring), "SOFTMAX or SIGMOID"));
  RETURN_IF_ERROR(CheckGroups(args));
  RETURN_IF_ERROR(RequireFloat(std::isfinite(args.scaling_factor), "scaling_factor",
                               args.scaling_factor, "finite"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.logits, "logits"));
  RETURN_IF_ERROR(RequirePointer(args.expert_ids, "expert_ids"));
  RETURN_IF_ERROR(RequirePointer(args.weights, "weights"));
  return RequireStride(args.logits_stride, args.num_experts, "logits_stride");
}

absl::Status CheckShapes(const MoeAlignArgs& args) {
  RETURN_IF_ERROR(CheckRows(args.num_tokens, args.top_k));
  RETURN_IF_ERROR(RequireIn(args.num_experts, 1, kMaxExperts, "num_experts"));
  if (args.expert_map == nullptr) {
    RETURN_IF_ERROR(Require(args.num_local_experts == args.num_experts, "num_local_experts",
                            args.num_local_experts,
                            "num_experts without an expert_map, which is ", args.num_experts));
  }
  RETURN_IF_ERROR(RequireIn(args.num_local_experts, 0, kMaxExperts, "num_local_experts"));
  RETURN_IF_ERROR(RequirePointer(args.expert_offsets, "expert_offsets"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.expert_ids, "expert_ids"));
  RETURN_IF_ERROR(RequirePointer(args.row_order, "row_order"));
  return RequirePointer(args.row_positions, "row_positions");
}

absl::Status CheckShapes(const ExpertGemmArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.a, "a"));
  RETURN_IF_ERROR(RequireOperand(args.out, "out"));
  RETURN_IF_ERROR(RequireIn(args.num_experts, 0, kMaxExperts, "num_experts"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_a_rows, 0, "num_a_rows"));
  RETURN_IF_ERROR(RequireAtLeast(args.top_k, 1, "top_k"));
  RETURN_IF_ERROR(RequireComputeType(args.a_rounded_to, "a_rounded_to"));
  if (args.num_experts == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.expert_offsets, "expert_offsets"));
  RETURN_IF_ERROR(CheckExpertWeights(args));
  return CheckSegments(args);
}

absl::Status CheckShapes(const MoeCombineArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.y, "y"));
  RETURN_IF_ERROR(RequireOperand(args.shared, "shared"));
  RETURN_IF_ERROR(RequireRounded(args.out, args.round_to));
  RETURN_IF_ERROR(CheckRows(args.num_tokens, args.top_k));
  RETURN_IF_ERROR(RequireAtLeast(args.num_rows, 0, "num_rows"));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  RETURN_IF_ERROR(RequireTree(args.segments, "segments"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.expert_ids, "expert_ids"));
  RETURN_IF_ERROR(RequirePointer(args.row_positions, "row_positions"));
  RETURN_IF_ERROR(RequirePointer(args.weights, "weights"));
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  RETURN_IF_ERROR(RequireStride(args.out_stride, args.dim, "out_stride"));
  // Rows of `out` elsewhere would overwrite those of `shared` that are still to be read.
  if (args.shared.data == args.out.data && args.out_stride != args.dim) {
    return Require(false, "out_stride", args.out_stride,
                   absl::StrCat("dim = ", args.dim, " where shared is out"));
  }
  if (args.num_rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.y.data, "y"));
  RETURN_IF_ERROR(RequireStride(args.y_stride, args.dim, "y_stride"));
  if (args.segments == 1) return absl::OkStatus();
  return RequireSegmentStride(args.segment_stride, args.num_rows, args.y_stride);
}

}  // namespace baton
