#pragma once

#include <cstdint>
#include <vector>

namespace baton {

// The tokens of one forward pass, flattened: T tokens of S sequences.
struct ForwardBatch {
  std::vector<int32_t> tokens;        // [T]
  std::vector<int32_t> positions;     // [T]
  std::vector<int64_t> slot_mapping;  // [T]: block * block_size + offset.
  std::vector<int32_t> cu_seqlens_q;  // [S + 1]
  std::vector<int32_t> seq_lens;      // [S]: with the tokens of this pass.
  std::vector<int32_t> block_table;   // [S, max_blocks], -1 after a sequence's last block.
  int64_t max_blocks = 0;
  std::vector<int32_t> logit_tokens;  // Ascending indexes into the T tokens.
};

// What is left to attend once the pass has written all its K/V: only the tokens of `batch` whose
// logits are wanted, in their order. Neighbours of one sequence are one row of `queries`, whose
// keys end with the last of them. Sets what attention reads (positions, cu_seqlens_q, seq_lens,
// block_table, max_blocks) and reuses the memory of `queries`.
void SelectLogitTokens(const ForwardBatch& batch, ForwardBatch& queries);

}  // namespace baton
