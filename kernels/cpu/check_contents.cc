#include "kernels/cpu/check_contents.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "kernels/api/check_shapes.h"
#include "kernels/cpu/require_f32.h"

namespace baton {

absl::Status CheckContents(const AdvanceStepArgs& args) {
  if (args.num_queries == 0) return absl::OkStatus();
  const int64_t room = std::min<int64_t>(args.max_blocks * args.block_size, INT32_MAX);
  for (int32_t row = 0; row < args.num_queries; ++row) {
    const int64_t position = args.seq_lens[row];
    RETURN_IF_ERROR(Require(
        position >= 0 && position < room, absl::StrCat("seq_lens[", row, "]"), position,
        absl::StrCat("in [0, ", room, "): a row has max_blocks = ", args.max_blocks, " blocks")));
    const int64_t column = position / args.block_size;
    const int32_t block = args.block_tables[row * args.max_blocks + column];
    RETURN_IF_ERROR(Require(block >= 0, absl::StrCat("block_tables[", row, "][", column, "]"),
                            block, "a block: the new token goes there"));
  }
  return absl::OkStatus();
}

absl::Status CheckContents(const RmsNormArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.x, "x"));
  return RequireF32(args.out, "out");
}

absl::Status CheckContents(const LayerNormArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.x, "x"));
  return RequireF32(args.out, "out");
}

absl::Status CheckContents(const RopeArgs& args) {
  return RequireF32(args.x, "x");
}

absl::Status CheckContents(const ActivationArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.x, "x"));
  return RequireF32(args.out, "out");
}

absl::Status CheckContents(const ActivationAndMulArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.gate_up, "gate_up"));
  return RequireF32(args.out, "out");
}

absl::Status CheckContents(const SoftcapArgs& args) {
  return RequireF32(args.x, "x");
}

absl::Status CheckContents(const GemmArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.a, "a"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  return RequirePacked(*args.weights, WeightFormat::kCpuPanels, "weights");
}

absl::Status CheckContents(const EmbeddingArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePackedShards(args, WeightFormat::kCpuPanels));
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    if (args.tokens[t] >= 0 && args.tokens[t] < args.num_rows()) continue;
    return Require(false, absl::StrCat("tokens[", t, "]"), args.tokens[t],
                   absl::StrCat("in [0, ", args.num_rows(), ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckContents(const RotaryTableArgs& args) {
  const bool has_other = args.other_inv_freq != nullptr;
  for (int64_t t = 0; args.half > 0 && !has_other && t < args.num_tokens; ++t) {
    if (args.positions[t] >= 0) continue;
    return RequireAtLeast(args.positions[t], 0, absl::StrCat("positions[", t, "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckContents(const SelectRowsArgs& args) {
  for (int64_t i = 0; i < args.num_rows; ++i) {
    if (args.rows[i] >= 0) continue;
    return RequireAtLeast(args.rows[i], 0, absl::StrCat("rows[", i, "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckContents(const FoldPartialsArgs& args) { return RequireF32(args.out, "out"); }

absl::Status CheckContents(const PackWeightsArgs&) { return absl::OkStatus(); }

}  // namespace baton
