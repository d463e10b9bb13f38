#include "router/generation/token_scores.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TokenScores::Token Token(int32_t id, const std::vector<TokenLogprob>& top) {
  return {.chosen = {.token = id, .logprob = -0.5f * static_cast<float>(id)},
          .rank = id,
          .text_offset = 10 * id,
          .top = top};
}

TEST(TokenScoresTest, GivesBackWhatWasAdded) {
  const std::vector<TokenLogprob> top = {{7, -1}, {8, -2}};
  TokenScores scores;
  EXPECT_TRUE(scores.empty());
  scores.Add({.chosen = {.token = 4}, .has_logprob = false});
  scores.Add(Token(1, top));
  scores.Add(Token(0, {}));
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_FALSE(scores[0].has_logprob);
  EXPECT_EQ(scores[0].chosen.token, 4);
  EXPECT_TRUE(scores[1].has_logprob);
  EXPECT_EQ(scores[1].chosen.logprob, -0.5f);
  EXPECT_EQ(scores[1].rank, 1);
  EXPECT_EQ(scores[1].text_offset, 10);
  EXPECT_EQ(std::vector(scores[1].top.begin(), scores[1].top.end()), top);
  EXPECT_TRUE(scores[2].has_logprob);  // Of rank 0: not a prompt's.
  EXPECT_TRUE(scores[2].top.empty());
}

TEST(TokenScoresTest, SplitsAndJoins) {
  const std::vector<TokenLogprob> top = {{7, -1}, {8, -2}};
  TokenScores scores;
  for (int32_t id = 0; id < 5; ++id) scores.Add(Token(id, id % 2 == 0 ? top : top));
  TokenScores first = scores.Slice(0, 2);
  const TokenScores rest = scores.Slice(2, 9);
  ASSERT_EQ(first.size(), 2u);
  ASSERT_EQ(rest.size(), 3u);
  EXPECT_EQ(first[1].chosen.token, 1);
  EXPECT_EQ(rest[0].chosen.token, 2);
  EXPECT_EQ(rest[2].top[1].token, 8);
  first.Append(rest);
  ASSERT_EQ(first.size(), 5u);
  for (int32_t id = 0; id < 5; ++id) {
    EXPECT_EQ(first[id].chosen.token, id);
    EXPECT_EQ(first[id].top[0].token, 7);
  }
  EXPECT_TRUE(first.Slice(5, 9).empty());
}

}  // namespace
}  // namespace baton
