#include "kernels/api/batch.h"

#include <gtest/gtest.h>

#include <numeric>

namespace baton {
namespace {

using Ints = std::vector<int32_t>;

Batch Build(const std::vector<BatchSequence>& sequences, int32_t block_size,
            bool prefills_first = true) {
  const absl::StatusOr<Batch> batch =
      BuildBatch({.sequences = sequences.data(),
                  .num_sequences = static_cast<int32_t>(sequences.size()),
                  .block_size = block_size,
                  .prefills_first = prefills_first});
  EXPECT_TRUE(batch.ok()) << batch.status();
  return batch.ok() ? *batch : Batch{};
}

TEST(BatchTest, AppendingOneTokenStaysInTheLastBlockOrOpensTheNext) {
  // Key lengths [30, 32, 70], B 32.
  const Ints a = {2}, b = {0, 1}, c = {3, 5, 6};
  const Batch batch = Build(
      {{false, 30, 1, a.data(), 1}, {false, 32, 1, b.data(), 2}, {false, 70, 1, c.data(), 3}}, 32);
  EXPECT_EQ(batch.slot_mapping, (std::vector<int64_t>{2 * 32 + 30, 1 * 32, 6 * 32 + 6}));
  EXPECT_EQ(batch.block_tables, (Ints{2, -1, -1, 0, 1, -1, 3, 5, 6}));
  EXPECT_EQ(batch.max_decode_seq_len, 71);
  EXPECT_EQ(batch.num_decode_tokens, 3);
}

TEST(BatchTest, TwoPromptsOf484UnderABudgetOf512TakeThreeSteps) {
  Ints blocks(64);
  std::iota(blocks.begin(), blocks.end(), 0);
  const auto sequence = [&](bool prefill, int32_t context, int32_t queries) {
    return BatchSequence{prefill, context, queries, blocks.data(), 64};
  };
  const Batch first = Build({sequence(true, 0, 28), sequence(true, 0, 484)}, 16);
  EXPECT_EQ(first.query_start_loc, (Ints{0, 28, 512}));
  EXPECT_EQ(first.context_lens, (Ints{0, 0}));
  EXPECT_EQ(first.num_prefill_tokens, 512);

  const std::vector<BatchSequence> mixed = {sequence(false, 484, 1), sequence(true, 28, 456)};
  const Batch given = Build(mixed, 16, /*prefills_first=*/false);
  EXPECT_EQ(given.seq_lens, (Ints{485, 484}));
  EXPECT_EQ(given.context_lens, (Ints{484, 28}));
  EXPECT_EQ(given.query_start_loc, (Ints{0, 1, 457}));
  EXPECT_EQ(given.seq_start_loc, (Ints{0, 485, 969}));
  const Batch second = Build(mixed, 16);
  EXPECT_EQ(second.order, (Ints{1, 0}));
  EXPECT_EQ(second.seq_lens, (Ints{484, 485}));
  EXPECT_EQ(second.context_lens, (Ints{28, 484}));
  EXPECT_EQ(second.query_start_loc, (Ints{0, 456, 457}));
  EXPECT_EQ(second.seq_start_loc, (Ints{0, 484, 969}));
  EXPECT_EQ(second.num_prefills, 1);
  EXPECT_EQ(second.max_query_len, 456);

  const Batch third = Build({sequence(false, 485, 1), sequence(false, 484, 1)}, 16);
  EXPECT_EQ(third.seq_lens, (Ints{486, 485}));
  EXPECT_EQ(third.max_decode_seq_len, 486);
  EXPECT_EQ(third.num_prefills, 0);
}

TEST(BatchTest, FivePromptsOf195TokensFillThirteenBlocksEachFrom999Downwards) {
  std::vector<Ints> blocks(5, Ints(13));
  std::vector<BatchSequence> prompts, next;
  int32_t block = 999;
  for (Ints& table : blocks) {
    for (int32_t& b : table) b = block--;
    prompts.push_back({true, 0, 195, table.data(), 13});
    next.push_back({false, 195, 1, table.data(), 13});
  }
  const Batch prefill = Build(prompts, 16);
  std::vector<int64_t> slots;
  for (int64_t b = 999; b > 987; --b) {
    for (int64_t i = 0; i < 16; ++i) slots.push_back(b * 16 + i);
  }
  for (const int64_t slot : {15792, 15793, 15794}) slots.push_back(slot);
  EXPECT_EQ(slots.front(), 15984);
  EXPECT_EQ(std::vector<int64_t>(prefill.slot_mapping.begin(), prefill.slot_mapping.begin() + 195),
            slots);
  // The other prompts lie 13 blocks lower each.
  for (int64_t prompt = 1; prompt < 5; ++prompt) {
    for (int64_t i = 0; i < 195; ++i) {
      EXPECT_EQ(prefill.slot_mapping[prompt * 195 + i], slots[i] - prompt * 13 * 16);
    }
  }
  EXPECT_EQ(prefill.num_prefills, 5);
  EXPECT_EQ(prefill.num_prefill_tokens, 975);
  EXPECT_EQ(prefill.num_decode_tokens, 0);
  EXPECT_EQ(prefill.seq_lens, Ints(5, 195));
  EXPECT_EQ(prefill.query_start_loc, (Ints{0, 195, 390, 585, 780, 975}));
  EXPECT_EQ(prefill.max_prefill_seq_len, 195);
  EXPECT_EQ(prefill.max_decode_seq_len, 0);
  EXPECT_EQ(prefill.max_blocks, 13);
  EXPECT_EQ(Build(next, 16).slot_mapping,
            (std::vector<int64_t>{15795, 15587, 15379, 15171, 14963}));
}

TEST(BatchTest, PaddingRowsAreWrittenNowhereAndSeeNothing) {
  const Ints blocks = {4};
  const BatchSequence sequence{false, 2, 1, blocks.data(), 1};
  const auto batch = BuildBatch(
      {.sequences = &sequence, .num_sequences = 1, .block_size = 8, .padded_sequences = 3});
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->order, (Ints{0, -1, -1}));
  EXPECT_EQ(batch->seq_lens, (Ints{3, 0, 0}));
  EXPECT_EQ(batch->slot_mapping, (std::vector<int64_t>{34, -1, -1}));
  EXPECT_EQ(batch->query_start_loc, (Ints{0, 1, 2, 3}));
  EXPECT_EQ(batch->block_tables, (Ints{4, -1, -1}));
  EXPECT_EQ(batch->num_decode_tokens, 3);
}

TEST(BatchTest, ATableOfGivenWidthHoldsAlsoTheBlocksOfTokensToCome) {
  const Ints blocks = {4, 9, 2};
  const BatchSequence sequence{false, 2, 1, blocks.data(), 3};
  const auto batch = BuildBatch({.sequences = &sequence,
                                 .num_sequences = 1,
                                 .block_size = 8,
                                 .padded_sequences = 2,
                                 .table_columns = 4});
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->max_blocks, 4);
  EXPECT_EQ(batch->block_tables, (Ints{4, 9, 2, -1, -1, -1, -1, -1}));
  const auto narrow =
      BuildBatch({.sequences = &sequence, .num_sequences = 1, .block_size = 8, .table_columns = 2});
  EXPECT_EQ(narrow.status().message(),
            "table_columns = 2: must be 0 or at least sequences[0].num_blocks = 3");
}

