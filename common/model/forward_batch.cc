#include "common/model/forward_batch.h"

#include <cstddef>

namespace baton {

void SelectLogitTokens(const ForwardBatch& batch, ForwardBatch& queries) {
  queries.positions.clear();
  queries.cu_seqlens_q.assign(1, 0);
  queries.seq_lens.clear();
  queries.block_table.clear();
  queries.max_blocks = batch.max_blocks;
  size_t sequence = 0;
  int32_t next = -1;  // The token that would go on with the row.
  for (const int32_t token : batch.logit_tokens) {
    const size_t row_of = sequence;
    while (token >= batch.cu_seqlens_q[sequence + 1]) ++sequence;
    if (token != next || sequence != row_of) {
      queries.cu_seqlens_q.push_back(queries.cu_seqlens_q.back());
      queries.seq_lens.push_back(0);
      const auto table = batch.block_table.begin() + sequence * batch.max_blocks;
      queries.block_table.insert(queries.block_table.end(), table, table + batch.max_blocks);
    }
    queries.positions.push_back(batch.positions[token]);
    ++queries.cu_seqlens_q.back();
    queries.seq_lens.back() = batch.positions[token] + 1;
    next = token + 1;
  }
}

}  // namespace baton
