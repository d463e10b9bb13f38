// Eight choices of a prompt of 2,000 tokens cost a decode worker little more than one.

#include "tests/bench/choices_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using bench::ChoicesCost;
using bench::CountChoices;

constexpr int32_t kN = 8;

TEST(ChoicesCostTest, OfEightChoicesThePromptIsSentOnceAndHeldOnce) {
  const ChoicesCost one = CountChoices({.num_choices = 1});
  const ChoicesCost all = CountChoices({.num_choices = kN});
  // 125 full blocks and one for the answer; the last of the full ones is each choice's own, for the
  // logits of its last token.
  EXPECT_EQ(one.peak_blocks, 126);
  EXPECT_EQ(all.peak_blocks, 124 + kN * 2);
  EXPECT_LE(all.peak_blocks, 1.15 * one.peak_blocks);
  EXPECT_EQ(one.sent_bytes, int64_t{2000} * 32 * 2 * 8 * 128 * 2);
  EXPECT_EQ(all.sent_bytes, one.sent_bytes);
  // What is behind the full blocks is copied, and computed is the last token.
  EXPECT_EQ(one.computed_tokens, 3);
  EXPECT_EQ(all.computed_tokens, 3 + (kN - 1) * 4);
  EXPECT_EQ(all.copied_tokens, (kN - 1) * 15);
}

TEST(ChoicesCostTest, WhereAPromptEndsWithinABlockEachChoiceHasOneOfItsOwn) {
  const ChoicesCost one = CountChoices({.num_choices = 1, .prompt_length = 2007});
  const ChoicesCost all = CountChoices({.num_choices = kN, .prompt_length = 2007});
  EXPECT_EQ(one.peak_blocks, 126);
  EXPECT_EQ(all.peak_blocks, 125 + kN);
  EXPECT_EQ(all.sent_bytes, one.sent_bytes);
  EXPECT_EQ(all.copied_tokens, (kN - 1) * 6);
}

TEST(ChoicesCostTest, EachForItselfTheyCostEightTimesAsMuch) {
  const ChoicesCost one = CountChoices({.num_choices = 1});
  const ChoicesCost apart = CountChoices({.num_choices = kN, .shared = false});
  EXPECT_EQ(apart.peak_blocks, kN * one.peak_blocks);
  EXPECT_EQ(apart.sent_bytes, kN * one.sent_bytes);
  EXPECT_EQ(apart.copied_tokens, 0);
}

}  // namespace
}  // namespace baton
