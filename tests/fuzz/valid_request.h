#pragma once

#include <cmath>

#include "common/node/message.h"
#include "router/generation/generation_service.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/unit/router/generation/fakes.h"

namespace baton {

// The layer between the APIs and the scheduler, over a small model.
inline GenerationService& FuzzedService(bool has_tokenizer) {
  static FakeFrontend frontend;
  static const auto make = [](bool with) {
    GenerationServiceOptions options{.model_name = "tiny"};
    options.limits = {.max_model_len = 96,
                      .vocab_size = FakeTokenizer::kSize,
                      .max_output_tokens = 64};
    return new GenerationService(
        options, with ? std::make_shared<FakeTokenizer>() : nullptr, &frontend);
  };
  static GenerationService* const with = make(true);
  static GenerationService* const without = make(false);
  return has_tokenizer ? *with : *without;
}

// Every field of what the scheduler takes is in the range that message.h and generation_service.h
// name.
inline void CheckValidRequest(const PreparedGeneration& prepared, const GenerationLimits& limits) {
  const ValidRequest& r = prepared.request;
  const SamplingParams& s = r.sampling;
  BATON_CHECK(!r.prompts.empty() && r.num_choices >= 1);
  BATON_CHECK(r.prompts.size() * static_cast<size_t>(r.num_choices) <=
              static_cast<size_t>(kMaxSequencesPerRequest));
  for (const std::vector<int32_t>& prompt : r.prompts) {
    BATON_CHECK(!prompt.empty());
    BATON_CHECK(static_cast<int32_t>(prompt.size()) + (r.score_only ? 0 : s.max_tokens) <=
                limits.max_model_len);
    for (const int32_t id : prompt) BATON_CHECK(id >= 0 && id < limits.vocab_size);
  }
  BATON_CHECK(s.temperature >= 0 && s.temperature <= 2 && s.top_p > 0 && s.top_p <= 1);
  BATON_CHECK(s.min_p >= 0 && s.min_p <= 1 && s.top_k >= 0 && s.top_k < limits.vocab_size);
  BATON_CHECK(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty));
  BATON_CHECK(std::abs(s.frequency_penalty) <= 2 && std::abs(s.presence_penalty) <= 2);
  BATON_CHECK(s.max_tokens >= 1 && s.max_tokens <= limits.max_output_tokens);
  BATON_CHECK(s.min_tokens >= 0 && (r.score_only || s.min_tokens <= s.max_tokens));
  BATON_CHECK(s.num_logprobs >= -1 && s.num_logprobs <= limits.max_logprobs);
  BATON_CHECK(s.num_prompt_logprobs >= -1 && s.num_prompt_logprobs <= limits.max_logprobs);
  int32_t last = -1;
  for (const LogitBias& bias : s.logit_bias) {
    BATON_CHECK(bias.token > last && bias.token < limits.vocab_size);
    BATON_CHECK(std::abs(bias.bias) <= 100);
    last = bias.token;
  }
  last = -1;
  for (const int32_t id : s.stop_token_ids) {
    BATON_CHECK(id > last && id < limits.vocab_size);
    last = id;
  }
  BATON_CHECK(r.timeout > Duration::zero() && r.timeout <= limits.default_timeout);
  BATON_CHECK(r.label.size() <= static_cast<size_t>(limits.max_label_bytes));
  for (const std::string& stop : prepared.stop) BATON_CHECK(!stop.empty() && IsValidUtf8(stop));
}

}  // namespace baton
