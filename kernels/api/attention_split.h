#pragma once

#include <cstdint>

#include "kernels/api/attention_args.h"

namespace baton {

// AttentionSplit::kReference for these sizes: kSinglePass or kSplit.
inline AttentionSplit ReferenceSplit(int64_t max_seq_len, int64_t num_seqs, int64_t num_heads) {
  const bool one_partition = max_seq_len <= kPartitionKeys;
  const bool single = max_seq_len <= 8192 && (one_partition || num_seqs * num_heads > 512);
  return single ? AttentionSplit::kSinglePass : AttentionSplit::kSplit;
}

}  // namespace baton
