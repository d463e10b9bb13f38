#include "kernels/api/batch.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr int32_t kMaxBlockSize = 1 << 20;
constexpr int32_t kMaxPaddedSequences = 1 << 20;
// Of what a caller asks for by a number alone: 1 GiB.
constexpr int64_t kMaxTableEntries = int64_t{1} << 28;

absl::Status Require(bool ok, absl::string_view field, int64_t value, absl::string_view allowed) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ": must be ", allowed));
}

int32_t BlocksOf(int32_t tokens, int32_t block_size) {
  return tokens / block_size + (tokens % block_size > 0 ? 1 : 0);
}

absl::Status CheckSequence(const BuildBatchArgs& args, int32_t i) {
  const BatchSequence& s = args.sequences[i];
  const std::string field = absl::StrCat("sequences[", i, "]");
  RETURN_IF_ERROR(Require(s.context_len >= 0, field + ".context_len", s.context_len, "at least 0"));
  RETURN_IF_ERROR(Require(s.query_len >= 1 && (s.is_prefill || s.query_len == 1),
                          field + ".query_len", s.query_len,
                          s.is_prefill ? "at least 1" : "1 when decoding"));
  const int64_t tokens = int64_t{s.context_len} + s.query_len;
  const int64_t needed = (tokens + args.block_size - 1) / args.block_size;
  RETURN_IF_ERROR(Require(s.num_blocks >= needed, field + ".num_blocks", s.num_blocks,
                          absl::StrCat("at least ", needed, " for ", tokens, " tokens")));
  RETURN_IF_ERROR(Require(s.blocks != nullptr, field + ".blocks", 0, "an array"));
  for (int64_t b = s.context_len / args.block_size; b < needed; ++b) {
    RETURN_IF_ERROR(Require(s.blocks[b] >= 0, absl::StrCat(field, ".blocks[", b, "]"), s.blocks[b],
                            "a block: new tokens are written there"));
  }
  return absl::OkStatus();
}

// Of the table: all of a sequence's blocks when its width is given, else those that hold tokens.
int32_t ColumnsOf(const BuildBatchArgs& args, const BatchSequence& s) {
  if (args.table_columns > 0) return s.num_blocks;
  return BlocksOf(s.context_len + s.query_len, args.block_size);
}

absl::Status CheckGraph(const BuildBatchArgs& args) {
  RETURN_IF_ERROR(
      Require(args.table_columns >= 0, "table_columns", args.table_columns, "0 or more"));
  int64_t prefills = 0;
  for (int32_t i = 0; i < args.num_sequences; ++i) {
    prefills += args.sequences[i].is_prefill;
    if (args.table_columns == 0 || args.sequences[i].num_blocks <= args.table_columns) continue;
    return Require(false, "table_columns", args.table_columns,
                   absl::StrCat("0 or at least sequences[", i,
                                "].num_blocks = ", args.sequences[i].num_blocks));
  }
  if (args.padded_sequences == 0) return absl::OkStatus();
  RETURN_IF_ERROR(Require(
      args.padded_sequences >= args.num_sequences && args.padded_sequences <= kMaxPaddedSequences,
      "padded_sequences", args.padded_sequences,
      absl::StrCat("0 or in [num_sequences, ", kMaxPaddedSequences, "]")));
  return Require(prefills == 0, "padded_sequences", args.padded_sequences,
                 "0 with prefills in the batch");
}

// The table is as wide as its widest row.
absl::Status CheckTable(const BuildBatchArgs& args) {
  int64_t columns = args.table_columns;
  int32_t widest = -1;
  for (int32_t i = 0; i < args.num_sequences; ++i) {
    if (ColumnsOf(args, args.sequences[i]) <= columns) continue;
    columns = ColumnsOf(args, args.sequences[i]);
    widest = i;
  }
  const int64_t rows = std::max(args.padded_sequences, args.num_sequences);
  if (columns == 0 || rows <= kMaxTableEntries / columns) return absl::OkStatus();
  const std::string allowed = absl::StrCat("such that ", rows, " rows of ", columns,
                                           " columns have at most ", kMaxTableEntries, " entries");
  if (widest < 0) return Require(false, "table_columns", args.table_columns, allowed);
  return Require(false, absl::StrCat("sequences[", widest, "].context_len"),
                 args.sequences[widest].context_len, allowed);
}