TEST(BatchTest, NoSequencesMakeAnEmptyBatch) {
  const auto batch = BuildBatch({.block_size = 8});
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->query_start_loc, Ints{0});
  EXPECT_EQ(batch->seq_start_loc, Ints{0});
  EXPECT_TRUE(batch->slot_mapping.empty());
  EXPECT_EQ(batch->max_query_len, 0);
}

// One long sequence makes the rows of all others as wide.
TEST(BatchTest, ATableThatNoMemoryHoldsIsRefusedWhateverMakesItWide) {
  const Ints blocks(1 << 20);
  std::vector<BatchSequence> sequences(1 << 9, {false, 0, 1, blocks.data(), 1 << 20});
  sequences[3].context_len = (1 << 20) - 1;
  const BuildBatchArgs args{
      .sequences = sequences.data(), .num_sequences = 1 << 9, .block_size = 1};
  EXPECT_EQ(BuildBatch(args).status().message(),
            "sequences[3].context_len = 1048575: must be such that 512 rows of 1048576 columns "
            "have at most 268435456 entries");
}

TEST(BatchTest, RefusalsNameTheFieldAndWhatIsAllowed) {
  const Ints blocks = {4, -1};
  const auto refused = [&](BatchSequence s, int32_t padded, const std::string& message) {
    const auto batch = BuildBatch(
        {.sequences = &s, .num_sequences = 1, .block_size = 8, .padded_sequences = padded});
    EXPECT_EQ(batch.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(batch.status().message()).find(message), std::string::npos)
        << batch.status();
  };
  refused({false, 2, 2, blocks.data(), 2}, 0,
          "sequences[0].query_len = 2: must be 1 when decoding");
  refused({true, 16, 1, blocks.data(), 2}, 0, "sequences[0].num_blocks = 2: must be at least 3");
  refused({true, 0, 9, blocks.data(), 2}, 0, "sequences[0].blocks[1] = -1");
  refused({true, -1, 9, blocks.data(), 2}, 0, "sequences[0].context_len = -1");
  refused({true, INT32_MAX, 1, blocks.data(), 2}, 0, "sequences[0].num_blocks");
  refused({false, 0, 1, blocks.data(), 2}, 1 << 21, "padded_sequences = 2097152: must be 0 or in");
  refused({true, 0, 1, blocks.data(), 2}, 4, "padded_sequences = 4: must be 0 with prefills");
}

}  // namespace
}  // namespace baton
