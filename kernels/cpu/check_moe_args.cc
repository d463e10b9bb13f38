#include <cmath>

#include "common/base/status.h"
#include "kernels/cpu/check_args.h"
#include "kernels/cpu/require.h"

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

absl::Status CheckExpertMap(const MoeAlignArgs& args) {
  if (args.expert_map == nullptr) {
    return Require(args.num_local_experts == args.num_experts, "num_local_experts",
                   args.num_local_experts, "num_experts without an expert_map, which is ",
                   args.num_experts);
  }
  RETURN_IF_ERROR(RequireIn(args.num_local_experts, 0, kMaxExperts, "num_local_experts"));
  bool taken[kMaxExperts] = {};
  for (int64_t e = 0; e < args.num_experts; ++e) {
    const int32_t local = args.expert_map[e];
    if (local == -1) continue;
    if (local < -1 || local >= args.num_local_experts) {
      return RequireIn(local, -1, args.num_local_experts - 1, absl::StrCat("expert_map[", e, "]"));
    }
    if (taken[local]) {
      return Require(false, absl::StrCat("expert_map[", e, "]"), local,
                     "a local expert that no other has");
    }
    taken[local] = true;
  }
  return absl::OkStatus();
}

absl::Status CheckOffsets(const ExpertGemmArgs& args) {
  RETURN_IF_ERROR(RequirePointer(args.expert_offsets, "expert_offsets"));
  RETURN_IF_ERROR(
      Require(args.expert_offsets[0] == 0, "expert_offsets[0]", args.expert_offsets[0], "0"));
  for (int64_t e = 0; e < args.num_experts; ++e) {
    if (args.expert_offsets[e + 1] >= args.expert_offsets[e]) continue;
    return RequireAtLeast(args.expert_offsets[e + 1], args.expert_offsets[e],
                          absl::StrCat("expert_offsets[", e + 1, "]"));
  }
  return absl::OkStatus();
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

absl::Status CheckRowOrder(const ExpertGemmArgs& args, int64_t num_rows) {
  if (args.row_order == nullptr) {
    return Require(args.num_a_rows >= num_rows, "num_a_rows", args.num_a_rows,
                   "at least expert_offsets[num_experts] = ", num_rows);
  }
  for (int64_t i = 0; i < num_rows; ++i) {
    const int32_t row = args.row_order[i];
    if (row >= 0 && row / args.top_k < args.num_a_rows) continue;
    return Require(
        false, absl::StrCat("row_order[", i, "]"), row,
        absl::StrCat("in [0, num_a_rows * top_k), of ", args.num_a_rows, " and ", args.top_k));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckArgs(const MoeRoutingArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireIn(args.num_experts, 1, kMaxExperts, "num_experts"));
  RETURN_IF_ERROR(RequireIn(args.top_k, 1, args.num_experts, "top_k"));
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

absl::Status CheckArgs(const MoeAlignArgs& args) {
  RETURN_IF_ERROR(CheckRows(args.num_tokens, args.top_k));
  RETURN_IF_ERROR(RequireIn(args.num_experts, 1, kMaxExperts, "num_experts"));
  RETURN_IF_ERROR(CheckExpertMap(args));
  RETURN_IF_ERROR(RequirePointer(args.expert_offsets, "expert_offsets"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.expert_ids, "expert_ids"));
  RETURN_IF_ERROR(RequirePointer(args.row_order, "row_order"));
  RETURN_IF_ERROR(RequirePointer(args.row_positions, "row_positions"));
  for (int64_t row = 0; row < args.num_tokens * args.top_k; ++row) {
    if (args.expert_ids[row] < args.num_experts) continue;
    return Require(false, absl::StrCat("expert_ids[", row, "]"), args.expert_ids[row],
                   "less than num_experts = ", args.num_experts);
  }
  return absl::OkStatus();
}

absl::Status CheckArgs(const ExpertGemmArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.a, "a"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  RETURN_IF_ERROR(RequireIn(args.num_experts, 0, kMaxExperts, "num_experts"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_a_rows, 0, "num_a_rows"));
  RETURN_IF_ERROR(RequireAtLeast(args.top_k, 1, "top_k"));
  RETURN_IF_ERROR(RequireComputeType(args.a_rounded_to, "a_rounded_to"));
  if (args.num_experts == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckOffsets(args));
  RETURN_IF_ERROR(CheckExpertWeights(args));
  const int64_t num_rows = args.expert_offsets[args.num_experts];
  if (num_rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.a.data, "a"));
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  RETURN_IF_ERROR(RequireStride(args.a_stride, args.weights->k(), "a_stride"));
  RETURN_IF_ERROR(RequireStride(args.out_stride, args.weights->n(), "out_stride"));
  return CheckRowOrder(args, num_rows);
}

absl::Status CheckArgs(const MoeCombineArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.y, "y"));
  RETURN_IF_ERROR(RequireF32(args.shared, "shared"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  RETURN_IF_ERROR(CheckRows(args.num_tokens, args.top_k));
  RETURN_IF_ERROR(RequireAtLeast(args.num_rows, 0, "num_rows"));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  RETURN_IF_ERROR(RequireComputeType(args.round_to, "round_to"));
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
  if (args.num_rows > 0) {
    RETURN_IF_ERROR(RequirePointer(args.y.data, "y"));
    RETURN_IF_ERROR(RequireStride(args.y_stride, args.dim, "y_stride"));
  }
  for (int64_t i = 0; i < args.num_tokens * args.top_k; ++i) {
    if (args.row_positions[i] < args.num_rows) continue;
    return Require(false, absl::StrCat("row_positions[", i, "]"), args.row_positions[i],
                   "less than num_rows = ", args.num_rows);
  }
  return absl::OkStatus();
}

}  // namespace baton
