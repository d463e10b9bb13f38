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
  const Json json = CompletionLogprobs({token}, {.top = 3});
  EXPECT_EQ(Dump(json),
            R"({"text_offset":[4],"token_logprobs":[-2.0],"tokens":["a"],"top_logprobs":)"
            R"([{"a":-2.0,"token_id:1":-0.5,"token_id:2":-1.0,"b":-1.5}]})");
}

TEST(LogprobsJsonTest, KeepsATokenWhoseTextLooksLikeAName) {
  TokenLogprobs token{.chosen = Token(3, -2, "a"),
                      .top = {Token(7, -0.5f, "token_id:1"), Token(1, -1, "a")}};
  EXPECT_EQ(CompletionLogprobs({token}, {.top = 2})["top_logprobs"][0].size(), 3u);
}

TEST(LogprobsJsonTest, HasNullForTheFirstTokenOfAPrompt) {
  TokenLogprobs first{.chosen = Token(3, 0, "a"), .has_logprob = false};
  const Json json = CompletionLogprobs({first}, {.top = 1});
  EXPECT_TRUE(json["token_logprobs"][0].is_null());
  EXPECT_TRUE(json["top_logprobs"][0].is_null());
  EXPECT_TRUE(PromptLogprobsById({first}, {.top = 1})[0].is_null());
}

TEST(LogprobsJsonTest, WritesInfinityAsANumber) {
  TokenLogprobs token{.chosen = Token(3, -std::numeric_limits<float>::infinity(), "a")};
  EXPECT_EQ(CompletionLogprobs({token}, {})["token_logprobs"][0], -9999.0);
}

TEST(LogprobsJsonTest, ListsExactlyTheAlternativesAskedForInChat) {
  TokenLogprobs token{.chosen = Token(3, -2, "\xE2\x82\xAC"),
                      .top = {Token(1, -0.5f, "a"), Token(2, -1, "a")}};
  const Json json = ChatLogprobs({token}, {.top = 2});
  EXPECT_EQ(
      Dump(json["content"][0]),
      "{\"token\":\"\xE2\x82\xAC\",\"logprob\":-2.0,\"bytes\":[226,130,172],\"top_logprobs\":"
      R"([{"token":"a","logprob":-0.5,"bytes":[97]},{"token":"a","logprob":-1.0,"bytes":[97]}]})");
  EXPECT_EQ(ChatLogprobs({token}, {.top = 0})["content"][0]["top_logprobs"].size(), 0u);
}

TEST(LogprobsJsonTest, NamesTokensByIdWithoutText) {
  TokenLogprobs token{.chosen = Token(3, -2, "")};
  EXPECT_EQ(CompletionLogprobs({token}, {.has_text = false})["tokens"][0], "token_id:3");
  EXPECT_TRUE(ChatLogprobs({token}, {.has_text = false})["content"][0]["bytes"].is_null());
}

}  // namespace
}  // namespace baton
