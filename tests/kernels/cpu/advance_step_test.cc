#include "kernels/cpu/advance_step.h"

#include <numeric>

#include "kernels/api/batch.h"
#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

TEST(AdvanceStepTest, TheNextTokensOfThePromptsOf195GoBehindThem) {
  auto kernels = MakeTestKernels("auto");
  std::vector<int32_t> table(5 * 13);
  for (int32_t i = 0; i < 65; ++i) table[i] = 999 - i;
  const int32_t sampled[] = {11, 12, 13, 14, 15};
  std::vector<int32_t> tokens(5, 7), positions(5, 194), seq_lens(5, 195);
  std::vector<int64_t> slots(5);
  ASSERT_TRUE(kernels
                  ->AdvanceStep({.num_seqs = 5,
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
TEST(AdvanceStepTest, ManyStepsInPlaceGiveWhatBuildingEachBatchAnewGives) {
  auto kernels = MakeTestKernels("auto");
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
    ASSERT_TRUE(kernels
                    ->AdvanceStep({.num_seqs = 4,
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

TEST(AdvanceStepTest, ARefusedStepChangesNoRow) {
  auto kernels = MakeTestKernels("auto");
  const int32_t sampled[] = {5, 6}, table[] = {0, 1};
  int32_t tokens[] = {1, 2}, positions[] = {0, 3}, seq_lens[] = {1, 4};
  int64_t slots[] = {0, 7};
  const absl::Status status = kernels->AdvanceStep({.num_seqs = 2,
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