absl::Status Check(const BuildBatchArgs& args) {
  RETURN_IF_ERROR(
      Require(args.num_sequences >= 0, "num_sequences", args.num_sequences, "at least 0"));
  RETURN_IF_ERROR(Require(args.block_size >= 1 && args.block_size <= kMaxBlockSize, "block_size",
                          args.block_size, absl::StrCat("in [1, ", kMaxBlockSize, "]")));
  RETURN_IF_ERROR(
      Require(args.num_sequences == 0 || args.sequences != nullptr, "sequences", 0, "an array"));
  int64_t keys = 0;
  for (int32_t i = 0; i < args.num_sequences; ++i) {
    RETURN_IF_ERROR(CheckSequence(args, i));
    keys += args.sequences[i].context_len + int64_t{args.sequences[i].query_len};
    RETURN_IF_ERROR(Require(keys <= INT32_MAX, absl::StrCat("sequences[", i, "].context_len"),
                            args.sequences[i].context_len, "such that all keys fit in 31 bits"));
  }
  RETURN_IF_ERROR(CheckGraph(args));
  return CheckTable(args);
}

// One token that is written nowhere and sees nothing.
void AddPadding(Batch& batch) {
  batch.order.push_back(-1);
  batch.seq_lens.push_back(0);
  batch.context_lens.push_back(0);
  batch.slot_mapping.push_back(-1);
  batch.positions.push_back(0);
  batch.query_start_loc.push_back(batch.query_start_loc.back() + 1);
  batch.seq_start_loc.push_back(batch.seq_start_loc.back());
  batch.num_decode_tokens += 1;
  batch.max_query_len = std::max(batch.max_query_len, 1);
}

void AddSequence(const BatchSequence& s, int32_t index, int32_t block_size, Batch& batch) {
  const int32_t seq_len = s.context_len + s.query_len;
  batch.order.push_back(index);
  batch.seq_lens.push_back(seq_len);
  batch.context_lens.push_back(s.context_len);
  batch.query_start_loc.push_back(batch.query_start_loc.back() + s.query_len);
  batch.seq_start_loc.push_back(batch.seq_start_loc.back() + seq_len);
  for (int32_t p = s.context_len; p < seq_len; ++p) {
    batch.positions.push_back(p);
    batch.slot_mapping.push_back(int64_t{s.blocks[p / block_size]} * block_size + p % block_size);
  }
  batch.max_query_len = std::max(batch.max_query_len, s.query_len);
  if (s.is_prefill) {
    batch.num_prefills += 1;
    batch.num_prefill_tokens += s.query_len;
    batch.max_prefill_seq_len = std::max(batch.max_prefill_seq_len, seq_len);
  } else {
    batch.num_decode_tokens += 1;
    batch.max_decode_seq_len = std::max(batch.max_decode_seq_len, seq_len);
  }
}

}  // namespace

absl::StatusOr<Batch> BuildBatch(const BuildBatchArgs& args) {
  RETURN_IF_ERROR(Check(args));
  Batch batch;
  batch.query_start_loc.push_back(0);
  batch.seq_start_loc.push_back(0);
  const auto add = [&](const auto& wanted) {
    for (int32_t i = 0; i < args.num_sequences; ++i) {
      if (wanted(args.sequences[i])) AddSequence(args.sequences[i], i, args.block_size, batch);
    }
  };
  if (args.prefills_first) {
    add([](const BatchSequence& s) { return s.is_prefill; });
    add([](const BatchSequence& s) { return !s.is_prefill; });
  } else {
    add([](const BatchSequence&) { return true; });
  }
  for (int32_t i = args.num_sequences; i < args.padded_sequences; ++i) AddPadding(batch);
  batch.max_blocks = args.table_columns;
  for (int32_t i = 0; i < args.num_sequences; ++i) {
    batch.max_blocks = std::max(batch.max_blocks, ColumnsOf(args, args.sequences[i]));
  }
  batch.block_tables.assign(batch.order.size() * batch.max_blocks, -1);
  for (size_t row = 0; row < batch.order.size(); ++row) {
    if (batch.order[row] < 0) continue;
    const BatchSequence& s = args.sequences[batch.order[row]];
    std::copy_n(s.blocks, ColumnsOf(args, s), batch.block_tables.begin() + row * batch.max_blocks);
  }
  return batch;
}

}  // namespace baton
