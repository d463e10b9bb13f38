#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// Tokens [offset, offset + length) of a prompt, for which a model takes the embeddings of an image
// or the like.
struct PlaceholderRange {
  int32_t offset = 0;
  int32_t length = 0;
};

// What one sequence does in a step.
struct BatchSequence {
  bool is_prefill = false;          // A prompt or a chunk of it; else one token of decode.
  int32_t context_len = 0;          // Tokens whose K and V are in the cache.
  int32_t query_len = 0;            // New tokens, at least 1; max_decode_query_len when decoding.
  const int32_t* blocks = nullptr;  // [num_blocks], in the order of the tokens.
  int32_t num_blocks = 0;
  bool is_last_chunk = true;  // Of a prefill: its prompt ends here.
  // Of a model with an encoder: its tokens, and the blocks that hold their K and V for
  // cross-attention, or are given them in this step, in which the encoder runs.
  int32_t encoder_len = 0;
  const int32_t* cross_blocks = nullptr;  // [num_cross_blocks]
  int32_t num_cross_blocks = 0;
  bool runs_encoder = false;  // Of prefills only.
  // Of a prefill's prompt, in ascending order, without overlap.
  const PlaceholderRange* placeholders = nullptr;  // [num_placeholders]
  int32_t num_placeholders = 0;
};

struct BuildBatchArgs {
  const BatchSequence* sequences = nullptr;  // [num_sequences]
  int32_t num_sequences = 0;
  int32_t block_size = 0;
  bool prefills_first = true;  // Else the order that was given.
  int32_t max_decode_query_len = 1;  // Above 1: tokens are speculated.
  // The sizes of a recorded graph, or 0: rows (only for decode alone), and columns of block_tables,
  // which then hold every block of a sequence, also those of tokens to come; and of
  // cross_block_tables.
  int32_t padded_sequences = 0;
  int32_t table_columns = 0;
  int32_t cross_table_columns = 0;
};

// The metadata of one step over a mixed batch, on the host. Rows are in batch order; row i is
// sequence order[i]. Padding rows have one token, lengths 0, slot -1 and tables of -1.
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
  int32_t max_decode_query_len = 0;
  bool prefills_first = true;  // No prefill stands behind a decode.
  int32_t num_unfinished_prefills = 0;

  // Cross-attention: K and V of row i are those of encoder_seq_lens[i] tokens in row i of
  // cross_block_tables. The tokens of the encoders that run in this step lie beside each other.
  std::vector<int32_t> encoder_seq_lens;         // [S]
  std::vector<int32_t> encoder_seq_start_loc;    // [S + 1]: sums of encoder_seq_lens
  std::vector<int32_t> encoder_query_start_loc;  // [S + 1]: sums of the tokens that are computed
  std::vector<int64_t> cross_slot_mapping;       // [encoder_query_start_loc[S]]
  std::vector<int32_t> cross_block_tables;       // [S, max_cross_blocks], filled up with -1.
  int32_t max_cross_blocks = 0;
  int32_t num_encoder_tokens = 0;  // The sum of encoder_seq_lens.
  int32_t max_encoder_seq_len = 0;

  // Token multi_modal_dest[i] of the batch takes embedding multi_modal_src[i] (vLLM's
  // multi_modal_placeholder_index_maps). Embeddings are those of all ranges that hold a token of
  // the batch, each whole, in batch order.
  std::vector<int32_t> multi_modal_src;
  std::vector<int32_t> multi_modal_dest;
  int32_t num_multi_modal_embeddings = 0;
};

// INVALID_ARGUMENT names the field, its value and what is allowed.
absl::StatusOr<Batch> BuildBatch(const BuildBatchArgs& args);

}  // namespace baton
