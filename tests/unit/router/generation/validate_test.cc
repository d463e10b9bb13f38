#include "router/generation/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "router/generation/error.h"

namespace baton {
namespace {

constexpr GenerationLimits kLimits{.max_model_len = 100, .vocab_size = 50};

GenerationRequest Request() { return {.prompts = {Prompt(std::vector<int32_t>{1, 2, 3})}}; }

absl::StatusOr<ValidRequest> Build(const GenerationRequest& request,
                                   const GenerationConfig& defaults = {}) {
  if (absl::Status status = CheckRequest(request, kLimits, true); !status.ok()) {
    return status;
  }
  std::vector<std::vector<int32_t>> prompts;
  for (const Prompt& prompt : request.prompts) {
    prompts.push_back(std::get<std::vector<int32_t>>(prompt));
  }
  return BuildValidRequest(request, std::move(prompts), kLimits, defaults, /*seed=*/99);
}

TEST(ValidateTest, NamesTheFieldThatIsOutOfRange) {
  using Change = std::function<void(GenerationRequest&)>;
  const std::vector<std::pair<std::string, Change>> cases = {
      {"temperature", [](auto& r) { r.temperature = -0.1; }},
      {"temperature", [](auto& r) { r.temperature = 2.1; }},
      {"temperature", [](auto& r) { r.temperature = std::nan(""); }},
      {"top_p", [](auto& r) { r.top_p = 0; }},
      {"top_p", [](auto& r) { r.top_p = 1.5; }},
      {"top_k", [](auto& r) { r.top_k = -2; }},
      {"min_p", [](auto& r) { r.min_p = 1.1; }},
      {"repetition_penalty", [](auto& r) { r.repetition_penalty = 0; }},
      {"repetition_penalty", [](auto& r) { r.repetition_penalty = 1e-60; }},
      {"frequency_penalty", [](auto& r) { r.frequency_penalty = 2.5; }},
      {"presence_penalty", [](auto& r) { r.presence_penalty = -2.5; }},
      {"logit_bias",
       [](auto& r) {
         r.logit_bias = {{50, 1}};
       }},
      {"logit_bias",
       [](auto& r) {
         r.logit_bias = {{5, 101}};
       }},
      {"logit_bias",
       [](auto& r) {
         r.logit_bias = {{5, 1}, {5, 2}};
       }},
      {"n", [](auto& r) { r.n = 0; }},
      {"n", [](auto& r) { r.n = 1000; }},
      {"max_tokens", [](auto& r) { r.max_tokens = 0; }},
      {"max_tokens", [](auto& r) { r.max_tokens = 98; }},
      {"max_tokens", [](auto& r) { r.max_tokens = INT64_MAX; }},
      {"min_tokens", [](auto& r) { r.min_tokens = -1; }},
      {"min_tokens", [](auto& r) { r.min_tokens = 20, r.max_tokens = 10; }},
      {"stop", [](auto& r) { r.stop = {""}; }},
      {"stop", [](auto& r) { r.stop = {std::string(257, 'x')}; }},
      {"stop", [](auto& r) { r.stop.assign(17, "x"); }},
      {"stop_token_ids", [](auto& r) { r.stop_token_ids = {50}; }},
      {"stop_token_ids", [](auto& r) { r.stop_token_ids = {-1}; }},
      {"logprobs", [](auto& r) { r.logprobs = 21; }},
      {"prompt_logprobs", [](auto& r) { r.prompt_logprobs = -1; }},
      {"request_id", [](auto& r) { r.label = std::string(129, 'x'); }},
      {"prompt", [](auto& r) { r.prompts.clear(); }},
      {"prompt", [](auto& r) { r.prompts = {Prompt(std::vector<int32_t>{})}; }},
      {"prompt", [](auto& r) { r.prompts = {Prompt(std::vector<int32_t>{50})}; }},
      {"prompt", [](auto& r) { r.prompts = {Prompt(std::vector<int32_t>{-1})}; }},
      {"prompt", [](auto& r) { r.prompts = {Prompt(std::vector<int32_t>(100, 1))}; }},
  };
  for (const auto& [param, change] : cases) {
    GenerationRequest request = Request();
    change(request);
    const auto valid = Build(request);
    ASSERT_FALSE(valid.ok()) << param;
    EXPECT_EQ(valid.status().code(), absl::StatusCode::kInvalidArgument) << param;
    EXPECT_EQ(ErrorParam(valid.status()), param) << valid.status();
  }
}

TEST(ValidateTest, SaysTheLargestMaxTokensThatFits) {
  GenerationRequest request = Request();
  request.max_tokens = 98;
  const auto valid = Build(request);
  EXPECT_EQ(ErrorCode(valid.status()), "context_length_exceeded");
  for (const char* part : {"98", "3 tokens", "100", "at most 97"}) {
    EXPECT_NE(valid.status().message().find(part), absl::string_view::npos) << valid.status();
  }
  request.max_tokens = 97;
  EXPECT_TRUE(Build(request).ok());
}

TEST(ValidateTest, TakesDefaultsFromTheRequestThenTheModelThenOpenAi) {
  GenerationConfig model;
  model.temperature = 0.6f;
  model.top_k = 20;
  GenerationRequest request = Request();
  request.top_k = 5;
  request.default_max_tokens = 16;
  auto valid = Build(request, model);
  ASSERT_TRUE(valid.ok());
  EXPECT_FLOAT_EQ(valid->sampling.temperature, 0.6f);
  EXPECT_EQ(valid->sampling.top_k, 5);
  EXPECT_EQ(valid->sampling.top_p, 1);
  EXPECT_EQ(valid->sampling.max_tokens, 16);
  EXPECT_EQ(valid->sampling.seed, 99u);
  EXPECT_EQ(valid->timeout, kLimits.default_timeout);
}

TEST(ValidateTest, FillsTheModelsLengthWithoutMaxTokens) {
  auto valid = Build(Request());
  ASSERT_TRUE(valid.ok());
  EXPECT_EQ(valid->sampling.max_tokens, 97);
  GenerationRequest request = Request();
  request.prompts = {Prompt(std::vector<int32_t>(95, 1))};
  request.default_max_tokens = 16;
  EXPECT_EQ(Build(request)->sampling.max_tokens, 5);
}

TEST(ValidateTest, ScoresAPromptThatFillsTheModel) {
  GenerationRequest request = Request();
  request.prompts = {Prompt(std::vector<int32_t>(100, 1))};
  request.max_tokens = 0;
  request.echo = true;
  const auto valid = Build(request);
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_TRUE(valid->score_only);
}

TEST(ValidateTest, SortsWhatTheSchedulerWantsSorted) {
  GenerationRequest request = Request();
  request.logit_bias = {{9, 1}, {2, -1}};
  request.stop_token_ids = {7, 3, 7};
  request.top_k = 50;
  request.seed = -1;
  const auto valid = Build(request);
  ASSERT_TRUE(valid.ok());
  EXPECT_EQ(valid->sampling.logit_bias, (std::vector<LogitBias>{{2, -1}, {9, 1}}));
  EXPECT_EQ(valid->sampling.stop_token_ids, (std::vector<int32_t>{3, 7}));
  EXPECT_EQ(valid->sampling.top_k, 0);
  EXPECT_EQ(valid->sampling.seed, ~uint64_t{0});
}

TEST(ValidateTest, RefusesTextWithoutATokenizer) {
  GenerationRequest request{.prompts = {Prompt(std::string("text"))}};
  EXPECT_EQ(ErrorParam(CheckRequest(request, kLimits, false)), "prompt");
  request = Request();
  request.stop = {"x"};
  EXPECT_EQ(ErrorParam(CheckRequest(request, kLimits, false)), "stop");
}

}  // namespace
}  // namespace baton
