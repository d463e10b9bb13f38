#include "router/generation/token_details.h"

#include <gtest/gtest.h>

#include "tests/unit/router/generation/fakes.h"

namespace baton {
namespace {

TEST(TokenDetailsTest, ShowsHalfACharacterAsReplacementAndAsBytes) {
  const FakeTokenizer tokenizer;
  const TokenText token = DescribeToken(&tokenizer, FakeTokenizer::kEuroHead, -1);
  EXPECT_EQ(token.text, "\xEF\xBF\xBD");
  EXPECT_EQ(token.bytes, "\xE2\x82");
  EXPECT_EQ(DescribeToken(nullptr, 7, -1).text, "");
  EXPECT_EQ(DescribeToken(nullptr, 7, -1).id, 7);
}

TEST(TokenDetailsTest, KeepsIdsWithEqualTextApart) {
  const FakeTokenizer tokenizer;
  const TokenLogprobs token =
      DescribeOutput(&tokenizer,
                     {.token = FakeTokenizer::kTheA,
                      .top = {{FakeTokenizer::kTheA, -0.1f}, {FakeTokenizer::kTheB, -0.2f}}},
                     12);
  ASSERT_EQ(token.top.size(), 2u);
  EXPECT_EQ(token.top[0].text, token.top[1].text);
  EXPECT_NE(token.top[0].id, token.top[1].id);
  EXPECT_EQ(token.text_offset, 12);
}

TEST(TokenDetailsTest, HasOneEntryPerPromptTokenWhateverWasScored) {
  const FakeTokenizer tokenizer;
  const std::vector<int32_t> prompt = {FakeTokenizer::kBegin, FakeTokenizer::kTheA,
                                       FakeTokenizer::Byte('x')};
  const PromptLogprobs described =
      DescribePrompt(&tokenizer, prompt,
                     {{.position = 2, .token = prompt[2], .logprob = -3, .rank = 9},
                      {.position = 0, .token = 0},
                      {.position = 3, .token = 0}},
                     /*skip_special_tokens=*/true);
  ASSERT_EQ(described.tokens.size(), 3u);
  EXPECT_FALSE(described.tokens[0].has_logprob);
  EXPECT_FALSE(described.tokens[1].has_logprob);
  EXPECT_TRUE(described.tokens[2].has_logprob);
  EXPECT_EQ(described.tokens[2].rank, 9);
  EXPECT_EQ(described.tokens[1].text_offset, 0);
  EXPECT_EQ(described.tokens[2].text_offset, 3);
}

}  // namespace
}  // namespace baton
