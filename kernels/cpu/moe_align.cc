#include "kernels/cpu/moe_align.h"

#include <algorithm>
#include <numeric>

namespace baton {
namespace {

// -1: not on this rank, or padding.
int32_t LocalExpert(const MoeAlignArgs& args, int64_t row) {
  const int32_t id = args.expert_ids[row];
  return id < 0 ? -1 : args.expert_map == nullptr ? id : args.expert_map[id];
}

}  // namespace

void MoeAlign(const MoeAlignArgs& args) {
  const int64_t num_rows = args.num_tokens * args.top_k;
  int32_t* offsets = args.expert_offsets;
  std::fill_n(offsets, args.num_local_experts + 1, 0);
  for (int64_t row = 0; row < num_rows; ++row) {
    const int32_t e = LocalExpert(args, row);
    if (e >= 0) ++offsets[e + 1];
  }
  std::partial_sum(offsets, offsets + args.num_local_experts + 1, offsets);
  std::fill_n(args.row_order, num_rows, -1);
  int32_t next[kMaxExperts];  // Of each expert.
  for (int64_t e = 0; e < args.num_local_experts; ++e) next[e] = offsets[e];
  for (int64_t row = 0; row < num_rows; ++row) {
    const int32_t e = LocalExpert(args, row);
    args.row_positions[row] = e < 0 ? -1 : next[e]++;
    if (e >= 0) args.row_order[args.row_positions[row]] = static_cast<int32_t>(row);
  }
}

}  // namespace baton
