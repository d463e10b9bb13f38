#include "kernels/cpu/advance_step.h"

namespace baton {

void AdvanceStep(const AdvanceStepArgs& args) {
  for (int32_t row = 0; row < args.num_queries; ++row) {
    const int32_t position = args.seq_lens[row];
    const int64_t block = args.block_tables[row * args.max_blocks + position / args.block_size];
    args.tokens[row] = args.sampled_tokens[row];
    args.positions[row] = position;
    args.seq_lens[row] = position + 1;
    args.slot_mapping[row] = block * args.block_size + position % args.block_size;
  }
  for (int32_t row = args.num_queries; row < args.num_seqs; ++row) {
    args.tokens[row] = 0;
    args.positions[row] = 0;
    args.slot_mapping[row] = -1;
  }
}

}  // namespace baton
