#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// What one sequence does in a step.
struct BatchSequence {
  bool is_prefill = false;          // A prompt or a chunk of it; else one token of decode.
  int32_t context_len = 0;          // Tokens whose K and V are in the cache.
  int32_t query_len = 0;            // New tokens, in [1, ...]; 1 when decoding.
  const int32_t* blocks = nullptr;  // [num_blocks], in the order of the tokens.
  int32_t num_blocks = 0;
};

struct BuildBatchArgs {
  const BatchSequence* sequences = nullptr;  // [num_sequences]
  int32_t num_sequences = 0;
  int32_t block_size = 0;
  bool prefills_first = true;  // Else the order that was given.
  // The sizes of a recorded graph, or 0: rows (only for decode alone), and columns of block_tables,
  // which then hold every block of a sequence, also those of tokens to come.
  int32_t padded_sequences = 0;
  int32_t table_columns = 0;
};

// The metadata of one step over a mixed batch, on the host. Rows are in batch order; row i is
// sequence order[i]. Padding rows have one token, length 0, slot -1 and a table of -1.
struct Batch {
  std::vector<int32_t> order;  // [S], -1 for padding
  int32_t num_prefills = 0;
  int32_t num_prefill_tokens = 0;
  int32_t num_decode_tokens = 0;         // With padding.
  std::vector<int32_t> seq_lens;         // [S]: context and new tokens.
  std::vector<int32_t> context_lens;     // [S]
  std::vector<int32_t> query_start_loc;  // [S + 1]: cu_seqlens_q
  std::vector<int32_t> seq_start_loc;    // [S + 1]: sums of seq_lens
  std::vector<int64_t> slot_mapping;     // [T]: block * block_size + offset, or -1.
  std::vector<int32_t> positions;        // [T]; 0 for padding.
  std::vector<int32_t> block_tables;     // [S, max_blocks], filled up with -1.
  int32_t max_blocks = 0;
  int32_t max_query_len = 0;
  int32_t max_prefill_seq_len = 0;
  int32_t max_decode_seq_len = 0;
};

// INVALID_ARGUMENT names the field, its value and what is allowed.
absl::StatusOr<Batch> BuildBatch(const BuildBatchArgs& args);

}  // namespace baton
