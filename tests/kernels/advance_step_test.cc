// AdvanceStep of every device.
#include <vector>

#include "kernels/api/batch.h"
#include "tests/kernels/op_cases.h"

namespace baton {
namespace {

class AdvanceStepTest : public testing::Test {
 protected:
  const std::unique_ptr<CpuKernels> ops_ = MakeOps(OpCases().front());
};

// In blocks of any size.
TEST_F(AdvanceStepTest, MovesRowsAndPaddingOn) {
  const std::vector<int32_t> sampled = {7, 8, 9};
  const std::vector<int32_t> tables = {2, 9, -1, 0, 1, -1, 3, 5, 6, -1, -1, -1};
  for (const auto& [size, expected] :
       {std::pair(32, std::vector<int64_t>{2 * 32 + 30, 1 * 32, 6 * 32 + 6, -1}),
        std::pair(24, std::vector<int64_t>{9 * 24 + 6, 1 * 24 + 8, 6 * 24 + 22, -1})}) {
    std::vector<int32_t> tokens(4, -5), positions(4, -5), lens = {30, 32, 70, 5};
    std::vector<int64_t> slots(4, -5);
    ASSERT_EQ(ops_->AdvanceStep({4, 3, size, sampled.data(), tables.data(), 3, tokens.data(),
                                 positions.data(), lens.data(), slots.data()}),
              absl::OkStatus());
    EXPECT_EQ(tokens, (std::vector<int32_t>{7, 8, 9, 0}));
    EXPECT_EQ(positions, (std::vector<int32_t>{30, 32, 70, 0}));
    EXPECT_EQ(lens, (std::vector<int32_t>{31, 33, 71, 5}));
    EXPECT_EQ(slots, expected);
  }
}

TEST_F(AdvanceStepTest, TheNextTokensOfThePromptsOf195GoBehindThem) {
  std::vector<int32_t> table(5 * 13);
  for (int32_t i = 0; i < 65; ++i) table[i] = 999 - i;
  const int32_t sampled[] = {11, 12, 13, 14, 15};
  std::vector<int32_t> tokens(5, 7), positions(5, 194), seq_lens(5, 195);
  std::vector<int64_t> slots(5);
  ASSERT_TRUE(ops_->AdvanceStep({.num_seqs = 5,
                                 .num_queries = 5,
                                 .block_size = 16,
                                 .sampled_tokens = sampled,
                                 .block_tables = table.data(),
                                 .max_blocks = 13,
                                 .tokens = tokens.data(),
                                 .positions = positions.data(),
                                 .seq_lens = seq_lens.data(),
                                 .slot_mapping = slots.data()})
                  .ok());
  EXPECT_EQ(tokens, (std::vector<int32_t>{11, 12, 13, 14, 15}));
  EXPECT_EQ(positions, std::vector<int32_t>(5, 195));
  EXPECT_EQ(seq_lens, std::vector<int32_t>(5, 196));
  EXPECT_EQ(slots, (std::vector<int64_t>{15795, 15587, 15379, 15171, 14963}));
}

// A recorded decode graph: the batch is built once, then moved on in place.
TEST_F(AdvanceStepTest, ManyStepsInPlaceGiveWhatBuildingEachBatchAnewGives) {
  const std::vector<int32_t> blocks[] = {{9, 2, 5, 0, 1}, {3, 8, 4, 7, 6}};
  const auto build = [&](int32_t step) {
    const BatchSequence sequences[] = {{false, 2 + step, 1, blocks[0].data(), 5},
                                       {false, 7 + step, 1, blocks[1].data(), 5}};
    return *BuildBatch({.sequences = sequences,
                        .num_sequences = 2,
                        .block_size = 4,
                        .padded_sequences = 4,
                        .table_columns = 5});
  };
  Batch batch = build(0);
  std::vector<int32_t> tokens = {21, 22, 23, 24};
  for (int32_t step = 1; step <= 12; ++step) {
    // The sampler wrote its tokens where the next step reads them.
    tokens = {100 + step, 200 + step, -1, -1};
    ASSERT_TRUE(ops_->AdvanceStep({.num_seqs = 4,
                                   .num_queries = 2,
                                   .block_size = 4,
                                   .sampled_tokens = tokens.data(),
                                   .block_tables = batch.block_tables.data(),
                                   .max_blocks = batch.max_blocks,
                                   .tokens = tokens.data(),
                                   .positions = batch.positions.data(),
                                   .seq_lens = batch.seq_lens.data(),
                                   .slot_mapping = batch.slot_mapping.data()})
                    .ok());
    const Batch anew = build(step);
    EXPECT_EQ(tokens, (std::vector<int32_t>{100 + step, 200 + step, 0, 0}));
    EXPECT_EQ(batch.positions, anew.positions);
    EXPECT_EQ(batch.seq_lens, anew.seq_lens);
    EXPECT_EQ(batch.slot_mapping, anew.slot_mapping);
  }
}

TEST_F(AdvanceStepTest, ARefusedStepChangesNoRow) {
  const int32_t sampled[] = {5, 6}, table[] = {0, 1};
  int32_t tokens[] = {1, 2}, positions[] = {0, 3}, seq_lens[] = {1, 4};
  int64_t slots[] = {0, 7};
  const absl::Status status = ops_->AdvanceStep({.num_seqs = 2,
                                                 .num_queries = 2,
                                                 .block_size = 4,
                                                 .sampled_tokens = sampled,
                                                 .block_tables = table,
                                                 .max_blocks = 1,
                                                 .tokens = tokens,
                                                 .positions = positions,
                                                 .seq_lens = seq_lens,
                                                 .slot_mapping = slots});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(tokens[0], 1);
  EXPECT_EQ(positions[0], 0);
  EXPECT_EQ(seq_lens[0], 1);
  EXPECT_EQ(slots[0], 0);
}

}  // namespace
}  // namespace baton
