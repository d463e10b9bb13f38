#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/batch.h"
#include "kernels/api/operator_library.h"

namespace baton {

// The rows of a batch's prefills, or of its decodes, alone (vLLM's prefill_metadata and
// decode_metadata): sums begin at 0 and tables keep their width, `order` still counts the sequences
// of the whole batch. Without such rows an empty batch. Refused where a prefill stands behind a
// decode.
absl::StatusOr<Batch> PrefillMetadata(const Batch& batch);
absl::StatusOr<Batch> DecodeMetadata(const Batch& batch);

struct AdvanceBatchArgs {
  int32_t block_size = 0;
  const int32_t* sampled_tokens = nullptr;  // [S] without padding rows; may be `tokens`.
  int32_t* tokens = nullptr;                // [S]
  // Each prefill, which was its prompt's last chunk, becomes a decode of the token that it gave.
  // Without, a batch that has prefills is refused.
  bool turn_prefills_into_decodes = false;
};

// Moves a batch on by one token per row, in place, without building it anew (vLLM's
// FlashAttentionMetadata.advance_step): AdvanceStep on its arrays and what only the host has of it.
// Nothing is computed any more of encoders and embeddings of images; cross-attention still reads
// what it did. The rows of block_tables need the block of the new token: BuildBatchArgs has
// table_columns for that. Nothing changes on an error.
absl::Status AdvanceBatch(OperatorLibrary& kernels, const AdvanceBatchArgs& args, Batch& batch);

}  // namespace baton
