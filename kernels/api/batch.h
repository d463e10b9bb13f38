#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// Tokens [offset, offset + length) of a prompt, for which a model takes the embeddings of one item:
// of an image, of some sound.
struct PlaceholderRange {
  int32_t offset = 0;
  int32_t length = 0;
  int32_t modality = 0;  // By the caller's count, below num_modalities.
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
  // Of a prefill's whole prompt, of all modalities in ascending order, without overlap.
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
  int32_t num_modalities = 1;  // In [0, 64]: a map for each, whether or not the batch has ranges.
};

// Which tokens of a batch take embeddings of one modality: token dest[i] of the batch takes
// embedding src[i]. Embeddings lie beside each other in batch order, those of every range of the
// modality that holds a token of the batch, each range whole. So where chunks cut a range in two,
// both steps have it, and each takes its part: of a range [4, 9) a chunk of tokens [0, 6) takes
// embeddings 0 and 1, the next one 2, 3 and 4. Ranges that hold no token of the batch have none.
struct PlaceholderIndexMap {
  std::vector<int32_t> src;
  std::vector<int32_t> dest;
  // [S + 1]: row i has entries [index_start_loc[i], index_start_loc[i + 1]) of both, and embeddings
  // [embedding_start_loc[i], embedding_start_loc[i + 1]).
  std::vector<int32_t> index_start_loc{0};
  std::vector<int32_t> embedding_start_loc{0};

  int32_t num_embeddings() const { return embedding_start_loc.back(); }
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

  // [num_modalities], by modality (vLLM's, by its name).
  std::vector<PlaceholderIndexMap> multi_modal_placeholder_index_maps;
};

// INVALID_ARGUMENT names the field, its value and what is allowed.
absl::StatusOr<Batch> BuildBatch(const BuildBatchArgs& args);

}  // namespace baton
