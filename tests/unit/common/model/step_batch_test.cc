#include "common/model/step_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using testing::ElementsAre;

constexpr StepBounds kBounds = {
    .vocab_size = 100, .max_model_len = 64, .block_size = 4, .num_blocks = 8};

std::shared_ptr<SamplingContext> Context(std::vector<int32_t> prompt, int32_t prompt_logprobs) {
  auto context = std::make_shared<SamplingContext>();
  context->prompt = std::move(prompt);
  context->params.num_prompt_logprobs = prompt_logprobs;
  return context;
}

TEST(StepBatchTest, FlattensAPrefillChunkAndADecodeRow) {
  StepPlan plan;
  plan.rows.push_back({.tokens = {5, 6, 7}, .context_len = 2, .block_table = {3, 1}});
  plan.rows.push_back({.tokens = {9},
                       .context_len = 8,
                       .block_table = {0, 7, 5},
                       .sample = true,
                       .sampling = Context({1}, -1)});
  ForwardBatch batch;
  BuildForwardBatch(plan, kBounds, batch);
  EXPECT_THAT(batch.tokens, ElementsAre(5, 6, 7, 9));
  EXPECT_THAT(batch.positions, ElementsAre(2, 3, 4, 8));
  EXPECT_THAT(batch.slot_mapping, ElementsAre(14, 15, 4, 20));
  EXPECT_THAT(batch.cu_seqlens_q, ElementsAre(0, 3, 4));
  EXPECT_THAT(batch.seq_lens, ElementsAre(5, 9));
  EXPECT_EQ(batch.max_blocks, 3);
  EXPECT_THAT(batch.block_table, ElementsAre(3, 1, -1, 0, 7, 5));
  EXPECT_THAT(batch.logit_tokens, ElementsAre(3));
}

TEST(StepBatchTest, KeepsNothingOfThePlanBefore) {
  StepPlan large, small;
  large.rows.push_back({.tokens = {1, 2, 3, 4, 5}, .block_table = {1, 2}});
  small.rows.push_back({.tokens = {1}, .block_table = {6}});
  ForwardBatch batch, fresh;
  BuildForwardBatch(large, kBounds, batch);
  BuildForwardBatch(small, kBounds, batch);
  BuildForwardBatch(small, kBounds, fresh);
  EXPECT_EQ(batch.tokens, fresh.tokens);
  EXPECT_EQ(batch.block_table, fresh.block_table);
  EXPECT_EQ(batch.cu_seqlens_q, fresh.cu_seqlens_q);
  EXPECT_EQ(batch.seq_lens, fresh.seq_lens);
}

TEST(StepBatchTest, ScoresThePromptTokensThatFollowButNotWhatComesAfterThePrompt) {
  StepPlan plan;
  plan.rows.push_back({.tokens = {11, 12, 13},
                       .context_len = 1,
                       .block_table = {0},
                       .sample = true,
                       .sampling = Context({10, 11, 12, 13}, 0)});
  ForwardBatch batch;
  BuildForwardBatch(plan, kBounds, batch);
  EXPECT_TRUE(ScoresPrompt(plan.rows[0], 0));
  EXPECT_TRUE(ScoresPrompt(plan.rows[0], 1));
  EXPECT_FALSE(ScoresPrompt(plan.rows[0], 2));  // The last one is sampled, not scored.
  EXPECT_THAT(batch.logit_tokens, ElementsAre(0, 1, 2));
}

TEST(StepBatchDeathTest, BlocksMayBeMissingOnlyBehindTheWindow) {
  StepBounds bounds = kBounds;
  bounds.window = 6;
  ForwardBatch batch;
  const auto build = [&](int32_t context_len) {
    StepPlan plan;
    plan.rows.push_back(
        {.tokens = {1, 2}, .context_len = context_len, .block_table = {-1, 3, 2, 1}});
    BuildForwardBatch(plan, bounds, batch);
  };
  build(9);  // The query at position 9 sees from 4 on: the first block ends before.
  EXPECT_THAT(batch.block_table, ElementsAre(-1, 3, 2, 1));
  EXPECT_THAT(batch.slot_mapping, ElementsAre(9, 10));
  EXPECT_DEATH(build(8), "check failed");
}

TEST(StepBatchDeathTest, RefusesPlansThatReachOutsideTheCache) {
  ForwardBatch batch;
  const auto build = [&](StepRow row) {
    StepPlan plan;
    plan.rows.push_back(std::move(row));
    BuildForwardBatch(plan, kBounds, batch);
  };
  EXPECT_DEATH(build({.tokens = {1}, .block_table = {8}}), "check failed");
  EXPECT_DEATH(build({.tokens = {1}, .block_table = {-1}}), "check failed");
  EXPECT_DEATH(build({.tokens = {1}, .context_len = 40, .block_table = {-1}}), "check failed");
  EXPECT_DEATH(build({.tokens = {1}, .context_len = 4, .block_table = {1}}), "check failed");
  EXPECT_DEATH(build({.tokens = {100}, .block_table = {1}}), "check failed");
  EXPECT_DEATH(build({.tokens = {}, .block_table = {1}}), "check failed");
  EXPECT_DEATH(build({.tokens = {1}, .context_len = 64, .block_table = std::vector<BlockId>(17)}),
               "check failed");
}

}  // namespace
}  // namespace baton
