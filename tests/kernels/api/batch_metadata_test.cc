#include "kernels/api/batch_metadata.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

using Ints = std::vector<int32_t>;
using Slots = std::vector<int64_t>;

// Two prompts and two decodes of a model with an encoder, blocks of 4. The first prompt's encoder
// runs in this step, the second's has run with the chunk before.
struct MixedBatch {
  Ints a = {5, 9}, b = {7, 1, 3}, c = {2, 6}, d = {4};
  Ints cross_a = {20, 21}, cross_b = {22}, cross_c = {23, 24}, cross_d = {25};
  std::vector<BatchSequence> sequences = {
      {.is_prefill = false, .context_len = 4, .query_len = 1, .blocks = c.data(), .num_blocks = 2,
       .encoder_len = 6, .cross_blocks = cross_c.data(), .num_cross_blocks = 2},
      {.is_prefill = true, .context_len = 0, .query_len = 3, .blocks = a.data(), .num_blocks = 2,
       .encoder_len = 5, .cross_blocks = cross_a.data(), .num_cross_blocks = 2,
       .runs_encoder = true},
      {.is_prefill = false, .context_len = 1, .query_len = 1, .blocks = d.data(), .num_blocks = 1},
      {.is_prefill = true, .context_len = 6, .query_len = 2, .blocks = b.data(), .num_blocks = 3,
       .encoder_len = 4, .cross_blocks = cross_b.data(), .num_cross_blocks = 1}};
  BuildBatchArgs args{.sequences = sequences.data(), .num_sequences = 4, .block_size = 4,
                      .table_columns = 3};
};

TEST(BatchMetadataTest, AnEncodersTokensAreWrittenWhenItRunsAndReadInEveryStep) {
  MixedBatch mixed;
  const auto batch = BuildBatch(mixed.args);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->order, (Ints{1, 3, 0, 2}));
  EXPECT_EQ(batch->encoder_seq_lens, (Ints{5, 4, 6, 0}));
  EXPECT_EQ(batch->encoder_seq_start_loc, (Ints{0, 5, 9, 15, 15}));
  EXPECT_EQ(batch->encoder_query_start_loc, (Ints{0, 5, 5, 5, 5}));
  EXPECT_EQ(batch->num_encoder_tokens, 15);
  EXPECT_EQ(batch->max_encoder_seq_len, 6);
  EXPECT_EQ(batch->cross_slot_mapping, (Slots{80, 81, 82, 83, 84}));
  EXPECT_EQ(batch->max_cross_blocks, 2);
  EXPECT_EQ(batch->cross_block_tables, (Ints{20, 21, 22, -1, 23, 24, -1, -1}));
  EXPECT_EQ(batch->slot_mapping, (Slots{20, 21, 22, 6, 7, 24, 17}));
  EXPECT_EQ(batch->max_decode_query_len, 1);
}

