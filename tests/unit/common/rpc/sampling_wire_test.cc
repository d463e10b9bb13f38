#include "common/rpc/sampling_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "tests/unit/common/rpc/wire_samples.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(SamplingWireTest, SamplingParamsSurviveARoundTrip) {
  WireSamples samples(1);
  for (int i = 0; i < 200; ++i) {
    const SamplingParams params = samples.Sampling();
    v1::SamplingParams proto;
    ToProto(params, &proto);
    const auto back = FromProto(proto, kLimits);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, params);
  }
}

TEST(SamplingWireTest, OutputsSurviveARoundTrip) {
  WireSamples samples(2);
  for (int i = 0; i < 200; ++i) {
    const TokenOutput output = samples.Output(samples.Int(1, 511));
    v1::TokenOutput proto;
    ToProto(output, &proto);
    const auto back = FromProto(proto, kLimits);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, output);
    const PromptLogprob logprob = samples.Prompt(samples.Int(1, 511));
    v1::PromptLogprob prompt;
    ToProto(logprob, &prompt);
    const auto prompt_back = FromProto(prompt, kLimits);
    ASSERT_TRUE(prompt_back.ok()) << prompt_back.status();
    EXPECT_EQ(*prompt_back, logprob);
  }
}

TEST(SamplingWireTest, RefusesEachSamplingFieldOutOfRangeByName) {
  struct Case {
    const char* field;
    std::function<void(v1::SamplingParams*)> break_it;
  };
  const Case cases[] = {
      {"temperature", [](auto* p) { p->set_temperature(kNan); }},
      {"temperature", [](auto* p) { p->set_temperature(-0.1f); }},
      {"temperature", [](auto* p) { p->set_temperature(kInf); }},
      {"top_k", [](auto* p) { p->set_top_k(-1); }},
      {"top_p", [](auto* p) { p->set_top_p(0); }},
      {"top_p", [](auto* p) { p->set_top_p(kNan); }},
      {"top_p", [](auto* p) { p->set_top_p(1.5f); }},
      {"min_p", [](auto* p) { p->set_min_p(kNan); }},
      {"min_p", [](auto* p) { p->set_min_p(-1); }},
      {"repetition_penalty", [](auto* p) { p->set_repetition_penalty(0); }},
      {"repetition_penalty", [](auto* p) { p->set_repetition_penalty(kNan); }},
      {"frequency_penalty", [](auto* p) { p->set_frequency_penalty(kInf); }},
      {"presence_penalty", [](auto* p) { p->set_presence_penalty(kNan); }},
      {"max_tokens", [](auto* p) { p->set_max_tokens(0); }},
      {"max_tokens", [](auto* p) { p->set_max_tokens(513); }},
      {"min_tokens", [](auto* p) { p->set_min_tokens(-1); }},
      {"stop_token_ids[0]", [](auto* p) { p->set_stop_token_ids(0, 1000); }},
      {"stop_token_ids[0]", [](auto* p) { p->set_stop_token_ids(0, -1); }},
      {"stop_token_ids.size",
       [](auto* p) { p->mutable_stop_token_ids()->Resize(kMaxStopTokenIds + 1, 0); }},
      {"num_logprobs", [](auto* p) { p->set_num_logprobs(-2); }},
      {"num_logprobs", [](auto* p) { p->set_num_logprobs(1001); }},
      {"num_prompt_logprobs", [](auto* p) { p->set_num_prompt_logprobs(5000); }},
      {"logit_bias.token", [](auto* p) { p->mutable_logit_bias(0)->set_token(-1); }},
      {"logit_bias.token", [](auto* p) { p->mutable_logit_bias(1)->set_token(3); }},
      {"logit_bias.bias", [](auto* p) { p->mutable_logit_bias(0)->set_bias(kInf); }},
  };
  SamplingParams params;
  params.logit_bias = {{.token = 3, .bias = 1}, {.token = 4, .bias = 1}};
  params.stop_token_ids = {5};
  for (const Case& c : cases) {
    v1::SamplingParams proto;
    ToProto(params, &proto);
    ASSERT_TRUE(FromProto(proto, kLimits).ok());
    c.break_it(&proto);
    const auto read = FromProto(proto, kLimits);
    ASSERT_FALSE(read.ok()) << c.field;
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(c.field));
  }
}

TEST(SamplingWireTest, LogprobsAreBoundedByAFinalFrameAndByTheVocabulary) {
  for (const int32_t vocab_size : {100, 152'000}) {
    const WireLimits limits{.vocab_size = vocab_size, .max_model_len = 512};
    const int32_t most = std::min(vocab_size, kMaxLogprobs);
    for (const int32_t beyond : {0, 1}) {
      v1::SamplingParams tokens;
      ToProto(SamplingParams{.num_logprobs = most + beyond}, &tokens);
      EXPECT_EQ(FromProto(tokens, limits).ok(), beyond == 0) << vocab_size;
      v1::SamplingParams prompt;
      ToProto(SamplingParams{.num_prompt_logprobs = most + beyond}, &prompt);
      EXPECT_EQ(FromProto(prompt, limits).ok(), beyond == 0) << vocab_size;
    }
  }
}

TEST(SamplingWireTest, RefusesEachOutputFieldOutOfRangeByName) {
  struct Case {
    const char* field;
    std::function<void(v1::TokenOutput*)> break_it;
  };
  const Case cases[] = {
      {"position", [](auto* p) { p->set_position(0); }},
      {"position", [](auto* p) { p->set_position(513); }},
      {"token", [](auto* p) { p->set_token(1000); }},
      {"logprob", [](auto* p) { p->set_logprob(kNan); }},
      {"logprob", [](auto* p) { p->set_logprob(kInf); }},
      {"finish", [](auto* p) { p->set_finish(static_cast<v1::FinishReason>(3)); }},
      {"top.token", [](auto* p) { p->mutable_top(0)->set_token(-5); }},
      {"top.logprob", [](auto* p) { p->mutable_top(0)->set_logprob(kNan); }},
  };
  const TokenOutput output{.position = 7, .token = 3, .top = {{.token = 3, .logprob = -1}}};
  for (const Case& c : cases) {
    v1::TokenOutput proto;
    ToProto(output, &proto);
    ASSERT_TRUE(FromProto(proto, kLimits).ok());
    c.break_it(&proto);
    const auto read = FromProto(proto, kLimits);
    ASSERT_FALSE(read.ok()) << c.field;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(c.field));
  }
}

TEST(SamplingWireTest, TakesALogprobOfMinusInfinity) {
  v1::TokenOutput proto;
  ToProto(TokenOutput{.position = 1, .token = 1, .logprob = -kInf}, &proto);
  const auto read = FromProto(proto, kLimits);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->logprob, -kInf);
}

}  // namespace
}  // namespace baton
