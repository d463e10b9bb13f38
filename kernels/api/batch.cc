#include "kernels/api/batch.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr int32_t kMaxBlockSize = 1 << 20;
constexpr int32_t kMaxPaddedSequences = 1 << 20;
constexpr int32_t kMaxModalities = 64;
// Of what a caller asks for by a number alone: 1 GiB.
constexpr int64_t kMaxTableEntries = int64_t{1} << 28;

absl::Status Require(bool ok, absl::string_view field, int64_t value, absl::string_view allowed) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ": must be ", allowed));
}

int32_t BlocksOf(int32_t tokens, int32_t block_size) {
  return tokens / block_size + (tokens % block_size > 0 ? 1 : 0);
}

absl::Status CheckQueryLen(const BuildBatchArgs& args, const BatchSequence& s,
                           const std::string& field) {
  const int32_t most = s.is_prefill ? INT32_MAX : args.max_decode_query_len;
  if (s.query_len >= 1 && s.query_len <= most) return absl::OkStatus();
  return Require(false, field + ".query_len", s.query_len,
                 s.is_prefill ? "at least 1"
                 : most == 1  ? "1 when decoding"
                              : absl::StrCat("in [1, ", most, "] when decoding"));
}

// The encoder's tokens lie in blocks.
absl::Status CheckEncoder(const BuildBatchArgs& args, const BatchSequence& s,
                          const std::string& field) {
  RETURN_IF_ERROR(Require(s.encoder_len >= 0, field + ".encoder_len", s.encoder_len, "at least 0"));
  RETURN_IF_ERROR(Require(!s.runs_encoder || s.is_prefill, field + ".runs_encoder", s.runs_encoder,
                          "false when decoding"));
  const int32_t needed = BlocksOf(s.encoder_len, args.block_size);
  RETURN_IF_ERROR(
      Require(s.num_cross_blocks >= needed, field + ".num_cross_blocks", s.num_cross_blocks,
              absl::StrCat("at least ", needed, " for ", s.encoder_len, " encoder tokens")));
  RETURN_IF_ERROR(Require(s.num_cross_blocks == 0 || s.cross_blocks != nullptr,
                          field + ".cross_blocks", 0, "an array"));
  for (int32_t b = 0; b < needed; ++b) {
    RETURN_IF_ERROR(Require(s.cross_blocks[b] >= 0, absl::StrCat(field, ".cross_blocks[", b, "]"),
                            s.cross_blocks[b], "a block: cross-attention reads it"));
  }
  return absl::OkStatus();
}

