#include "common/model/sample_lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using testing::ElementsAre;

StepRow RowOf(SamplingParams params, std::vector<int32_t> prompt, std::vector<int32_t> emitted) {
  auto context = std::make_shared<SamplingContext>();
  context->params = std::move(params);
  context->prompt = std::move(prompt);
  const auto num_emitted = static_cast<int32_t>(emitted.size());
  return {.sampling = std::move(context),
          .emitted = std::move(emitted),
          .num_emitted = num_emitted};
}

TEST(SampleListsTest, EachRowPointsToItsOwnEntries) {
  SampleLists lists;
  const std::vector<int32_t> eos = {2, 3};
  lists.AddSample(RowOf({.repetition_penalty = 1.5f}, {10, 11}, {12}), 5, eos, 7);
  lists.AddSample(RowOf({.frequency_penalty = 1}, {20}, {21, 22}), 6, eos, 8);
  lists.AddSample(
      RowOf({.logit_bias = {{1, 2}}, .min_tokens = 9, .stop_token_ids = {4}}, {30}, {31}), 7, eos,
      9);
  lists.AddSample(RowOf({.logit_bias = {{5, 6}, {7, 8}}, .min_tokens = 1}, {40}, {}), 8, eos, 0);
  lists.AddScore(RowOf({.num_prompt_logprobs = 3}, {50, 51, 52}, {}), 1, 4);
  EXPECT_THAT(lists.history, ElementsAre(10, 11, 12, 21, 22));
  EXPECT_THAT(lists.masks, ElementsAre(2, 3, 4, 2, 3));
  ASSERT_EQ(lists.samples.size(), 4u);
  const SampleRow& repeats = lists.samples[0];
  EXPECT_EQ(repeats.logit_row, 7);
  EXPECT_EQ(repeats.key, MakeSampleRow({}, 5).key);
  EXPECT_EQ(repeats.num_prompt, 2);
  EXPECT_EQ(repeats.first_emitted, 2);
  EXPECT_EQ(repeats.num_emitted, 1);
  const SampleRow& counts = lists.samples[1];
  EXPECT_EQ(counts.num_prompt, 0);
  EXPECT_EQ(counts.first_emitted, 3);
  EXPECT_EQ(counts.num_emitted, 2);
  const SampleRow& masks = lists.samples[2];
  EXPECT_EQ(masks.num_bias, 1);
  EXPECT_EQ(masks.num_mask, 3);
  EXPECT_EQ(masks.num_emitted, 0);
  const SampleRow& biases = lists.samples[3];
  EXPECT_EQ(biases.first_bias, 1);
  EXPECT_EQ(biases.num_bias, 2);
  EXPECT_EQ(biases.first_mask, 3);
  EXPECT_EQ(biases.num_mask, 2);
  ASSERT_EQ(lists.scores.size(), 1u);
  EXPECT_EQ(lists.scores[0].token, 51);
  EXPECT_EQ(lists.scores[0].num_top, 3);
  EXPECT_EQ(lists.scores[0].logit_row, 4);
}

TEST(SampleListsTest, BytesAreThoseOfTheLists) {
  const std::vector<int32_t> eos = {2, 3};
  const auto expect = [&](const StepRow& row) {
    SampleLists lists;
    lists.AddSample(row, 1, eos, 0);
    EXPECT_EQ(ListBytes(row, eos), 8 * std::ssize(lists.biases) + 4 * std::ssize(lists.masks) +
                                       4 * std::ssize(lists.history));
  };
  expect(RowOf({}, {1, 2, 3}, {4, 5}));
  expect(RowOf({.repetition_penalty = 2}, {1, 2, 3}, {4, 5}));
  expect(RowOf({.presence_penalty = 1}, {1, 2, 3}, {4, 5}));
  expect(RowOf({.frequency_penalty = 1, .logit_bias = {{1, 1}}}, {1}, {4, 5}));
  expect(RowOf({.min_tokens = 9, .stop_token_ids = {7}}, {1}, {4, 5}));
}

TEST(SampleListsTest, EachPenaltyHasItsHistory) {
  const std::vector<SamplingParams> all = {
      {.repetition_penalty = 2}, {.presence_penalty = 1}, {.frequency_penalty = 1}};
  for (const SamplingParams& params : all) {
    SampleLists lists;
    lists.AddSample(RowOf(params, {10}, {12, 13}), 1, {}, 0);
    EXPECT_EQ(lists.samples[0].num_emitted, 2);
  }
}

TEST(SampleListsTest, TheModelsEndTokensMayBeTokensLikeOthers) {
  SampleLists lists;
  lists.AddSample(RowOf({.min_tokens = 1, .ignore_eos = true, .stop_token_ids = {4}}, {1}, {}), 1,
                  {2}, 0);
  EXPECT_THAT(lists.masks, ElementsAre(4));
  lists.Clear();
  lists.AddSample(RowOf({.min_tokens = 1}, {1}, {5}), 1, {2}, 0);
  EXPECT_TRUE(lists.masks.empty());
  EXPECT_EQ(lists.samples.size(), 1u);
}

}  // namespace
}  // namespace baton
