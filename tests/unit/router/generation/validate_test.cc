#include "router/generation/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "router/error.h"

namespace baton {
namespace {

constexpr GenerationLimits kLimits{.max_model_len = 100, .vocab_size = 50};

GenerationRequest Request() { return {.prompts = {Prompt(std::vector<int32_t>{1, 2, 3})}}; }

absl::StatusOr<ValidRequest> Build(const GenerationRequest& request,
                                   const GenerationConfig& defaults = {}) {
  if (absl::Status status = CheckRequest(request, kLimits, true); !status.ok()) return status;
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
      {"n", [](auto& r) { r.n = kMaxSequencesPerRequest + 1; }},
      {"n",
       [](auto& r) {
         r.prompts.push_back(r.prompts[0]);
         r.n = kMaxSequencesPerRequest / 2 + 1;
       }},
      {"prompt", [](auto& r) { r.prompts.assign(kMaxSequencesPerRequest + 1, r.prompts[0]); }},
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

TEST(ValidateTest, TakesAsManySequencesAsTheSchedulerDoes) {
  GenerationRequest request = Request();
  request.prompt_param = "messages";
  request.n = kMaxSequencesPerRequest;
  const auto valid = Build(request);
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->num_choices, kMaxSequencesPerRequest);
  EXPECT_EQ(valid->prompt_param, "messages");
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

// Limits of a model that takes long prompts.
constexpr GenerationLimits kLarge{.max_model_len = 2'000'000, .vocab_size = 50};

absl::StatusOr<ValidRequest> BuildLarge(const GenerationRequest& request, size_t prompt_tokens,
                                        size_t num_prompts = 1) {
  if (absl::Status status = CheckRequest(request, kLarge, true); !status.ok()) return status;
  std::vector<std::vector<int32_t>> prompts(num_prompts, std::vector<int32_t>(prompt_tokens, 1));
  return BuildValidRequest(request, std::move(prompts), kLarge, {}, /*seed=*/99);
}

TEST(ValidateTest, BoundsTheLogProbabilitiesOfAnAnswerByAllThatMultipliesThem) {
  // 128 choices of 2,000 scored tokens with 20 alternatives.
  GenerationRequest request = Request();
  request.echo = true;
  request.max_tokens = 0;
  request.logprobs = 20;
  request.prompt_logprobs = 20;
  request.n = 128;
  const absl::Status status = BuildLarge(request, 2000).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(ErrorParam(status), "logprobs");
  EXPECT_EQ(status.message(),
            "logprobs is 20, which asks for 5376000 log probabilities: (2000 tokens of prompt x "
            "21) x n 128, where each token has its own and its alternatives; at most 1000000 are "
            "allowed. Ask for fewer alternatives, tokens or choices, or send several requests.");
  request.n = 23;
  EXPECT_TRUE(BuildLarge(request, 2000).ok());
  request.n = 24;
  EXPECT_FALSE(BuildLarge(request, 2000).ok());
}

TEST(ValidateTest, TheBoundOfLogProbabilitiesIsExactForEachFactor) {
  struct Case {
    size_t prompt_tokens;
    size_t num_prompts;
    std::optional<int64_t> prompt_logprobs, logprobs, max_tokens, n;
    bool fits;
  };
  const std::vector<Case> cases = {
      {1'000'000, 1, 0, {}, 1, {}, true},        {1'000'001, 1, 0, {}, 1, {}, false},
      {500'000, 1, 1, {}, 1, {}, true},          {500'001, 1, 1, {}, 1, {}, false},
      {500'000, 1, 0, {}, 1, 2, true},           {500'001, 1, 0, {}, 1, 2, false},
      {500'000, 2, 0, {}, 1, {}, true},          {500'001, 2, 0, {}, 1, {}, false},
      {5, 1, {}, 0, 1'000'000, {}, true},        {5, 1, {}, 0, 1'000'001, {}, false},
      {5, 1, {}, 3, 250'000, {}, true},          {5, 1, {}, 3, 250'001, {}, false},
      {5, 1, {}, 0, 250'000, 4, true},           {5, 1, {}, 0, 250'001, 4, false},
      {5, 2, {}, 0, 250'000, 2, true},           {5, 2, {}, 0, 250'001, 2, false},
      {400'000, 1, 0, 1, 300'000, {}, true},     {400'001, 1, 0, 1, 300'000, {}, false},
      {1'500'000, 1, {}, {}, 400'000, 1, true},
  };
  for (const Case& c : cases) {
    GenerationRequest request = Request();
    request.prompt_logprobs = c.prompt_logprobs;
    request.logprobs = c.logprobs;
    request.max_tokens = c.max_tokens;
    request.n = c.n;
    const absl::Status status = BuildLarge(request, c.prompt_tokens, c.num_prompts).status();
    EXPECT_EQ(status.ok(), c.fits) << c.prompt_tokens << " " << *c.max_tokens << ": " << status;
    if (!c.fits) {
      EXPECT_EQ(ErrorParam(status), c.logprobs.has_value() ? "logprobs" : "prompt_logprobs");
    }
  }
}

TEST(ValidateTest, ADefaultGivesWayToTheBoundOfLogProbabilities) {
  GenerationRequest request = Request();
  request.logprobs = 19;
  request.n = 5;
  const auto valid = BuildLarge(request, 10);
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->sampling.max_tokens, 10'000);
  request.prompt_logprobs = 9;
  EXPECT_EQ(BuildLarge(request, 10'000)->sampling.max_tokens, 5'000);
  EXPECT_EQ(BuildLarge(request, 19'998)->sampling.max_tokens, 1);
  EXPECT_FALSE(BuildLarge(request, 19'999).ok());  // The prompt alone is too much.
  request = Request();
  request.default_max_tokens = 16;
  EXPECT_EQ(BuildLarge(request, 10)->sampling.max_tokens, 16);
  request.logprobs = 5;
  EXPECT_EQ(BuildLarge(request, 10)->sampling.max_tokens, 16);
}

TEST(ValidateTest, BoundsTheBiasesThatEachChoiceCarries) {
  GenerationRequest request = Request();
  GenerationLimits limits = kLarge;
  limits.vocab_size = 10'000;
  for (int32_t token = 0; token < 4096; ++token) request.logit_bias.push_back({token, 1});
  EXPECT_TRUE(CheckRequest(request, limits, true).ok());
  request.logit_bias.push_back({5000, 1});
  EXPECT_EQ(ErrorParam(CheckRequest(request, limits, true)), "logit_bias");
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