absl::Status CheckPlaceholders(const BatchSequence& s, int32_t num_modalities,
                               const std::string& field) {
  RETURN_IF_ERROR(Require(s.num_placeholders >= 0 && (s.is_prefill || s.num_placeholders == 0),
                          field + ".num_placeholders", s.num_placeholders,
                          s.is_prefill ? "at least 0" : "0 when decoding"));
  RETURN_IF_ERROR(Require(s.num_placeholders == 0 || s.placeholders != nullptr,
                          field + ".placeholders", 0, "an array"));
  int64_t end = 0;
  for (int32_t i = 0; i < s.num_placeholders; ++i) {
    const PlaceholderRange& range = s.placeholders[i];
    const std::string name = absl::StrCat(field, ".placeholders[", i, "]");
    RETURN_IF_ERROR(Require(range.offset >= end, name + ".offset", range.offset,
                            absl::StrCat("at least ", end, ", the end of the range before")));
    RETURN_IF_ERROR(Require(range.length >= 0 && range.length <= INT32_MAX - range.offset,
                            name + ".length", range.length, "such that its end fits in 31 bits"));
    RETURN_IF_ERROR(Require(range.modality >= 0 && range.modality < num_modalities,
                            name + ".modality", range.modality,
                            absl::StrCat("in [0, num_modalities = ", num_modalities, ")")));
    end = range.offset + range.length;
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const BuildBatchArgs& args, int32_t i) {
  const BatchSequence& s = args.sequences[i];
  const std::string field = absl::StrCat("sequences[", i, "]");
  RETURN_IF_ERROR(Require(s.context_len >= 0, field + ".context_len", s.context_len, "at least 0"));
  RETURN_IF_ERROR(CheckQueryLen(args, s, field));
  const int64_t tokens = int64_t{s.context_len} + s.query_len;
  const int64_t needed = (tokens + args.block_size - 1) / args.block_size;
  RETURN_IF_ERROR(Require(s.num_blocks >= needed, field + ".num_blocks", s.num_blocks,
                          absl::StrCat("at least ", needed, " for ", tokens, " tokens")));
  RETURN_IF_ERROR(Require(s.blocks != nullptr, field + ".blocks", 0, "an array"));
  for (int64_t b = s.context_len / args.block_size; b < needed; ++b) {
    RETURN_IF_ERROR(Require(s.blocks[b] >= 0, absl::StrCat(field, ".blocks[", b, "]"), s.blocks[b],
                            "a block: new tokens are written there"));
  }
  RETURN_IF_ERROR(CheckEncoder(args, s, field));
  return CheckPlaceholders(s, args.num_modalities, field);
}

// Of the table: all of a sequence's blocks when its width is given, else those that hold tokens.
int32_t ColumnsOf(const BuildBatchArgs& args, const BatchSequence& s) {
  if (args.table_columns > 0) return s.num_blocks;
  return BlocksOf(s.context_len + s.query_len, args.block_size);
}

int32_t CrossColumnsOf(const BuildBatchArgs& args, const BatchSequence& s) {
  if (args.cross_table_columns > 0) return s.num_cross_blocks;
  return BlocksOf(s.encoder_len, args.block_size);
}

// One of the two tables of a batch.
struct Table {
  int32_t columns;  // Of the graph, or 0.
  const char* columns_name;
  int32_t BatchSequence::*num_blocks;
  const char* num_blocks_name;
  int32_t (*columns_of)(const BuildBatchArgs& args, const BatchSequence& s);
  const char* length_name;
};

// The table is as wide as its widest row.
absl::Status CheckTable(const BuildBatchArgs& args, const Table& table) {
  RETURN_IF_ERROR(Require(table.columns >= 0, table.columns_name, table.columns, "0 or more"));
  int64_t columns = table.columns;
  int32_t widest = -1;
  for (int32_t i = 0; i < args.num_sequences; ++i) {
    const BatchSequence& s = args.sequences[i];
    if (table.columns > 0 && s.*table.num_blocks > table.columns) {
      return Require(false, table.columns_name, table.columns,
                     absl::StrCat("0 or at least sequences[", i, "].", table.num_blocks_name,
                                  " = ", s.*table.num_blocks));
    }
    if (table.columns_of(args, s) <= columns) continue;
    columns = table.columns_of(args, s);
    widest = i;
  }
  const int64_t rows = std::max(args.padded_sequences, args.num_sequences);
  if (columns == 0 || rows <= kMaxTableEntries / columns) return absl::OkStatus();
  const std::string allowed = absl::StrCat("such that ", rows, " rows of ", columns,
                                           " columns have at most ", kMaxTableEntries, " entries");
  if (widest < 0) return Require(false, table.columns_name, table.columns, allowed);
  return Require(false, absl::StrCat("sequences[", widest, "].", table.length_name),
                 table.columns_of == ColumnsOf ? args.sequences[widest].context_len
                                               : args.sequences[widest].encoder_len,
                 allowed);
}

absl::Status CheckTables(const BuildBatchArgs& args) {
  RETURN_IF_ERROR(CheckTable(args, {args.table_columns, "table_columns",
                                    &BatchSequence::num_blocks, "num_blocks", ColumnsOf,
                                    "context_len"}));
  return CheckTable(args, {args.cross_table_columns, "cross_table_columns",
                           &BatchSequence::num_cross_blocks, "num_cross_blocks", CrossColumnsOf,
                           "encoder_len"});
}

absl::Status CheckGraph(const BuildBatchArgs& args) {
  if (args.padded_sequences == 0) return absl::OkStatus();
  RETURN_IF_ERROR(Require(
      args.padded_sequences >= args.num_sequences && args.padded_sequences <= kMaxPaddedSequences,
      "padded_sequences", args.padded_sequences,
      absl::StrCat("0 or in [num_sequences, ", kMaxPaddedSequences, "]")));
  const bool prefills = std::any_of(args.sequences, args.sequences + args.num_sequences,
                                    [](const BatchSequence& s) { return s.is_prefill; });
  return Require(!prefills, "padded_sequences", args.padded_sequences,
                 "0 with prefills in the batch");
}

absl::Status Check(const BuildBatchArgs& args) {
  RETURN_IF_ERROR(
      Require(args.num_sequences >= 0, "num_sequences", args.num_sequences, "at least 0"));
  RETURN_IF_ERROR(Require(args.block_size >= 1 && args.block_size <= kMaxBlockSize, "block_size",
                          args.block_size, absl::StrCat("in [1, ", kMaxBlockSize, "]")));
  RETURN_IF_ERROR(
      Require(args.num_sequences == 0 || args.sequences != nullptr, "sequences", 0, "an array"));
  RETURN_IF_ERROR(Require(args.max_decode_query_len >= 1, "max_decode_query_len",
                          args.max_decode_query_len, "at least 1"));
  RETURN_IF_ERROR(Require(args.num_modalities >= 0 && args.num_modalities <= kMaxModalities,
                          "num_modalities", args.num_modalities,
                          absl::StrCat("in [0, ", kMaxModalities, "]")));
  int64_t keys = 0, encoder_tokens = 0, embeddings = 0;
  for (int32_t i = 0; i < args.num_sequences; ++i) {
    RETURN_IF_ERROR(CheckSequence(args, i));
    keys += args.sequences[i].context_len + int64_t{args.sequences[i].query_len};
    RETURN_IF_ERROR(Require(keys <= INT32_MAX, absl::StrCat("sequences[", i, "].context_len"),
                            args.sequences[i].context_len, "such that all keys fit in 31 bits"));
    encoder_tokens += args.sequences[i].encoder_len;
    RETURN_IF_ERROR(Require(encoder_tokens <= INT32_MAX,
                            absl::StrCat("sequences[", i, "].encoder_len"),
                            args.sequences[i].encoder_len,
                            "such that all tokens of encoders fit in 31 bits"));
    for (int32_t p = 0; p < args.sequences[i].num_placeholders; ++p) {
      embeddings += args.sequences[i].placeholders[p].length;
    }
    RETURN_IF_ERROR(Require(embeddings <= INT32_MAX,
                            absl::StrCat("sequences[", i, "].num_placeholders"),
                            args.sequences[i].num_placeholders,
                            "such that all embeddings fit in 31 bits"));
  }
  RETURN_IF_ERROR(CheckGraph(args));
  return CheckTables(args);
}

void AddEncoder(const BatchSequence& s, int32_t block_size, Batch& batch) {
  batch.encoder_seq_lens.push_back(s.encoder_len);
  batch.encoder_seq_start_loc.push_back(batch.encoder_seq_start_loc.back() + s.encoder_len);
  batch.num_encoder_tokens += s.encoder_len;
  batch.max_encoder_seq_len = std::max(batch.max_encoder_seq_len, s.encoder_len);
  for (int32_t p = 0; s.runs_encoder && p < s.encoder_len; ++p) {
    batch.cross_slot_mapping.push_back(int64_t{s.cross_blocks[p / block_size]} * block_size +
                                       p % block_size);
  }
  batch.encoder_query_start_loc.push_back(static_cast<int32_t>(batch.cross_slot_mapping.size()));
}

// Of the ranges that hold a new token of the sequence, whose tokens begin at `first` of the batch.
void AddPlaceholders(const BatchSequence& s, int32_t first, Batch& batch) {
  const int32_t seq_len = s.context_len + s.query_len;
  for (PlaceholderIndexMap& map : batch.multi_modal_placeholder_index_maps) {
    map.index_start_loc.push_back(map.index_start_loc.back());
    map.embedding_start_loc.push_back(map.embedding_start_loc.back());
  }
  for (int32_t i = 0; i < s.num_placeholders; ++i) {
    const PlaceholderRange& range = s.placeholders[i];
    const int32_t begin = std::max(range.offset, s.context_len);
    const int32_t end = std::min(range.offset + range.length, seq_len);
    if (begin >= end) continue;
    PlaceholderIndexMap& map = batch.multi_modal_placeholder_index_maps[range.modality];
    for (int32_t p = begin; p < end; ++p) {
      map.src.push_back(map.num_embeddings() + p - range.offset);
      map.dest.push_back(first + p - s.context_len);
    }
    map.index_start_loc.back() += end - begin;
    map.embedding_start_loc.back() += range.length;
  }
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
  batch.max_decode_query_len = std::max(batch.max_decode_query_len, 1);
  AddEncoder({}, 1, batch);
  AddPlaceholders({}, 0, batch);
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
  AddEncoder(s, block_size, batch);
  AddPlaceholders(s, batch.query_start_loc[batch.query_start_loc.size() - 2], batch);
  if (s.is_prefill) {
    batch.prefills_first &= batch.num_decode_tokens == 0;
    batch.num_unfinished_prefills += !s.is_last_chunk;
    batch.num_prefills += 1;
    batch.num_prefill_tokens += s.query_len;
    batch.max_prefill_seq_len = std::max(batch.max_prefill_seq_len, seq_len);
  } else {
    batch.num_decode_tokens += s.query_len;
    batch.max_decode_seq_len = std::max(batch.max_decode_seq_len, seq_len);
    batch.max_decode_query_len = std::max(batch.max_decode_query_len, s.query_len);
  }
}

// Rows of `columns` blocks, and -1 behind those that a sequence has.
template <typename ColumnsOf>
std::vector<int32_t> MakeTable(const BuildBatchArgs& args, const Batch& batch,
                               const int32_t* BatchSequence::*blocks, const ColumnsOf& columns_of,
                               int32_t& columns) {
  for (int32_t i = 0; i < args.num_sequences; ++i) {
    columns = std::max(columns, columns_of(args, args.sequences[i]));
  }
  std::vector<int32_t> table(batch.order.size() * columns, -1);
  for (size_t row = 0; row < batch.order.size(); ++row) {
    if (batch.order[row] < 0) continue;
    const BatchSequence& s = args.sequences[batch.order[row]];
    std::copy_n(s.*blocks, columns_of(args, s), table.begin() + row * columns);
  }
  return table;
}

}  // namespace

absl::StatusOr<Batch> BuildBatch(const BuildBatchArgs& args) {
  RETURN_IF_ERROR(Check(args));
  Batch batch;
  batch.query_start_loc.push_back(0);
  batch.seq_start_loc.push_back(0);
  batch.encoder_seq_start_loc.push_back(0);
  batch.encoder_query_start_loc.push_back(0);
  batch.multi_modal_placeholder_index_maps.resize(args.num_modalities);
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
  batch.block_tables =
      MakeTable(args, batch, &BatchSequence::blocks, ColumnsOf, batch.max_blocks);
  batch.max_cross_blocks = args.cross_table_columns;
  batch.cross_block_tables =
      MakeTable(args, batch, &BatchSequence::cross_blocks, CrossColumnsOf, batch.max_cross_blocks);
  return batch;
}

}  // namespace baton
