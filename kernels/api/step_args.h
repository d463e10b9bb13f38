#pragma once

#include <cstdint>

namespace baton {

// The metadata of a decode batch moved on by one token, in place, without the host building it anew
// (vLLM's advance_step). Rows [0, num_queries):
//   token = sampled, seq_len += 1, position = seq_len - 1,
//   slot = block_table[position / block_size] * block_size + position % block_size.
// The rows behind them fill the batch up to the size of a recorded graph: token 0, position 0, slot
// -1; their seq_len and block table are not looked at.
struct AdvanceStepArgs {
  int32_t num_seqs = 0;     // S, with padding.
  int32_t num_queries = 0;  // In [0, S].
  int32_t block_size = 0;
  const int32_t* sampled_tokens = nullptr;  // [num_queries]; may be `tokens`.
  const int32_t* block_tables = nullptr;    // [S, max_blocks]; only the new token's entry is read.
  int64_t max_blocks = 0;
  int32_t* tokens = nullptr;        // [S]
  int32_t* positions = nullptr;     // [S]
  int32_t* seq_lens = nullptr;      // [S]: with the token before; >= 0.
  int64_t* slot_mapping = nullptr;  // [S]
};

}  // namespace baton
