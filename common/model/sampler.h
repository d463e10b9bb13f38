#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/generation.h"
#include "common/model/model_runner.h"

namespace baton {

// What one draw depends on, and nothing else.
struct SampleInput {
  std::span<const float> logits;  // [vocab_size], raw.
  const SamplingContext* context = nullptr;
  std::span<const int32_t> emitted;  // Tokens produced before, where penalties need them.
  int32_t num_emitted = 0;           // How many were produced before.
  int32_t position = 0;              // Absolute position of the token to produce.
};

// Chooses tokens. A draw is a pure function of its SampleInput and the model's end tokens, with the
// same bits on every machine; equal probabilities go to the lower id. The order of the steps is
// vLLM's: bias and min_tokens, penalties, temperature, min_p, top_k, top_p. Log probabilities are
// those of the raw logits. Keeps scratch memory: one caller at a time.
class Sampler {
 public:
  Sampler(int32_t vocab_size, std::vector<int32_t> eos_token_ids);

  // `finish` is left kNone.
  TokenOutput Sample(const SampleInput& input);

  // The log probability and rank of a prompt token under the raw logits of the position before it.
  PromptLogprob Score(std::span<const float> logits, int32_t token, int32_t position,
                      int32_t num_top);

 private:
  void Adjust(const SampleInput& input);
  void MaskEndTokens(const SampleInput& input);
  void Penalize(const SampleInput& input);
  int32_t Draw(const SamplingParams& params, int32_t position);
  void KeepLikeliest(const SamplingParams& params);
  std::vector<TokenLogprob> Top(std::span<const float> logits, int32_t count, double log_sum);

  int32_t vocab_size_;
  std::vector<int32_t> eos_token_ids_;
  std::vector<float> adjusted_;      // [vocab_size]
  std::vector<double> weights_;      // [vocab_size]: relative to the likeliest token's.
  std::vector<int32_t> candidates_;  // Ids still in play.
  std::vector<int32_t> counts_;      // [vocab_size]: zero between calls.
};

}  // namespace baton
