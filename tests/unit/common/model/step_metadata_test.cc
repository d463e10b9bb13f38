#include "common/model/step_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "common/base/random.h"
#include "kernels/api/batch.h"
#include "kernels/api/row_args.h"
#include "kernels/make_device.h"

namespace baton {
namespace {

using testing::ElementsAre;

const StepBounds kBounds = {
    .vocab_size = 100, .max_model_len = 64, .block_size = 4, .num_blocks = 8};

std::shared_ptr<SamplingContext> Context(std::vector<int32_t> prompt, int32_t prompt_logprobs) {
  auto context = std::make_shared<SamplingContext>();
  context->prompt = std::move(prompt);
  context->params.num_prompt_logprobs = prompt_logprobs;
  return context;
}

class StepMetadataTest : public testing::Test {
 protected:
  void Build(const StepPlan& plan, const StepBounds& bounds = kBounds) {
    ASSERT_TRUE(batch_.Build(plan, bounds).ok());
    ASSERT_TRUE(batch_.Upload().ok());
  }
  template <typename T>
  static std::vector<T> List(const T* data, int64_t count) {
    return {data, data + count};
  }
  const BatchView& all() const { return batch_.all(); }
  const BatchView& wanted() const { return batch_.wanted(); }
  std::vector<int32_t> WantedTokens() const {
    return List(batch_.wanted_tokens(), wanted().num_tokens);
  }
  // The first block of each sequence.
  static std::vector<int32_t> FirstBlocks(const BatchView& view) {
    std::vector<int32_t> first;
    for (int64_t s = 0; s < view.num_seqs; ++s) {
      first.push_back(view.block_table[view.table_starts(0)[s]]);
    }
    return first;
  }