TEST(BatchMetadataTest, PrefillsAndDecodesAloneBeginAtZero) {
  MixedBatch mixed;
  const Batch batch = *BuildBatch(mixed.args);
  const Batch prefills = *PrefillMetadata(batch);
  EXPECT_EQ(prefills.order, (Ints{1, 3}));
  EXPECT_EQ(prefills.num_prefills, 2);
  EXPECT_EQ(prefills.num_prefill_tokens, 5);
  EXPECT_EQ(prefills.num_decode_tokens, 0);
  EXPECT_EQ(prefills.seq_lens, (Ints{3, 8}));
  EXPECT_EQ(prefills.context_lens, (Ints{0, 6}));
  EXPECT_EQ(prefills.query_start_loc, (Ints{0, 3, 5}));
  EXPECT_EQ(prefills.seq_start_loc, (Ints{0, 3, 11}));
  EXPECT_EQ(prefills.slot_mapping, (Slots{20, 21, 22, 6, 7}));
  EXPECT_EQ(prefills.positions, (Ints{0, 1, 2, 6, 7}));
  EXPECT_EQ(prefills.block_tables, (Ints{5, 9, -1, 7, 1, 3}));
  EXPECT_EQ(prefills.max_query_len, 3);
  EXPECT_EQ(prefills.max_prefill_seq_len, 8);
  EXPECT_EQ(prefills.max_decode_seq_len, 0);
  EXPECT_EQ(prefills.max_decode_query_len, 0);
  EXPECT_EQ(prefills.encoder_seq_lens, (Ints{5, 4}));
  EXPECT_EQ(prefills.encoder_seq_start_loc, (Ints{0, 5, 9}));
  EXPECT_EQ(prefills.max_encoder_seq_len, 5);
  EXPECT_EQ(prefills.cross_slot_mapping, (Slots{80, 81, 82, 83, 84}));
  EXPECT_EQ(prefills.cross_block_tables, (Ints{20, 21, 22, -1}));

  const Batch decodes = *DecodeMetadata(batch);
  EXPECT_EQ(decodes.order, (Ints{0, 2}));
  EXPECT_EQ(decodes.num_prefills, 0);
  EXPECT_EQ(decodes.num_prefill_tokens, 0);
  EXPECT_EQ(decodes.num_decode_tokens, 2);
  EXPECT_EQ(decodes.seq_lens, (Ints{5, 2}));
  EXPECT_EQ(decodes.context_lens, (Ints{4, 1}));
  EXPECT_EQ(decodes.query_start_loc, (Ints{0, 1, 2}));
  EXPECT_EQ(decodes.seq_start_loc, (Ints{0, 5, 7}));
  EXPECT_EQ(decodes.slot_mapping, (Slots{24, 17}));
  EXPECT_EQ(decodes.positions, (Ints{4, 1}));
  EXPECT_EQ(decodes.block_tables, (Ints{2, 6, -1, 4, -1, -1}));
  EXPECT_EQ(decodes.max_query_len, 1);
  EXPECT_EQ(decodes.max_prefill_seq_len, 0);
  EXPECT_EQ(decodes.max_decode_seq_len, 5);
  EXPECT_EQ(decodes.max_decode_query_len, 1);
  EXPECT_EQ(decodes.encoder_seq_lens, (Ints{6, 0}));
  EXPECT_EQ(decodes.encoder_seq_start_loc, (Ints{0, 6, 6}));
  EXPECT_EQ(decodes.num_encoder_tokens, 6);
  EXPECT_TRUE(decodes.cross_slot_mapping.empty());
  EXPECT_EQ(decodes.cross_block_tables, (Ints{23, 24, -1, -1}));
}

TEST(BatchMetadataTest, OfABatchWithoutPrefillsOrDecodesTheOtherHalfIsEmpty) {
  MixedBatch mixed;
  mixed.args.sequences = &mixed.sequences[1];
  mixed.args.num_sequences = 1;
  const Batch batch = *BuildBatch(mixed.args);
  const Batch none = *DecodeMetadata(batch);
  EXPECT_TRUE(none.order.empty() && none.slot_mapping.empty() && none.block_tables.empty());
  EXPECT_EQ(none.query_start_loc, Ints{0});
  EXPECT_EQ(none.encoder_seq_start_loc, Ints{0});
  EXPECT_EQ(none.max_query_len, 0);
  EXPECT_EQ(PrefillMetadata(batch)->slot_mapping, batch.slot_mapping);
}

