#include "router/openai/logprobs_json.h"

#include <gtest/gtest.h>

#include <limits>

namespace baton {
namespace {

TokenText Token(int32_t id, float logprob, std::string text) {
  return {.id = id, .logprob = logprob, .text = text, .bytes = text};
}

TEST(LogprobsJsonTest, NeverMergesIdsWithEqualText) {
  TokenLogprobs token{.chosen = Token(3, -2, "a"),
                      .top = {Token(1, -0.5f, "a"), Token(2, -1, "a"), Token(9, -1.5f, "b")},
                      .text_offset = 4};
  EXPECT_EQ(Dump(CompletionTop(token, {.top = 3})),
            R"({"a":-2.0,"token_id:1":-0.5,"token_id:2":-1.0,"b":-1.5})");
}

TEST(LogprobsJsonTest, KeepsATokenWhoseTextLooksLikeAName) {
  TokenLogprobs token{.chosen = Token(3, -2, "a"),
                      .top = {Token(7, -0.5f, "token_id:1"), Token(1, -1, "a")}};
  EXPECT_EQ(CompletionTop(token, {.top = 2}).size(), 3u);
}

TEST(LogprobsJsonTest, HasNullForTheFirstTokenOfAPrompt) {
  TokenLogprobs first{.chosen = Token(3, 0, "a"), .has_logprob = false};
  EXPECT_TRUE(CompletionTop(first, {.top = 1}).is_null());
  EXPECT_TRUE(PromptItem(first, {.top = 1}).is_null());
}

TEST(LogprobsJsonTest, WritesInfinityAsANumber) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(LogprobText(-infinity), "-9999.0");
  EXPECT_EQ(LogprobText(std::numeric_limits<float>::quiet_NaN()), "-9999.0");
  EXPECT_EQ(LogprobText(-0.5f), "-0.5");
  EXPECT_EQ(CompletionTop({.chosen = Token(3, -infinity, "a")}, {})["a"], -9999.0);
}

TEST(LogprobsJsonTest, ListsExactlyTheAlternativesAskedForInChat) {
  TokenLogprobs token{.chosen = Token(3, -2, "\xE2\x82\xAC"),
                      .top = {Token(1, -0.5f, "a"), Token(2, -1, "a")}};
  EXPECT_EQ(
      Dump(ChatItem(token, {.top = 2})),
      "{\"token\":\"\xE2\x82\xAC\",\"logprob\":-2.0,\"bytes\":[226,130,172],\"top_logprobs\":"
      R"([{"token":"a","logprob":-0.5,"bytes":[97]},{"token":"a","logprob":-1.0,"bytes":[97]}]})");
  EXPECT_EQ(ChatItem(token, {.top = 0})["top_logprobs"].size(), 0u);
  EXPECT_EQ(ChatItem(token, {.top = -1})["top_logprobs"].size(), 0u);
}

TEST(LogprobsJsonTest, APromptsTokenHasItsOwnRankAmongTheLikeliest) {
  TokenLogprobs token{.chosen = Token(2, -1, "b"),
                      .rank = 2,
                      .top = {Token(1, -0.5f, "a"), Token(2, -1, "b"), Token(3, -2, "c")}};
  EXPECT_EQ(Dump(PromptItem(token, {.top = 1})),
            R"({"1":{"logprob":-0.5,"rank":1,"decoded_token":"a"},)"
            R"("2":{"logprob":-1.0,"rank":2,"decoded_token":"b"}})");
  EXPECT_EQ(PromptItem(token, {.top = 2}).size(), 2u);
}

TEST(LogprobsJsonTest, NamesTokensByIdWithoutText) {
  TokenLogprobs token{.chosen = Token(3, -2, "")};
  EXPECT_EQ(TokenName(token.chosen, {.has_text = false}), "token_id:3");
  EXPECT_TRUE(ChatItem(token, {.has_text = false})["bytes"].is_null());
}

}  // namespace
}  // namespace baton
