#include <cstdint>

#include "common/base/status.h"
#include "kernels/cpu/check_contents.h"
#include "kernels/cpu/require_f32.h"

namespace baton {
namespace {

absl::Status CheckExpertMap(const MoeAlignArgs& args) {
  if (args.expert_map == nullptr) return absl::OkStatus();
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
  RETURN_IF_ERROR(
      Require(args.expert_offsets[0] == 0, "expert_offsets[0]", args.expert_offsets[0], "0"));
  for (int64_t e = 0; e < args.num_experts; ++e) {
    if (args.expert_offsets[e + 1] >= args.expert_offsets[e]) continue;
    return RequireAtLeast(args.expert_offsets[e + 1], args.expert_offsets[e],
                          absl::StrCat("expert_offsets[", e + 1, "]"));
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

absl::Status CheckContents(const MoeRoutingArgs&) { return absl::OkStatus(); }

absl::Status CheckContents(const MoeAlignArgs& args) {
  RETURN_IF_ERROR(CheckExpertMap(args));
  for (int64_t row = 0; row < args.num_tokens * args.top_k; ++row) {
    if (args.expert_ids[row] < args.num_experts) continue;
    return Require(false, absl::StrCat("expert_ids[", row, "]"), args.expert_ids[row],
                   "less than num_experts = ", args.num_experts);
  }
  return absl::OkStatus();
}

absl::Status CheckContents(const ExpertGemmArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.a, "a"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  if (args.num_experts == 0) return absl::OkStatus();
  for (int64_t e = 0; e < args.num_experts; ++e) {
    RETURN_IF_ERROR(RequirePacked(args.weights[e], WeightFormat::kCpuPanels, "weights"));
  }
  RETURN_IF_ERROR(CheckOffsets(args));
  const int64_t num_rows = args.expert_offsets[args.num_experts];
  if (num_rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.a.data, "a"));
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  RETURN_IF_ERROR(RequireStride(args.a_stride, args.weights->k(), "a_stride"));
  RETURN_IF_ERROR(RequireStride(args.out_stride, args.weights->n(), "out_stride"));
  if (args.num_segments > 1) {
    RETURN_IF_ERROR(RequireSegmentStride(args.segment_stride, num_rows, args.out_stride));
  }
  return CheckRowOrder(args, num_rows);
}

absl::Status CheckContents(const MoeCombineArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.y, "y"));
  RETURN_IF_ERROR(RequireF32(args.shared, "shared"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  for (int64_t i = 0; i < args.num_tokens * args.top_k; ++i) {
    if (args.row_positions[i] < args.num_rows) continue;
    return Require(false, absl::StrCat("row_positions[", i, "]"), args.row_positions[i],
                   "less than num_rows = ", args.num_rows);
  }
  return absl::OkStatus();
}

}  // namespace baton
