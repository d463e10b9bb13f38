#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/sampling.h"
#include "common/model/model_runner.h"
#include "common/model/weighted_tokens.h"
#include "kernels/api/row_math.h"

namespace baton {

// What one draw depends on, and nothing else.
struct SampleInput {
  std::span<const float> logits;  // [vocab_size], raw.
  const SamplingContext* context = nullptr;
  std::span<const int32_t> emitted;  // Tokens produced before, where penalties need them.
  int32_t num_emitted = 0;           // How many were produced before.
  int32_t position = 0;              // Absolute position of the token to produce.
};

// Chooses tokens. A draw is a pure function of its SampleInput and the model's end tokens, the same
// on every machine; equal probabilities go to the lower id. The order of the steps is
// vLLM's: bias and min_tokens, penalties, temperature, min_p, top_k, top_p. Log probabilities are
// those of the raw logits, of which none is NaN. Keeps scratch memory, made when first needed: one caller at a time.
class Sampler {
 public:
  // Part of the numerics id: samplers of one version choose equal tokens for equal logits.
  static constexpr const char* kVersion = "sampler.2";

  Sampler(const RowMath* math, int32_t vocab_size, std::vector<int32_t> eos_token_ids);

  // `finish` is left kNone.
  TokenOutput Sample(const SampleInput& input);

  // The log probability and rank of a prompt token under the raw logits of the position before it.
  PromptLogprob Score(std::span<const float> logits, int32_t token, int32_t position,
                      int32_t num_top);

 private:
  // The logits after bias, min_tokens and penalties; the raw ones where none of them is asked for.
  std::span<const float> Adjust(const SampleInput& input);
  void MaskEndTokens(const SampleInput& input);
  void Penalize(const SampleInput& input);
  // The likeliest token; leaves maxima_.
  int32_t Argmax(std::span<const float> logits);
  int32_t Draw(std::span<const float> logits, const SamplingParams& params, int32_t position);
  // Over the row that Argmax saw last.
  double LogSum(std::span<const float> logits, int32_t likeliest) const;
  std::vector<TokenLogprob> Top(std::span<const float> logits, int32_t count, double log_sum);

  const RowMath* math_;
  int32_t vocab_size_;
  std::vector<int32_t> eos_token_ids_;
  std::vector<float> adjusted_;      // [vocab_size]
  std::vector<int32_t> counts_;      // [vocab_size]: zero between calls.
  std::vector<float> maxima_;        // RowMath's block_max.
  std::vector<int32_t> candidates_;  // Ids still in play, if not all.
  std::vector<float> values_;        // Their logits.
  WeightedTokens weighted_;
};

}  // namespace baton
