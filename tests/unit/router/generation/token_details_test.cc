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
  const std::vector<TokenLogprob> top = {{FakeTokenizer::kTheA, -0.1f},
                                         {FakeTokenizer::kTheB, -0.2f}};
  const TokenLogprobs token =
      DescribeScores(&tokenizer, {.chosen = {.token = FakeTokenizer::kTheA, .logprob = -0.5f},
                                  .rank = 3,
                                  .text_offset = 12,
                                  .top = top});
  ASSERT_EQ(token.top.size(), 2u);
  EXPECT_EQ(token.top[0].text, token.top[1].text);
  EXPECT_NE(token.top[0].id, token.top[1].id);
  EXPECT_EQ(token.chosen.logprob, -0.5f);
  EXPECT_EQ(token.rank, 3);
  EXPECT_EQ(token.text_offset, 12);
}

TEST(TokenDetailsTest, CollectsOneEntryPerPromptTokenPieceByPiece) {
  const FakeTokenizer tokenizer;
  const std::vector<int32_t> prompt = {FakeTokenizer::kBegin, FakeTokenizer::kTheA,
                                       FakeTokenizer::Byte('x')};
  PromptScorer scorer(prompt, 2, tokenizer.NewStreamDecoder(/*skip_special_tokens=*/true));
  EXPECT_FALSE(scorer.complete());
  EXPECT_FALSE(scorer.Add({{.position = 2}}));
  EXPECT_TRUE(scorer.Add({{.position = 1, .logprob = -2, .top = {{5, -1}, {6, -3}}}}));
  EXPECT_FALSE(scorer.Add({{.position = 1}}));
  EXPECT_FALSE(scorer.complete());
  EXPECT_TRUE(scorer.Add({{.position = 2, .logprob = -3, .rank = 9}}));
  EXPECT_TRUE(scorer.complete());
  EXPECT_FALSE(scorer.Add({{.position = 3}}));
  const auto scores = scorer.Finish();
  ASSERT_EQ(scores->size(), 3u);
  EXPECT_FALSE((*scores)[0].has_logprob);
  EXPECT_EQ((*scores)[0].chosen.token, FakeTokenizer::kBegin);
  EXPECT_EQ((*scores)[1].top.size(), 2u);
  EXPECT_EQ((*scores)[1].top[1].token, 6);
  EXPECT_EQ((*scores)[2].chosen.token, prompt[2]);
  EXPECT_EQ((*scores)[2].rank, 9);
  EXPECT_EQ((*scores)[1].text_offset, 0);
  EXPECT_EQ((*scores)[2].text_offset, 3);
}

TEST(TokenDetailsTest, APromptOfOneTokenIsCompleteAtOnce) {
  EXPECT_TRUE(PromptScorer({5}, 0, nullptr).complete());
}

}  // namespace
}  // namespace baton
