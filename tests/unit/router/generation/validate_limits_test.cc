// Each limit at its last allowed value and one beyond, and each field on its way to the node.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "router/error.h"
#include "router/generation/validate.h"

namespace baton {
namespace {

using Change = std::function<void(GenerationRequest&)>;
using Ids = std::vector<int32_t>;

GenerationLimits Limits() {
  GenerationLimits limits{.max_model_len = 100, .vocab_size = 50, .max_output_tokens = 40};
  limits.max_stop_strings = 2;
  limits.max_stop_bytes = 4;
  limits.max_stop_token_ids = 3;
  limits.max_logprobs = 5;
  limits.max_label_bytes = 8;
  return limits;
}

absl::StatusOr<ValidRequest> Build(const Change& change) {
  GenerationRequest request{.prompts = {Prompt(Ids{1, 2, 3})}};
  change(request);
  if (absl::Status status = CheckRequest(request, Limits(), true); !status.ok()) return status;
  std::vector<Ids> prompts;
  for (const Prompt& prompt : request.prompts) prompts.push_back(std::get<Ids>(prompt));
  return BuildValidRequest(request, std::move(prompts), Limits(), {}, /*seed=*/99);
}

struct Limit {
  std::string param;
  Change last;
  Change beyond;
};

void ExpectLimits(const std::vector<Limit>& limits) {
  for (size_t i = 0; i < limits.size(); ++i) {
    SCOPED_TRACE(testing::Message() << limits[i].param << ", case " << i);
    const auto taken = Build(limits[i].last);
    EXPECT_TRUE(taken.ok()) << taken.status();
    const auto refused = Build(limits[i].beyond);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ErrorParam(refused.status()), limits[i].param) << refused.status();
  }
}

TEST(ValidateLimitsTest, TheLastAllowedSettingIsTakenAndTheNextIsRefusedByName) {
  ExpectLimits({
      {"temperature", [](auto& r) { r.temperature = 2; }, [](auto& r) { r.temperature = 2.001; }},
      {"temperature", [](auto& r) { r.temperature = 0; }, [](auto& r) { r.temperature = -1e-9; }},
      {"top_p", [](auto& r) { r.top_p = 1; }, [](auto& r) { r.top_p = 1.001; }},
      {"top_p", [](auto& r) { r.top_p = 1e-60; }, [](auto& r) { r.top_p = 0; }},
      {"min_p", [](auto& r) { r.min_p = 1; }, [](auto& r) { r.min_p = 1.001; }},
      {"min_p", [](auto& r) { r.min_p = 0; }, [](auto& r) { r.min_p = -0.001; }},
      {"frequency_penalty", [](auto& r) { r.frequency_penalty = -2; },
       [](auto& r) { r.frequency_penalty = -2.001; }},
      {"presence_penalty", [](auto& r) { r.presence_penalty = 2; },
       [](auto& r) { r.presence_penalty = 2.001; }},
      {"top_k", [](auto& r) { r.top_k = -1; }, [](auto& r) { r.top_k = -2; }},
      {"logprobs", [](auto& r) { r.logprobs = 5; }, [](auto& r) { r.logprobs = 6; }},
      {"prompt_logprobs", [](auto& r) { r.prompt_logprobs = 5; },
       [](auto& r) { r.prompt_logprobs = 6; }},
      {"request_id", [](auto& r) { r.label = "12345678"; }, [](auto& r) { r.label = "123456789"; }},
      {"stop", [](auto& r) { r.stop = {"a", "b"}; }, [](auto& r) { r.stop = {"a", "b", "c"}; }},
      {"stop", [](auto& r) { r.stop = {"abcd"}; }, [](auto& r) { r.stop = {"abcde"}; }},
      {"stop", [](auto& r) { r.stop = {"\xC3\xA9"}; }, [](auto& r) { r.stop = {"\xC3"}; }},
      {"stop_token_ids", [](auto& r) { r.stop_token_ids = {0, 1, 49}; },
       [](auto& r) { r.stop_token_ids = {0, 1, 2, 3}; }},
      {"stop_token_ids", [](auto& r) { r.stop_token_ids = {49}; },
       [](auto& r) { r.stop_token_ids = {50}; }},
      {"logit_bias", [](auto& r) { r.logit_bias = {{0, -100}, {49, 100}}; },
       [](auto& r) { r.logit_bias = {{49, 100.5f}}; }},
  });
}

TEST(ValidateLimitsTest, TheLastAllowedLengthIsTakenAndTheNextIsRefusedByName) {
  const auto prompts = [](size_t count, size_t length) {
    return [=](GenerationRequest& r) { r.prompts.assign(count, Prompt(Ids(length, 7))); };
  };
  const auto scored = [](size_t length) {
    return [=](GenerationRequest& r) {
      r.prompts = {Prompt(Ids(length, 7))};
      r.max_tokens = 0;
      r.echo = true;
    };
  };
  ExpectLimits({
      {"prompt", prompts(kMaxSequencesPerRequest, 4), prompts(kMaxSequencesPerRequest + 1, 4)},
      {"n",
       [](auto& r) {
         r.prompts.assign(2, Prompt(Ids{1}));
         r.n = kMaxSequencesPerRequest / 2;
       },
       [](auto& r) {
         r.prompts.assign(2, Prompt(Ids{1}));
         r.n = kMaxSequencesPerRequest / 2 + 1;
       }},
      {"prompt", [](auto& r) { r.prompts = {Prompt(Ids{0, 49})}; },
       [](auto& r) { r.prompts = {Prompt(Ids{0, 50})}; }},
      {"prompt", prompts(1, 99), prompts(1, 100)},
      {"prompt", scored(100), scored(101)},
      {"max_tokens", [](auto& r) { r.max_tokens = 40; }, [](auto& r) { r.max_tokens = 41; }},
      {"max_tokens",
       [](auto& r) {
         r.prompts = {Prompt(Ids(90, 7))};
         r.max_tokens = 10;
       },
       [](auto& r) {
         r.prompts = {Prompt(Ids(90, 7))};
         r.max_tokens = 11;
       }},
      {"min_tokens",
       [](auto& r) {
         r.max_tokens = 5;
         r.min_tokens = 5;
       },
       [](auto& r) {
         r.max_tokens = 5;
         r.min_tokens = 6;
       }},
  });
}

TEST(ValidateLimitsTest, EveryFieldReachesTheNodeAsItWasAsked) {
  const auto valid = Build([](GenerationRequest& r) {
    r.label = "mine";
    r.tenant = "t";
    r.temperature = 0.5;
    r.top_p = 0.25;
    r.min_p = 0.125;
    r.top_k = 7;
    r.repetition_penalty = 1.5;
    r.frequency_penalty = -1.5;
    r.presence_penalty = 1.25;
    r.seed = 12;
    r.max_tokens = 9;
    r.min_tokens = 3;
    r.n = 2;
    r.ignore_eos = true;
    r.logprobs = 4;
    r.prompt_logprobs = 2;
    r.logits_digests = true;
    r.priority = -5;
    r.timeout = std::chrono::seconds(30);
    r.bytes = 77;
  });
  ASSERT_TRUE(valid.ok()) << valid.status();
  const SamplingParams& s = valid->sampling;
  EXPECT_EQ(valid->label, "mine");
  EXPECT_EQ(valid->tenant, "t");
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_p, 0.25f);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.top_k, 7);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_EQ(s.frequency_penalty, -1.5f);
  EXPECT_EQ(s.presence_penalty, 1.25f);
  EXPECT_EQ(s.seed, 12u);
  EXPECT_EQ(s.max_tokens, 9);
  EXPECT_EQ(s.min_tokens, 3);
  EXPECT_EQ(valid->num_choices, 2);
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.num_logprobs, 4);
  EXPECT_EQ(s.num_prompt_logprobs, 2);
  EXPECT_TRUE(s.logits_digest);
  EXPECT_EQ(valid->priority, -5);
  EXPECT_EQ(valid->timeout, std::chrono::seconds(30));
  EXPECT_EQ(valid->bytes, 77);
  EXPECT_FALSE(valid->score_only);
}

TEST(ValidateLimitsTest, ATopPThatNoFloatHoldsIsTheSmallestOne) {
  const auto valid = Build([](GenerationRequest& r) { r.top_p = 1e-60; });
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_GT(valid->sampling.top_p, 0);
}

}  // namespace
}  // namespace baton
