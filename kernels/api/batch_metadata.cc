#include "kernels/api/batch_metadata.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "common/base/status.h"
#include "kernels/api/require.h"

namespace baton {
namespace {

template <typename T>
std::vector<T> Slice(const std::vector<T>& all, int64_t begin, int64_t end) {
  return std::vector<T>(all.begin() + begin, all.begin() + end);
}

// Sums of rows [begin, end), from 0 on.
std::vector<int32_t> SliceSums(const std::vector<int32_t>& sums, int64_t begin, int64_t end) {
  std::vector<int32_t> slice = Slice(sums, begin, end + 1);
  const int32_t first = slice.front();
  for (int32_t& sum : slice) sum -= first;
  return slice;
}

PlaceholderIndexMap SliceMap(const PlaceholderIndexMap& map, int64_t begin, int64_t end,
                             int32_t first_token) {
  const int32_t first = map.index_start_loc[begin], last = map.index_start_loc[end];
  PlaceholderIndexMap slice{.src = Slice(map.src, first, last),
                            .dest = Slice(map.dest, first, last),
                            .index_start_loc = SliceSums(map.index_start_loc, begin, end),
                            .embedding_start_loc = SliceSums(map.embedding_start_loc, begin, end)};
  for (int32_t& embedding : slice.src) embedding -= map.embedding_start_loc[begin];
  for (int32_t& token : slice.dest) token -= first_token;
  return slice;
}

int32_t Longest(const std::vector<int32_t>& lens) {
  return lens.empty() ? 0 : *std::max_element(lens.begin(), lens.end());
}

// Rows [begin, end). Counts of prefills and of decodes are left to the caller.
Batch SliceRows(const Batch& batch, int64_t begin, int64_t end) {
  const int64_t first = batch.query_start_loc[begin], last = batch.query_start_loc[end];
  Batch slice{.order = Slice(batch.order, begin, end),
              .seq_lens = Slice(batch.seq_lens, begin, end),
              .context_lens = Slice(batch.context_lens, begin, end),
              .query_start_loc = SliceSums(batch.query_start_loc, begin, end),
              .seq_start_loc = SliceSums(batch.seq_start_loc, begin, end),
              .slot_mapping = Slice(batch.slot_mapping, first, last),
              .positions = Slice(batch.positions, first, last),
              .block_tables = Slice(batch.block_tables, begin * batch.max_blocks,
                                    end * batch.max_blocks),
              .max_blocks = batch.max_blocks,
              .encoder_seq_lens = Slice(batch.encoder_seq_lens, begin, end),
              .encoder_seq_start_loc = SliceSums(batch.encoder_seq_start_loc, begin, end),
              .encoder_query_start_loc = SliceSums(batch.encoder_query_start_loc, begin, end),
              .cross_slot_mapping =
                  Slice(batch.cross_slot_mapping, batch.encoder_query_start_loc[begin],
                        batch.encoder_query_start_loc[end]),
              .cross_block_tables = Slice(batch.cross_block_tables, begin * batch.max_cross_blocks,
                                          end * batch.max_cross_blocks),
              .max_cross_blocks = batch.max_cross_blocks};
  for (int64_t row = begin; row < end; ++row) {
    slice.max_query_len = std::max(
        slice.max_query_len, batch.query_start_loc[row + 1] - batch.query_start_loc[row]);
  }
  for (const PlaceholderIndexMap& map : batch.multi_modal_placeholder_index_maps) {
    slice.multi_modal_placeholder_index_maps.push_back(
        SliceMap(map, begin, end, static_cast<int32_t>(first)));
  }
  slice.num_encoder_tokens = slice.encoder_seq_start_loc.back();
  slice.max_encoder_seq_len = Longest(slice.encoder_seq_lens);
  return slice;
}

absl::Status RequirePrefillsFirst(const Batch& batch) {
  return Require(batch.prefills_first, "prefills_first", batch.prefills_first,
                 "true: the rows of a kind lie beside each other");
}

absl::Status CheckAdvance(const AdvanceBatchArgs& args, const Batch& batch) {
  RETURN_IF_ERROR(Require(batch.num_prefills == 0 || args.turn_prefills_into_decodes,
                          "num_prefills", batch.num_prefills,
                          "0 without turn_prefills_into_decodes"));
  RETURN_IF_ERROR(Require(batch.num_unfinished_prefills == 0, "num_unfinished_prefills",
                          batch.num_unfinished_prefills,
                          "0: a chunk that does not end its prompt gives no token"));
  RETURN_IF_ERROR(Require(batch.max_decode_query_len <= 1, "max_decode_query_len",
                          batch.max_decode_query_len, "at most 1"));
  const int64_t keys = batch.seq_start_loc.back() + std::ssize(batch.order);
  return Require(keys <= INT32_MAX, "seq_start_loc[S]", batch.seq_start_loc.back(),
                 "such that all keys fit in 31 bits");
}

// Every row has one query, and what rows have of prefills is done.
void MakeDecodes(Batch& batch) {
  const int64_t rows = std::ssize(batch.order);
  batch.num_decode_tokens = static_cast<int32_t>(rows);
  batch.num_prefills = batch.num_prefill_tokens = batch.max_prefill_seq_len = 0;
  batch.prefills_first = true;
  batch.max_query_len = batch.max_decode_query_len = rows > 0 ? 1 : 0;
  batch.slot_mapping.resize(rows);
  batch.positions.resize(rows);
  std::iota(batch.query_start_loc.begin(), batch.query_start_loc.end(), 0);
  std::fill(batch.encoder_query_start_loc.begin(), batch.encoder_query_start_loc.end(), 0);
  batch.cross_slot_mapping.clear();
  for (PlaceholderIndexMap& map : batch.multi_modal_placeholder_index_maps) {
    const std::vector<int32_t> none(rows + 1);
    map = {.index_start_loc = none, .embedding_start_loc = none};
  }
}

}  // namespace

absl::StatusOr<Batch> PrefillMetadata(const Batch& batch) {
  RETURN_IF_ERROR(RequirePrefillsFirst(batch));
  Batch prefills = SliceRows(batch, 0, batch.num_prefills);
  prefills.num_prefills = batch.num_prefills;
  prefills.num_prefill_tokens = batch.num_prefill_tokens;
  prefills.max_prefill_seq_len = batch.max_prefill_seq_len;
  prefills.num_unfinished_prefills = batch.num_unfinished_prefills;
  return prefills;
}

absl::StatusOr<Batch> DecodeMetadata(const Batch& batch) {
  RETURN_IF_ERROR(RequirePrefillsFirst(batch));
  Batch decodes = SliceRows(batch, batch.num_prefills, std::ssize(batch.order));
  decodes.num_decode_tokens = batch.num_decode_tokens;
  decodes.max_decode_seq_len = batch.max_decode_seq_len;
  decodes.max_decode_query_len = batch.max_decode_query_len;
  return decodes;
}

absl::Status AdvanceBatch(OperatorLibrary& kernels, const AdvanceBatchArgs& args, Batch& batch) {
  RETURN_IF_ERROR(CheckAdvance(args, batch));
  const auto rows = static_cast<int32_t>(batch.order.size());
  const auto queries = static_cast<int32_t>(
      std::find(batch.order.begin(), batch.order.end(), -1) - batch.order.begin());
  RETURN_IF_ERROR(kernels.AdvanceStep({.num_seqs = rows,
                                       .num_queries = queries,
                                       .block_size = args.block_size,
                                       .sampled_tokens = args.sampled_tokens,
                                       .block_tables = batch.block_tables.data(),
                                       .max_blocks = batch.max_blocks,
                                       .tokens = args.tokens,
                                       .positions = batch.positions.data(),
                                       .seq_lens = batch.seq_lens.data(),
                                       .slot_mapping = batch.slot_mapping.data()}));
  MakeDecodes(batch);
  for (int32_t row = 0; row < rows; ++row) {
    batch.context_lens[row] = std::max(batch.seq_lens[row] - 1, 0);
    batch.seq_start_loc[row + 1] = batch.seq_start_loc[row] + batch.seq_lens[row];
  }
  batch.max_decode_seq_len = Longest(batch.seq_lens);
  return absl::OkStatus();
}

}  // namespace baton