  Processors processors_ = *MakeDevice({});
  StepMetadata batch_ = *StepMetadata::Create(
      *processors_.device, {.max_tokens = 64, .max_rows = 8, .max_row_blocks = 17});
};
using StepMetadataDeathTest = StepMetadataTest;

TEST_F(StepMetadataTest, FlattensAPrefillChunkAndADecodeRow) {
  StepPlan plan;
  plan.rows.push_back({.tokens = {5, 6, 7}, .context_len = 2, .block_table = {3, 1}});
  plan.rows.push_back({.tokens = {9},
                       .context_len = 8,
                       .block_table = {0, 7, 5},
                       .sample = true,
                       .sampling = Context({1}, -1)});
  Build(plan);
  EXPECT_EQ(all().num_tokens, 4);
  EXPECT_EQ(all().num_seqs, 2);
  EXPECT_THAT(List(all().tokens, 4), ElementsAre(5, 6, 7, 9));
  EXPECT_THAT(List(all().positions, 4), ElementsAre(2, 3, 4, 8));
  EXPECT_THAT(List(all().slots(0), 4), ElementsAre(14, 15, 4, 20));
  EXPECT_THAT(List(all().cu_seqlens_q, 3), ElementsAre(0, 3, 4));
  EXPECT_THAT(List(all().seq_lens, 2), ElementsAre(5, 9));
  EXPECT_EQ(all().max_blocks, 3);
  EXPECT_EQ(all().max_seqlen_q, 3);
  EXPECT_EQ(all().max_seqlen_k, 9);
  EXPECT_THAT(List(all().table_starts(0), 2), ElementsAre(0, 2));
  EXPECT_THAT(List(all().block_table, 5), ElementsAre(3, 1, 0, 7, 5));
  EXPECT_THAT(WantedTokens(), ElementsAre(3));
  EXPECT_FALSE(batch_.wants_all());
}

TEST_F(StepMetadataTest, PositionsOfLongRowsAskForTheOtherRotation) {
  StepPlan plan;
  plan.rows.push_back({.tokens = {5, 6, 7},
                       .context_len = 2,
                       .block_table = {3, 1},
                       .sample = true,
                       .sampling = Context({1}, -1),
                       .is_long = true});
  plan.rows.push_back({.tokens = {9},
                       .context_len = 8,
                       .block_table = {0, 7, 5},
                       .sample = true,
                       .sampling = Context({1}, -1)});
  Build(plan);
  EXPECT_THAT(List(all().positions, 4),
              ElementsAre(OtherRotation(2), OtherRotation(3), OtherRotation(4), 8));
  EXPECT_THAT(List(all().slots(0), 4), ElementsAre(14, 15, 4, 20));
  EXPECT_THAT(List(wanted().positions, 2), ElementsAre(OtherRotation(4), 8));
  EXPECT_THAT(List(wanted().seq_lens, 2), ElementsAre(5, 9));
  EXPECT_EQ(wanted().max_seqlen_k, 9);
}

TEST_F(StepMetadataTest, KeepsNothingOfThePlanBefore) {
  StepPlan large, small;
  large.rows.push_back({.tokens = {1, 2, 3, 4, 5},
                        .block_table = {1, 2},
                        .sample = true,
                        .sampling = Context({1, 2, 3}, 0)});
  small.rows.push_back({.tokens = {1}, .block_table = {6}});
  Build(large);
  Build(small);
  EXPECT_EQ(all().num_tokens, 1);
  EXPECT_THAT(FirstBlocks(all()), ElementsAre(6));
  EXPECT_THAT(List(all().cu_seqlens_q, 2), ElementsAre(0, 1));
  EXPECT_THAT(List(all().seq_lens, 1), ElementsAre(1));
  EXPECT_EQ(all().max_seqlen_k, 1);
  EXPECT_EQ(wanted().num_tokens, 0);
  EXPECT_EQ(wanted().num_seqs, 0);
}

TEST_F(StepMetadataTest, ScoresThePromptTokensThatFollowButNotWhatComesAfterThePrompt) {
  StepPlan plan;
  plan.rows.push_back({.tokens = {11, 12, 13},
                       .context_len = 1,
                       .block_table = {0},
                       .sample = true,
                       .sampling = Context({10, 11, 12, 13}, 0)});
  Build(plan);
  EXPECT_TRUE(ScoresPrompt(plan.rows[0], 0));
  EXPECT_TRUE(ScoresPrompt(plan.rows[0], 1));
  EXPECT_FALSE(ScoresPrompt(plan.rows[0], 2));  // The last one is sampled, not scored.
  StepRow again = plan.rows[0];
  again.scores_from = again.context_len + 2;
  EXPECT_FALSE(ScoresPrompt(again, 0));  // It is known.
  EXPECT_TRUE(ScoresPrompt(again, 1));
  EXPECT_THAT(WantedTokens(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(batch_.wants_all());
}

// Arrays lie where the capacity says: a graph that was captured with one plan reads the next.
TEST_F(StepMetadataTest, ArraysHaveTheSamePlacesForEveryPlan) {
  StepPlan small, large;
  small.rows.push_back({.tokens = {1}, .block_table = {6}});
  for (int i = 0; i < 8; ++i) {
    large.rows.push_back({.tokens = std::vector<int32_t>(8, 3),
                          .block_table = std::vector<BlockId>(i + 2, 1),
                          .sample = true,
                          .sampling = Context({3, 3, 3, 3, 3}, 0)});
  }
  Build(small);
  const BatchView first = all(), first_wanted = wanted();
  Build(large);
  EXPECT_EQ(all().tokens, first.tokens);
  EXPECT_EQ(all().positions, first.positions);
  EXPECT_EQ(all().slots(0), first.slots(0));
  EXPECT_EQ(all().cu_seqlens_q, first.cu_seqlens_q);
  EXPECT_EQ(all().seq_lens, first.seq_lens);
  EXPECT_EQ(all().block_table, first.block_table);
  EXPECT_EQ(all().table_starts(0), first.table_starts(0));
  EXPECT_EQ(wanted().table_starts(0), first_wanted.table_starts(0));
  EXPECT_EQ(wanted().positions, first_wanted.positions);
  EXPECT_EQ(wanted().cu_seqlens_q, first_wanted.cu_seqlens_q);
  EXPECT_EQ(wanted().seq_lens, first_wanted.seq_lens);
}

// The rows behind the plan's are those of a batch built for a recorded graph.
TEST_F(StepMetadataTest, PaddingIsThatOfABatch) {
  StepPlan plan;
  plan.rows.push_back({.tokens = {9},
                       .context_len = 8,
                       .block_table = {0, 7, 5},
                       .sample = true,
                       .sampling = Context({1}, -1)});
  ASSERT_TRUE(batch_.Build(plan, kBounds, 4).ok());
  const BatchSequence sequence{
      .context_len = 8, .query_len = 1, .blocks = plan.rows[0].block_table.data(), .num_blocks = 3};
  const absl::StatusOr<Batch> batch = BuildBatch(
      {.sequences = &sequence, .num_sequences = 1, .block_size = 4, .padded_sequences = 4});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(all().num_tokens, 4);
  EXPECT_EQ(all().num_seqs, 4);
  EXPECT_THAT(List(all().tokens, 4), ElementsAre(9, 0, 0, 0));
  EXPECT_EQ(List(all().positions, 4), batch->positions);
  EXPECT_EQ(List(all().slots(0), 4), batch->slot_mapping);
  EXPECT_EQ(List(all().seq_lens, 4), batch->seq_lens);
  EXPECT_EQ(List(all().cu_seqlens_q, 5), batch->query_start_loc);
  EXPECT_THAT(List(all().table_starts(0), 4), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(WantedTokens(), ElementsAre(0));
  EXPECT_TRUE(batch_.wants_all());
}

// What a launch hands over by value was told when its graph was captured, with no row at all.
TEST_F(StepMetadataTest, CountsAndBoundsOfPaddedPlansAreThoseOfNone) {
  ASSERT_TRUE(batch_.Build(StepPlan(), kBounds, 4).ok());
  const BatchView captured = all();
  EXPECT_TRUE(batch_.wants_all());
  StepPlan plan;
  for (int32_t length : {0, 63, 17}) {
    plan.rows.push_back({.tokens = {9},
                         .context_len = length,
                         .block_table = std::vector<BlockId>(17, 1),
                         .sample = true,
                         .sampling = Context({1}, -1)});
  }
  ASSERT_TRUE(batch_.Build(plan, kBounds, 4).ok());
  EXPECT_EQ(std::memcmp(&captured, &all(), sizeof(BatchView)), 0);
  EXPECT_EQ(captured.max_seqlen_k, kBounds.max_model_len);
  EXPECT_EQ(captured.max_blocks, 17);
}

TEST_F(StepMetadataDeathTest, PaddingIsForRowsOfOneTokenAndHasRoom) {
  StepPlan plan;
  plan.rows.push_back({.tokens = {1, 2}, .block_table = {6}});
  EXPECT_DEATH(batch_.Build(plan, kBounds, 4).IgnoreError(), "");
  EXPECT_DEATH(batch_.Build(StepPlan(), kBounds, 9).IgnoreError(), "");
}

// A chunk [10, 14) of one sequence, a decode at 7, a prompt of three tokens. With `picked` tokens
// wanted: each ends a row.
StepPlan Mixed(const std::vector<int32_t>& picked) {
  StepPlan plan;
  const auto add = [&](int32_t first, int32_t begin, int32_t end, std::vector<BlockId> table) {
    for (int32_t at = begin; at < end;) {
      int32_t last = at;
      while (last + 1 < end && !std::ranges::count(picked, first + last - begin)) ++last;
      plan.rows.push_back({.tokens = std::vector<int32_t>(last + 1 - at, 1),
                           .context_len = at,
                           .block_table = table,
                           .sample = std::ranges::count(picked, first + last - begin) > 0,
                           .sampling = Context({1}, -1)});
      at = last + 1;
    }
  };
  add(0, 10, 14, {3, 4, 5, 2});
  add(4, 7, 8, {6, 1});
  add(5, 0, 3, {7});
  return plan;
}

TEST_F(StepMetadataTest, EachWantedTokenSeesTheKeysUpToItself) {
  Build(Mixed({1, 3, 4}));
  EXPECT_THAT(WantedTokens(), ElementsAre(1, 3, 4));
  EXPECT_THAT(List(wanted().positions, 3), ElementsAre(11, 13, 7));
  EXPECT_THAT(List(wanted().cu_seqlens_q, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(List(wanted().seq_lens, 3), ElementsAre(12, 14, 8));
  EXPECT_THAT(FirstBlocks(wanted()), ElementsAre(3, 3, 6));
  EXPECT_EQ(wanted().max_seqlen_q, 1);
  EXPECT_EQ(wanted().max_seqlen_k, 14);
}

// The scored tokens of a prompt and the token sampled behind it are two runs of one row.
TEST_F(StepMetadataTest, NeighboursOfOneSequenceAreOneRowOfQueries) {
  StepPlan plan;
  plan.rows.push_back({.tokens = {1, 2, 3, 4, 5, 6},
                       .block_table = {4, 5},
                       .sample = true,
                       .sampling = Context({1, 2, 3, 4}, 0)});
  plan.rows.push_back({.tokens = {7, 8}, .block_table = {2}, .sampling = Context({7, 8, 9}, 0)});
  Build(plan);
  EXPECT_THAT(WantedTokens(), ElementsAre(0, 1, 2, 5, 6, 7));
  EXPECT_THAT(List(wanted().cu_seqlens_q, 4), ElementsAre(0, 3, 4, 6));
  EXPECT_THAT(List(wanted().seq_lens, 3), ElementsAre(3, 6, 2));
  EXPECT_THAT(List(wanted().positions, 6), ElementsAre(0, 1, 2, 5, 0, 1));
  EXPECT_EQ(wanted().block_table, all().block_table);
  EXPECT_THAT(List(wanted().table_starts(0), 3), ElementsAre(0, 0, 2));
  EXPECT_EQ(wanted().max_seqlen_q, 3);
  EXPECT_EQ(wanted().max_seqlen_k, 6);
}

// Two groups of layers; the second sees 6 tokens.
class StepMetadataGroupsTest : public StepMetadataTest {
 protected:
  StepMetadataGroupsTest() {
    batch_ = *StepMetadata::Create(*processors_.device, {.max_tokens = 16,
                                                         .max_rows = 4,
                                                         .max_row_blocks = 4,
                                                         .num_groups = 2,
                                                         .max_row_entries = 8});
    bounds_.windows = {0, 6};
  }
  // A group's blocks of a sequence, from an entry on.
  static std::vector<int32_t> Blocks(const BatchView& view, int32_t group, int64_t sequence,
                                     int32_t first, int32_t count) {
    const int32_t* const begin = view.block_table + view.table_starts(group)[sequence] + first;
    return {begin, begin + count};
  }
  StepBounds bounds_ = kBounds;
};

TEST_F(StepMetadataGroupsTest, EachGroupHasItsBlocksAndSlotsWithoutWhatItsWindowHasPassed) {
  StepPlan plan;
  plan.rows.push_back({.tokens = {1, 2}, .context_len = 9, .block_table = {5, 3, 2, -1, 1, 4}});
  plan.rows.push_back({.tokens = {3}, .context_len = 3, .block_table = {6, 7}});
  Build(plan, bounds_);
  EXPECT_EQ(all().max_blocks, 3);
  EXPECT_THAT(List(all().slots(0), 3), ElementsAre(9, 10, 27));
  EXPECT_THAT(List(all().slots(1), 3), ElementsAre(17, 18, 31));
  EXPECT_THAT(Blocks(all(), 0, 0, 0, 3), ElementsAre(5, 3, 2));
  EXPECT_THAT(Blocks(all(), 1, 0, 1, 2), ElementsAre(1, 4));
  EXPECT_THAT(Blocks(all(), 0, 1, 0, 1), ElementsAre(6));
  EXPECT_THAT(Blocks(all(), 1, 1, 0, 1), ElementsAre(7));
  // Entry 0 of the second group is not there: what comes before it is the first group's.
  EXPECT_EQ(all().table_starts(1)[0], 3 - 1);
  EXPECT_EQ(all().table_starts(0)[1], 3 + 2);
}

TEST_F(StepMetadataGroupsTest, AWantedRowHasTheBlocksOfItsSequenceInEachGroup) {
  StepPlan plan;
  plan.rows.push_back({.tokens = {1}, .context_len = 3, .block_table = {6, 7}});
  plan.rows.push_back({.tokens = {1, 2},
                       .context_len = 9,
                       .block_table = {5, 3, 2, -1, 1, 4},
                       .sample = true,
                       .sampling = Context({1}, -1)});
  Build(plan, bounds_);
  ASSERT_EQ(wanted().num_seqs, 1);
  EXPECT_THAT(Blocks(wanted(), 0, 0, 0, 3), ElementsAre(5, 3, 2));
  EXPECT_THAT(Blocks(wanted(), 1, 0, 1, 2), ElementsAre(1, 4));
}

TEST_F(StepMetadataGroupsTest, PaddingWritesNowhereInAnyGroup) {
  StepPlan plan;
  for (const int32_t context : {9, 10, 8, 11}) {
    plan.rows.push_back({.tokens = {1},
                         .context_len = context,
                         .block_table = {5, 3, 2, 0, 1, 4},
                         .sample = true,
                         .sampling = Context({1}, -1)});
  }
  Build(plan, bounds_);
  plan.rows.resize(1);
  ASSERT_TRUE(batch_.Build(plan, bounds_, 4).ok());
  for (const int32_t group : {0, 1}) {
    EXPECT_GE(all().slots(group)[0], 0);
    for (int i = 1; i < 4; ++i) {
      EXPECT_EQ(all().slots(group)[i], -1);
      EXPECT_EQ(all().table_starts(group)[i], 0);
    }
  }
}

TEST_F(StepMetadataDeathTest, BlocksMayBeMissingOnlyBehindTheWindow) {
  StepBounds bounds = kBounds;
  bounds.windows = {6};
  const auto build = [&](int32_t context_len) {
    StepPlan plan;
    plan.rows.push_back(
        {.tokens = {1, 2}, .context_len = context_len, .block_table = {-1, 3, 2, 1}});
    Build(plan, bounds);
  };
  build(9);  // The query at position 9 sees from 4 on: the first block ends before.
  EXPECT_THAT(List(all().block_table, 4), ElementsAre(-1, 3, 2, 1));
  EXPECT_THAT(List(all().slots(0), 2), ElementsAre(9, 10));
  EXPECT_DEATH(build(8), "check failed");
}

TEST_F(StepMetadataDeathTest, RefusesPlansThatReachOutsideTheCacheOrTheRoom) {
  const auto build = [&](StepRow row) {
    StepPlan plan;
    plan.rows.push_back(std::move(row));
    Build(plan);
  };
  EXPECT_DEATH(build({.tokens = {1}, .block_table = {8}}), "check failed");
  EXPECT_DEATH(build({.tokens = {1}, .block_table = {-1}}), "check failed");
  EXPECT_DEATH(build({.tokens = {1}, .context_len = 40, .block_table = {-1}}), "check failed");
  EXPECT_DEATH(build({.tokens = {1}, .context_len = 4, .block_table = {1}}), "check failed");
  EXPECT_DEATH(build({.tokens = {100}, .block_table = {1}}), "check failed");
  EXPECT_DEATH(build({.tokens = {}, .block_table = {1}}), "check failed");
  EXPECT_DEATH(build({.tokens = {1}, .context_len = 64, .block_table = std::vector<BlockId>(17)}),
               "check failed");
  EXPECT_DEATH(build({.tokens = {1}, .block_table = std::vector<BlockId>(18)}), "max_row_blocks");
  StepPlan rows, tokens;
  rows.rows.resize(9, {.tokens = {1}, .block_table = {1}});
  EXPECT_DEATH(Build(rows), "max_rows");
  tokens.rows.resize(2, {.tokens = std::vector<int32_t>(33, 1),
                         .block_table = std::vector<BlockId>(9)});
  EXPECT_DEATH(Build(tokens), "max_tokens");
}

TEST(StepCapacityTest, TablesThatNoMemoryHoldsAreRefusedByOption) {
  const Processors processors = *MakeDevice({});
  const auto made = [&](int64_t rows, int64_t blocks) {
    return StepMetadata::Create(*processors.device,
                                {.max_tokens = 1, .max_rows = rows, .max_row_blocks = blocks})
        .status();
  };
  EXPECT_TRUE(made(64, 8192).ok());
  EXPECT_EQ(made(1 << 16, 1 << 16).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(made(1 << 16, 1 << 16).message(),
            "steps of 65536 sequences with 65536 blocks each are more than a step can hold: lower "
            "--max-batch-sequences or --max-model-len");
}

}  // namespace
}  // namespace baton