TEST(BatchMetadataTest, RowsInAnotherOrderHaveNoHalves) {
  MixedBatch mixed;
  mixed.args.prefills_first = false;
  const Batch batch = *BuildBatch(mixed.args);
  EXPECT_EQ(PrefillMetadata(batch).status().message(),
            "prefills_first = 0: must be true: the rows of a kind lie beside each other");
  EXPECT_EQ(DecodeMetadata(batch).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(BatchMetadataTest, AGraphsPaddingReachesOverCrossAttention) {
  MixedBatch mixed;
  const BatchSequence decodes[] = {mixed.sequences[0], mixed.sequences[2]};
  const auto batch = BuildBatch({.sequences = decodes,
                                 .num_sequences = 2,
                                 .block_size = 4,
                                 .padded_sequences = 4,
                                 .table_columns = 3,
                                 .cross_table_columns = 5});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->encoder_seq_lens, (Ints{6, 0, 0, 0}));
  EXPECT_EQ(batch->encoder_seq_start_loc, (Ints{0, 6, 6, 6, 6}));
  EXPECT_EQ(batch->max_cross_blocks, 5);
  EXPECT_EQ(batch->cross_block_tables,
            (Ints{23, 24, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(batch->max_decode_query_len, 1);
  EXPECT_EQ(DecodeMetadata(*batch)->seq_lens, (Ints{5, 2, 0, 0}));
}

// Ranges of a prompt of 12 tokens, of which this chunk has [4, 9), behind a decode's row.
TEST(BatchMetadataTest, EmbeddingsGoToTheTokensOfTheirRanges) {
  const Ints blocks = {0, 1, 2};
  const PlaceholderRange ranges[] = {{0, 3}, {3, 3}, {7, 1}, {8, 4}};
  const PlaceholderRange other[] = {{1, 2}};
  const BatchSequence sequences[] = {
      {.is_prefill = false, .query_len = 1, .blocks = blocks.data(), .num_blocks = 1},
      {.is_prefill = true, .context_len = 4, .query_len = 5, .blocks = blocks.data(),
       .num_blocks = 3, .placeholders = ranges, .num_placeholders = 4},
      {.is_prefill = true, .query_len = 3, .blocks = blocks.data(), .num_blocks = 1,
       .placeholders = other, .num_placeholders = 1}};
  const BuildBatchArgs args{
      .sequences = sequences, .num_sequences = 3, .block_size = 4, .prefills_first = false};
  const auto batch = BuildBatch(args);
  ASSERT_TRUE(batch.ok()) << batch.status();
  // The first range lies before the chunk. Of the second embeddings 1 and 2 are left, for tokens 4
  // and 5 of the prompt; the third is embedding 3, the fourth begins with 4; the other prompt's
  // follow its four.
  const PlaceholderIndexMap& map = batch->multi_modal_placeholder_index_maps.at(0);
  EXPECT_EQ(map.src, (Ints{1, 2, 3, 4, 8, 9}));
  EXPECT_EQ(map.dest, (Ints{1, 2, 4, 5, 7, 8}));
  EXPECT_EQ(map.index_start_loc, (Ints{0, 0, 4, 6}));
  EXPECT_EQ(map.embedding_start_loc, (Ints{0, 0, 3 + 1 + 4, 3 + 1 + 4 + 2}));
  EXPECT_EQ(map.num_embeddings(), 10);
  BuildBatchArgs first = args;
  first.prefills_first = true;
  const Batch halves = *BuildBatch(first);
  EXPECT_EQ(PrefillMetadata(halves)->multi_modal_placeholder_index_maps[0].dest,
            (Ints{0, 1, 3, 4, 6, 7}));
  const Batch decodes = *DecodeMetadata(halves);
  const PlaceholderIndexMap& none = decodes.multi_modal_placeholder_index_maps.at(0);
  EXPECT_TRUE(none.src.empty() && none.dest.empty());
  EXPECT_EQ(none.index_start_loc, (Ints{0, 0}));
  EXPECT_EQ(none.num_embeddings(), 0);
}

// The examples of vLLM's MultiModalPlaceholderMap.from_seq_group: "AAAA BBBB What's in these
// images?" of 33 tokens, of which a step computes some.
TEST(BatchMetadataTest, ChunksOfAPromptTakeTheirPartsOfItsImages) {
  const Ints blocks(9, 7);
  const PlaceholderRange images[] = {{0, 4}, {5, 4}};
  const auto map_of = [&](int32_t begin, int32_t end) {
    const BatchSequence prompt{.is_prefill = true,
                               .context_len = begin,
                               .query_len = end - begin,
                               .blocks = blocks.data(),
                               .num_blocks = 9,
                               .placeholders = images,
                               .num_placeholders = 2};
    return BuildBatch({.sequences = &prompt, .num_sequences = 1, .block_size = 4})
        ->multi_modal_placeholder_index_maps.at(0);
  };
  const PlaceholderIndexMap all = map_of(0, 33);
  EXPECT_EQ(all.src, (Ints{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(all.dest, (Ints{0, 1, 2, 3, 5, 6, 7, 8}));
  const PlaceholderIndexMap cut = map_of(2, 7);
  EXPECT_EQ(cut.src, (Ints{2, 3, 4, 5}));
  EXPECT_EQ(cut.dest, (Ints{0, 1, 3, 4}));
  EXPECT_EQ(cut.num_embeddings(), 8);
  const PlaceholderIndexMap second = map_of(5, 14);
  EXPECT_EQ(second.src, (Ints{0, 1, 2, 3}));
  EXPECT_EQ(second.dest, (Ints{0, 1, 2, 3}));
  EXPECT_EQ(second.num_embeddings(), 4);
  const PlaceholderIndexMap none = map_of(10, 33);
  EXPECT_TRUE(none.src.empty() && none.dest.empty());
  EXPECT_EQ(none.num_embeddings(), 0);
}

// Images are modality 0 and sounds 2; nobody has any of 1. The first prompt is tokens [2, 8) of
// I I I S S I I I I, so that its chunk cuts an image at either end; the second S S x I.
TEST(BatchMetadataTest, EachModalityHasAMapOfItsOwn) {
  const Ints blocks = {0, 1, 2};
  const PlaceholderRange mixed[] = {{0, 3, 0}, {3, 2, 2}, {5, 4, 0}};
  const PlaceholderRange other[] = {{0, 2, 2}, {3, 1, 0}};
  const BatchSequence sequences[] = {
      {.is_prefill = true,
       .context_len = 2,
       .query_len = 6,
       .blocks = blocks.data(),
       .num_blocks = 3,
       .placeholders = mixed,
       .num_placeholders = 3},
      {.is_prefill = true,
       .query_len = 4,
       .blocks = blocks.data(),
       .num_blocks = 1,
       .placeholders = other,
       .num_placeholders = 2},
      {.is_prefill = false, .query_len = 1, .blocks = blocks.data(), .num_blocks = 1}};
  const BuildBatchArgs args{
      .sequences = sequences, .num_sequences = 3, .block_size = 4, .num_modalities = 3};
  Batch batch = *BuildBatch(args);
  ASSERT_EQ(batch.multi_modal_placeholder_index_maps.size(), 3u);
  const PlaceholderIndexMap& images = batch.multi_modal_placeholder_index_maps[0];
  EXPECT_EQ(images.src, (Ints{2, 3, 4, 5, 7}));
  EXPECT_EQ(images.dest, (Ints{0, 3, 4, 5, 9}));
  EXPECT_EQ(images.index_start_loc, (Ints{0, 4, 5, 5}));
  EXPECT_EQ(images.embedding_start_loc, (Ints{0, 7, 8, 8}));
  const PlaceholderIndexMap& sounds = batch.multi_modal_placeholder_index_maps[2];
  EXPECT_EQ(sounds.src, (Ints{0, 1, 2, 3}));
  EXPECT_EQ(sounds.dest, (Ints{1, 2, 6, 7}));
  EXPECT_EQ(sounds.index_start_loc, (Ints{0, 2, 4, 4}));
  EXPECT_EQ(sounds.embedding_start_loc, (Ints{0, 2, 4, 4}));
  EXPECT_EQ(batch.multi_modal_placeholder_index_maps[1].index_start_loc, Ints(4));
  EXPECT_EQ(batch.multi_modal_placeholder_index_maps[1].num_embeddings(), 0);

  // Nothing of a map is left when its prompts have become decodes.
  auto kernels = MakeTestKernels("auto");
  Ints tokens(3);
  ASSERT_TRUE(AdvanceBatch(*kernels,
                           {.block_size = 8,  // With room in the last block.
                            .sampled_tokens = tokens.data(),
                            .tokens = tokens.data(),
                            .turn_prefills_into_decodes = true},
                           batch)
                  .ok());
  for (const PlaceholderIndexMap& map : batch.multi_modal_placeholder_index_maps) {
    EXPECT_TRUE(map.src.empty() && map.dest.empty());
    EXPECT_EQ(map.index_start_loc, Ints(4));
    EXPECT_EQ(map.embedding_start_loc, Ints(4));
  }
}

TEST(BatchMetadataTest, SpeculatedTokensAreQueriesOfADecode) {
  const Ints blocks = {3, 5};
  const BatchSequence sequences[] = {
      {.context_len = 2, .query_len = 4, .blocks = blocks.data(), .num_blocks = 2},
      {.context_len = 3, .query_len = 1, .blocks = blocks.data(), .num_blocks = 1}};
  const BuildBatchArgs args{
      .sequences = sequences, .num_sequences = 2, .block_size = 4, .max_decode_query_len = 4};
  const auto batch = BuildBatch(args);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->max_decode_query_len, 4);
  EXPECT_EQ(batch->num_decode_tokens, 5);
  EXPECT_EQ(batch->slot_mapping, (Slots{14, 15, 20, 21, 15}));
  BuildBatchArgs fewer = args;
  fewer.max_decode_query_len = 3;
  EXPECT_EQ(BuildBatch(fewer).status().message(),
            "sequences[0].query_len = 4: must be in [1, 3] when decoding");
  fewer.max_decode_query_len = 0;
  EXPECT_EQ(BuildBatch(fewer).status().message(),
            "max_decode_query_len = 0: must be at least 1");
}

TEST(BatchMetadataTest, FinishedPrefillsTurnIntoDecodes) {
  auto kernels = MakeTestKernels("auto");
  MixedBatch mixed;
  Batch batch = *BuildBatch(mixed.args);
  Ints tokens = {101, 102, 103, 104};
  const AdvanceBatchArgs args{.block_size = 4,
                              .sampled_tokens = tokens.data(),
                              .tokens = tokens.data(),
                              .turn_prefills_into_decodes = true};
  ASSERT_TRUE(AdvanceBatch(*kernels, args, batch).ok());
  EXPECT_EQ(batch.num_prefills, 0);
  EXPECT_EQ(batch.num_prefill_tokens, 0);
  EXPECT_EQ(batch.num_decode_tokens, 4);
  EXPECT_EQ(batch.seq_lens, (Ints{4, 9, 6, 3}));
  EXPECT_EQ(batch.context_lens, (Ints{3, 8, 5, 2}));
  EXPECT_EQ(batch.positions, (Ints{3, 8, 5, 2}));
  EXPECT_EQ(batch.slot_mapping, (Slots{5 * 4 + 3, 3 * 4 + 0, 6 * 4 + 1, 4 * 4 + 2}));
  EXPECT_EQ(batch.query_start_loc, (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(batch.seq_start_loc, (Ints{0, 4, 13, 19, 22}));
  EXPECT_EQ(batch.max_query_len, 1);
  EXPECT_EQ(batch.max_decode_query_len, 1);
  EXPECT_EQ(batch.max_prefill_seq_len, 0);
  EXPECT_EQ(batch.max_decode_seq_len, 9);
  EXPECT_TRUE(batch.cross_slot_mapping.empty());
  EXPECT_EQ(batch.encoder_query_start_loc, Ints(5, 0));
  EXPECT_EQ(batch.encoder_seq_lens, (Ints{5, 4, 6, 0}));
  EXPECT_EQ(tokens, (Ints{101, 102, 103, 104}));
  EXPECT_EQ(DecodeMetadata(batch)->seq_lens, batch.seq_lens);

  // The next step needs no turn. Its batch is the one that would be built anew.
  AdvanceBatchArgs again = args;
  again.turn_prefills_into_decodes = false;
  ASSERT_TRUE(AdvanceBatch(*kernels, again, batch).ok());
  EXPECT_EQ(batch.seq_lens, (Ints{5, 10, 7, 4}));
  EXPECT_EQ(batch.slot_mapping, (Slots{9 * 4 + 0, 3 * 4 + 1, 6 * 4 + 2, 4 * 4 + 3}));
  // Then the last row has no block left.
  const absl::Status full = AdvanceBatch(*kernels, again, batch);
  EXPECT_EQ(full.message(), "block_tables[3][1] = -1: must be a block: the new token goes there");
  EXPECT_EQ(batch.seq_lens, (Ints{5, 10, 7, 4}));
}

TEST(BatchMetadataTest, PaddingRowsStayPadding) {
  auto kernels = MakeTestKernels("auto");
  const Ints blocks = {4, 9};
  const BatchSequence sequence{false, 3, 1, blocks.data(), 2};
  Batch batch = *BuildBatch({.sequences = &sequence,
                             .num_sequences = 1,
                             .block_size = 4,
                             .padded_sequences = 3,
                             .table_columns = 2});
  const int32_t sampled[] = {77};
  Ints tokens = {1, 2, 3};
  const AdvanceBatchArgs args{
      .block_size = 4, .sampled_tokens = sampled, .tokens = tokens.data()};
  ASSERT_TRUE(AdvanceBatch(*kernels, args, batch).ok());
  EXPECT_EQ(tokens, (Ints{77, 0, 0}));
  EXPECT_EQ(batch.seq_lens, (Ints{5, 0, 0}));
  EXPECT_EQ(batch.context_lens, (Ints{4, 0, 0}));
  EXPECT_EQ(batch.slot_mapping, (Slots{36, -1, -1}));
  EXPECT_EQ(batch.seq_start_loc, (Ints{0, 5, 5, 5}));
  EXPECT_EQ(batch.num_decode_tokens, 3);
}

TEST(BatchMetadataTest, WhatCannotAdvanceIsRefusedByNameAndStaysAsItWas) {
  auto kernels = MakeTestKernels("auto");
  MixedBatch mixed;
  const Ints sampled = {1, 2, 3, 4};
  Ints tokens(4, -5);
  const AdvanceBatchArgs good{.block_size = 4,
                              .sampled_tokens = sampled.data(),
                              .tokens = tokens.data(),
                              .turn_prefills_into_decodes = true};
  const auto refused = [&](auto change, const std::string& message) {
    Batch batch = *BuildBatch(mixed.args);
    AdvanceBatchArgs args = good;
    change(args);
    const Batch before = batch;
    const absl::Status status = AdvanceBatch(*kernels, args, batch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
    EXPECT_EQ(batch.num_prefills, before.num_prefills);
    EXPECT_EQ(batch.seq_lens, before.seq_lens);
    EXPECT_EQ(batch.slot_mapping, before.slot_mapping);
    EXPECT_EQ(batch.positions, before.positions);
    EXPECT_EQ(tokens, Ints(4, -5));
  };
  refused([](auto& a) { a.turn_prefills_into_decodes = false; },
          "num_prefills = 2: must be 0 without turn_prefills_into_decodes");
  refused([](auto& a) { a.block_size = 0; }, "block_size = 0");
  refused([](auto& a) { a.sampled_tokens = nullptr; }, "sampled_tokens = null");
  refused([](auto& a) { a.tokens = nullptr; }, "tokens = null");
  mixed.sequences[3].is_last_chunk = false;
  refused([](auto&) {}, "num_unfinished_prefills = 1: must be 0");
  mixed.sequences[3].is_last_chunk = true;
  mixed.sequences[0].query_len = 2;
  mixed.args.max_decode_query_len = 2;
  refused([](auto&) {}, "max_decode_query_len = 2: must be at most 1");
  mixed.sequences[0].query_len = 1;
  mixed.sequences[0].context_len = 7;
  refused([](auto&) {}, "block_tables[2][2] = -1: must be a block");
}

TEST(BatchMetadataTest, EncodersAndRangesThatCannotBeAreRefusedByName) {
  const auto refused = [](auto change, const std::string& message) {
    MixedBatch mixed;
    static constexpr PlaceholderRange kRanges[] = {{4, 3}, {6, 1}};
    static constexpr PlaceholderRange kLong[] = {{4, INT32_MAX}, {-1, 1}};
    mixed.sequences[1].placeholders = kRanges;
    mixed.sequences[3].placeholders = kLong;
    change(mixed);
    const absl::Status status = BuildBatch(mixed.args).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
  };
  refused([](auto& m) { m.sequences[1].encoder_len = -1; }, "sequences[1].encoder_len = -1");
  refused([](auto& m) { m.sequences[1].encoder_len = 9; },
          "sequences[1].num_cross_blocks = 2: must be at least 3 for 9 encoder tokens");
  refused([](auto& m) { m.sequences[1].cross_blocks = nullptr; },
          "sequences[1].cross_blocks = 0: must be an array");
  refused([](auto& m) { m.cross_b[0] = -1; }, "sequences[3].cross_blocks[0] = -1: must be a block");
  refused([](auto& m) { m.sequences[2].runs_encoder = true; },
          "sequences[2].runs_encoder = 1: must be false when decoding");
  refused([](auto& m) { m.args.cross_table_columns = 1; },
          "cross_table_columns = 1: must be 0 or at least sequences[0].num_cross_blocks = 2");
  refused([](auto& m) { m.args.cross_table_columns = -1; }, "cross_table_columns = -1");
  refused([](auto& m) { m.args.cross_table_columns = INT32_MAX; },
          "cross_table_columns = 2147483647: must be such that 4 rows");
  refused([](auto& m) { m.sequences[1].num_placeholders = 2; },
          "sequences[1].placeholders[1].offset = 6: must be at least 7");
  refused([](auto& m) { m.sequences[1].num_placeholders = -1; }, "sequences[1].num_placeholders");
  refused([](auto& m) { m.sequences[3].num_placeholders = 1; },
          "sequences[3].placeholders[0].length = 2147483647");
  refused([](auto& m) { m.args.num_modalities = 65; }, "num_modalities = 65: must be in [0, 64]");
  refused(
      [](auto& m) {
        m.args.num_modalities = 0;
        m.sequences[1].num_placeholders = 1;
      },
      "sequences[1].placeholders[0].modality = 0: must be in [0, num_modalities = 0)");
  refused(
      [](auto& m) {
        static constexpr PlaceholderRange kNegative[] = {{4, 3, -1}};
        m.sequences[1].placeholders = kNegative;
        m.sequences[1].num_placeholders = 1;
      },
      "sequences[1].placeholders[0].modality = -1: must be in [0, num_modalities = 1)");
  refused([](auto& m) { m.sequences[2].num_placeholders = 1; },
          "sequences[2].num_placeholders = 1: must be 0 when decoding");
  refused(
      [](auto& m) {
        m.sequences[1].placeholders = nullptr;
        m.sequences[1].num_placeholders = 1;
      },
      "sequences[1].placeholders = 0: must be an array");
}

}  // namespace
}  // namespace baton
