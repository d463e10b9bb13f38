#include "router/openai/api_request.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "router/error.h"

namespace baton {
namespace {

absl::StatusOr<ApiRequest> Completion(const std::string& fields) {
  return ParseCompletionRequest(*ParseJson("{\"prompt\":\"x\"" + fields + "}"));
}

absl::StatusOr<ApiRequest> Chat(const std::string& fields) {
  return ParseChatRequest(
      *ParseJson(R"({"messages":[{"role":"user","content":"x"}])" + fields + "}"));
}

TEST(ApiRequestTest, TakesEveryFormOfPrompt) {
  const auto prompts = [](const std::string& prompt) {
    return ParseCompletionRequest(*ParseJson("{\"prompt\":" + prompt + "}"))->generation.prompts;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(std::get<std::string>(prompts("\"a\"")[0]), "a");
  EXPECT_EQ(std::get<std::string>(prompts("[\"a\",\"b\"]")[1]), "b");
  EXPECT_EQ(std::get<Ids>(prompts("[1,2]")[0]), (Ids{1, 2}));
  EXPECT_EQ(std::get<Ids>(prompts("[[1],[2,3]]")[1]), (Ids{2, 3}));
}

TEST(ApiRequestTest, RefusesPromptsOfOtherTypes) {
  for (const char* prompt : {"null", "1", "true", "{}", "[]", "[null]", "[\"a\",1]", "[1,\"a\"]",
                             "[[1],\"a\"]", "[[\"a\"]]", "[1.5]", "[1.0]", "[-1]", "[2147483648]",
                             "[18446744073709551615]", "[[1],[[2]]]"}) {
    const auto request =
        ParseCompletionRequest(*ParseJson(std::string("{\"prompt\":") + prompt + "}"));
    EXPECT_EQ(ErrorParam(request.status()), "prompt") << prompt;
  }
  EXPECT_EQ(ErrorParam(ParseCompletionRequest(*ParseJson("{}")).status()), "prompt");
}

TEST(ApiRequestTest, ReadsEverySamplingField) {
  const auto request = Completion(
      R"(,"temperature":0.5,"top_k":3,"top_p":0.9,"min_p":0.1,"repetition_penalty":1.1,)"
      R"("frequency_penalty":0.2,"presence_penalty":-0.2,"logit_bias":{"7":-100,"3":1.5},)"
      R"("seed":-5,"max_tokens":9,"min_tokens":2,"n":2,"ignore_eos":true,"stop":["a","b"],)"
      R"("stop_token_ids":[4],"skip_special_tokens":false,"priority":-1,"user":"u",)"
      R"("request_id":"r-1","return_token_ids":true,"return_logits_digest":true,"best_of":2)");
  ASSERT_TRUE(request.ok()) << request.status();
  const GenerationRequest& g = request->generation;
  EXPECT_EQ(g.temperature, 0.5);
  EXPECT_EQ(g.top_k, 3);
  EXPECT_EQ(g.top_p, 0.9);
  EXPECT_EQ(g.min_p, 0.1);
  EXPECT_EQ(g.repetition_penalty, 1.1);
  EXPECT_EQ(g.frequency_penalty, 0.2);
  EXPECT_EQ(g.presence_penalty, -0.2);
  EXPECT_EQ(g.logit_bias, (std::vector<LogitBias>{{7, -100}, {3, 1.5}}));
  EXPECT_EQ(g.seed, -5);
  EXPECT_EQ(g.max_tokens, 9);
  EXPECT_EQ(g.min_tokens, 2);
  EXPECT_EQ(g.n, 2);
  EXPECT_TRUE(g.ignore_eos);
  EXPECT_EQ(g.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(g.stop_token_ids, (std::vector<int64_t>{4}));
  EXPECT_FALSE(g.skip_special_tokens);
  EXPECT_EQ(g.priority, -1);
  EXPECT_EQ(g.label, "r-1");
  EXPECT_TRUE(g.logits_digests);
  EXPECT_TRUE(request->return_token_ids);
  EXPECT_TRUE(request->generation.returns_prompt_ids);
}

TEST(ApiRequestTest, TakesNullUnknownAndNeutralValuesAsAbsent) {
  for (const char* fields :
       {R"(,"stop":null,"n":null,"logprobs":null,"stream":null,"stream_options":null,"seed":null)",
        R"(,"unheard_of":{"x":[1]},"another":1)", R"(,"suffix":null,"best_of":1)",
        R"(,"suffix":"","logprobs":false,"use_beam_search":false,"bad_words":[])"}) {
    EXPECT_TRUE(Completion(fields).ok()) << fields << Completion(fields).status();
  }
  for (const char* fields :
       {R"(,"tools":[],"tool_choice":"none","response_format":{"type":"text"})",
        R"(,"tools":null,"functions":[],"parallel_tool_calls":true,"modalities":["text"])",
        R"(,"logprobs":false,"top_logprobs":0,"store":true,"metadata":{},"service_tier":"auto")"}) {
    EXPECT_TRUE(Chat(fields).ok()) << fields << Chat(fields).status();
  }
}

TEST(ApiRequestTest, RefusesWrongTypesByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"temperature", "\"hot\""},
      {"temperature", "true"},
      {"top_p", "[]"},
      {"top_k", "1.5"},
      {"n", "\"2\""},
      {"n", "1e99"},
      {"seed", "9223372036854775808"},
      {"stop", "1"},
      {"stop", "[1]"},
      {"logit_bias", "[]"},
      {"logit_bias", "{\"a\":1}"},
      {"logit_bias", "{\"1\":\"x\"}"},
      {"logit_bias", "{\"99999999999\":1}"},
      {"max_tokens", "\"16\""},
      {"echo", "1"},
      {"logprobs", "true"},
      {"logprobs", "\"1\""},
      {"stream", "\"yes\""},
      {"stop_token_ids", "5"},
      {"stop_token_ids", "[\"a\"]"},
      {"ignore_eos", "0"},
      {"user", "5"},
      {"request_id", "5"},
      {"request_id", "\"a b\""},
      {"request_id", "\"a\\n\""},
      {"request_id", "\"a\\\"\""},
      {"request_id", "\"a\\\\\""},
      {"request_id", "\"a\x7f\""},
      {"request_id", "\"\xC3\xA9\""},
      {"priority", "\"high\""},
      {"model", "5"},
      {"min_tokens", "[]"},
      {"best_of", "3"},
      {"suffix", "\"tail\""},
      {"return_token_ids", "1"},
      {"stream_options", "{}"},
      {"add_special_tokens", "\"no\""}};
  for (const auto& [name, value] : cases) {
    const auto request = Completion(",\"" + name + "\":" + value);
    EXPECT_EQ(ErrorParam(request.status()), name) << value;
  }
}

TEST(ApiRequestTest, ReadsStreamOptions) {
  const auto request = Completion(
      R"(,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  EXPECT_TRUE(request->include_usage);
  EXPECT_TRUE(request->continuous_usage);
  EXPECT_EQ(
      ErrorParam(Completion(R"(,"stream":true,"stream_options":{"include_usage":1})").status()),
      "stream_options.include_usage");
  EXPECT_EQ(ErrorParam(Completion(R"(,"stream":true,"stream_options":[])").status()),
            "stream_options");
}

TEST(ApiRequestTest, AsksForPromptScoresWithEchoAndLogprobs) {
  EXPECT_EQ(Completion(R"(,"logprobs":3)")->generation.prompt_logprobs, std::nullopt);
  EXPECT_EQ(Completion(R"(,"logprobs":3,"echo":true)")->generation.prompt_logprobs, 3);
  EXPECT_EQ(Completion(R"(,"echo":true)")->generation.prompt_logprobs, std::nullopt);
}

TEST(ApiRequestTest, ScoresOfThePromptAreThoseThatEitherFieldAsksFor) {
  const auto both = Completion(R"(,"logprobs":3,"echo":true,"prompt_logprobs":5)");
  EXPECT_EQ(both->generation.prompt_logprobs, 5);
  EXPECT_EQ(both->top_prompt_logprobs, 5);
  const auto echoed = Completion(R"(,"logprobs":3,"echo":true,"prompt_logprobs":1)");
  EXPECT_EQ(echoed->generation.prompt_logprobs, 3);
  EXPECT_EQ(echoed->top_prompt_logprobs, 1);
  EXPECT_EQ(Completion(R"(,"logprobs":3,"echo":true)")->top_prompt_logprobs, -1);
  EXPECT_EQ(ErrorParam(Completion(R"(,"prompt_logprobs":1,"stream":true)").status()),
            "prompt_logprobs");
}

TEST(ApiRequestTest, ABiasOfAnySizeStaysANumberThatCanBeNamed) {
  const auto request = Completion(R"(,"logit_bias":{"7":1e300,"8":-1e300})");
  EXPECT_EQ(request->generation.logit_bias, (std::vector<LogitBias>{{7, 1e6}, {8, -1e6}}));
}

TEST(ApiRequestTest, TakesBestOfWhereItChangesNothing) {
  EXPECT_TRUE(Completion(R"(,"n":2,"best_of":1)").ok());
  EXPECT_TRUE(Completion(R"(,"n":2,"best_of":2)").ok());
  EXPECT_EQ(ErrorParam(Completion(R"(,"n":2,"best_of":3)").status()), "best_of");
}

TEST(ApiRequestTest, PrefersMaxCompletionTokensInChat) {
  EXPECT_EQ(Chat(R"(,"max_tokens":5)")->generation.max_tokens, 5);
  const auto both = Chat(R"(,"max_tokens":5,"max_completion_tokens":7)");
  EXPECT_EQ(both->generation.max_tokens, 7);
  EXPECT_EQ(both->generation.max_tokens_param, "max_completion_tokens");
  EXPECT_EQ(Chat("")->generation.max_tokens, std::nullopt);
  EXPECT_EQ(Chat("")->generation.default_max_tokens, std::nullopt);
  EXPECT_EQ(Completion("")->generation.default_max_tokens, 16);
}

TEST(ApiRequestTest, NeedsLogprobsForTopLogprobs) {
  EXPECT_EQ(Chat(R"(,"logprobs":true,"top_logprobs":4)")->generation.logprobs, 4);
  EXPECT_EQ(Chat(R"(,"logprobs":true)")->generation.logprobs, 0);
  EXPECT_EQ(Chat(R"(,"logprobs":true)")->generation.logprobs_param, "top_logprobs");
  EXPECT_EQ(ErrorParam(Chat(R"(,"top_logprobs":4)").status()), "top_logprobs");
  EXPECT_EQ(ErrorParam(Chat(R"(,"logprobs":1)").status()), "logprobs");
}

TEST(ApiRequestTest, RefusesBodiesThatAreNoObjects) {
  for (const char* body : {"[]", "1", "null", "\"x\""}) {
    EXPECT_FALSE(ParseCompletionRequest(*ParseJson(body)).ok());
    EXPECT_FALSE(ParseChatRequest(*ParseJson(body)).ok());
  }
}

}  // namespace
}  // namespace baton
