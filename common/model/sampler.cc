#include "common/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/model/portable_math.h"
#include "xxhash.h"

namespace baton {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

int32_t Argmax(std::span<const float> logits) {
  int32_t best = 0;
  for (int32_t i = 1; i < static_cast<int32_t>(logits.size()); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return best;
}

// log(sum of e^logit), in double and in the order of ids.
double LogSum(std::span<const float> logits) {
  const double max = logits[Argmax(logits)];
  if (!std::isfinite(max)) return max;
  double sum = 0;
  for (const float logit : logits) sum += PortableExp(logit - max);
  return max + PortableLog(sum);
}

// Uniform in [0, 1), keyed so that neighbours in any of the three are unrelated.
double Uniform(uint64_t seed, uint32_t choice, int32_t position) {
  constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull;
  uint64_t key = Random::Mix(seed + kStep);
  key = Random::Mix(key + kStep * (uint64_t{choice} + 1));
  key = Random::Mix(key + kStep * (static_cast<uint64_t>(position) + 1));
  return static_cast<double>(key >> 11) * 0x1.0p-53;
}

}  // namespace

Sampler::Sampler(int32_t vocab_size, std::vector<int32_t> eos_token_ids)
    : vocab_size_(vocab_size), eos_token_ids_(std::move(eos_token_ids)) {
  adjusted_.resize(vocab_size);
  weights_.resize(vocab_size);
  candidates_.reserve(vocab_size);
  counts_.resize(vocab_size);
}

TokenOutput Sampler::Sample(const SampleInput& input) {
  BATON_CHECK(static_cast<int32_t>(input.logits.size()) == vocab_size_);
  const SamplingParams& params = input.context->params;
  Adjust(input);
  TokenOutput output{.position = input.position};
  output.token = params.temperature == 0 ? Argmax(adjusted_) : Draw(params, input.position);
  if (params.num_logprobs >= 0) {
    const double log_sum = LogSum(input.logits);
    output.logprob = static_cast<float>(input.logits[output.token] - log_sum);
    output.top = Top(input.logits, params.num_logprobs, log_sum);
  }
  if (params.logits_digest) {
    output.logits_digest = XXH3_64bits(input.logits.data(), input.logits.size_bytes());
  }
  return output;
}

PromptLogprob Sampler::Score(std::span<const float> logits, int32_t token, int32_t position,
                             int32_t num_top) {
  BATON_CHECK(static_cast<int32_t>(logits.size()) == vocab_size_);
  BATON_CHECK(token >= 0 && token < vocab_size_);
  const double log_sum = LogSum(logits);
  const float own = logits[token];
  int32_t rank = 1;
  for (int32_t i = 0; i < vocab_size_; ++i) {
    if (logits[i] > own || (logits[i] == own && i < token)) ++rank;
  }
  return {.position = position,
          .token = token,
          .logprob = static_cast<float>(own - log_sum),
          .rank = rank,
          .top = Top(logits, num_top, log_sum)};
}

std::vector<TokenLogprob> Sampler::Top(std::span<const float> logits, int32_t count,
                                       double log_sum) {
  count = std::clamp(count, 0, vocab_size_);
  std::vector<TokenLogprob> top(count);
  if (count == 0) return top;
  candidates_.resize(vocab_size_);
  for (int32_t i = 0; i < vocab_size_; ++i) candidates_[i] = i;
  std::partial_sort(
      candidates_.begin(), candidates_.begin() + count, candidates_.end(),
      [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  for (int32_t i = 0; i < count; ++i) {
    const int32_t token = candidates_[i];
    top[i] = {.token = token, .logprob = static_cast<float>(logits[token] - log_sum)};
  }
  return top;
}

void Sampler::Adjust(const SampleInput& input) {
  std::copy(input.logits.begin(), input.logits.end(), adjusted_.begin());
  for (const LogitBias& bias : input.context->params.logit_bias) {
    BATON_CHECK(bias.token >= 0 && bias.token < vocab_size_);
    adjusted_[bias.token] += bias.bias;
  }
  MaskEndTokens(input);
  Penalize(input);
}

void Sampler::MaskEndTokens(const SampleInput& input) {
  const SamplingParams& params = input.context->params;
  if (input.num_emitted >= params.min_tokens) return;
  const auto mask = [&](int32_t token) {
    if (token >= 0 && token < vocab_size_) adjusted_[token] = kMasked;
  };
  if (!params.ignore_eos) std::for_each(eos_token_ids_.begin(), eos_token_ids_.end(), mask);
  std::for_each(params.stop_token_ids.begin(), params.stop_token_ids.end(), mask);
}

void Sampler::Penalize(const SampleInput& input) {
  const SamplingParams& params = input.context->params;
  const bool repetition = params.repetition_penalty != 1;
  const bool counted = params.frequency_penalty != 0 || params.presence_penalty != 0;
  const std::vector<int32_t>& prompt = input.context->prompt;
  if (repetition) {
    const float penalty = params.repetition_penalty;
    const auto penalize = [&](int32_t token) {
      BATON_CHECK(token >= 0 && token < vocab_size_);
      if (counts_[token]++ > 0) return;
      float& logit = adjusted_[token];
      logit = logit > 0 ? logit / penalty : logit * penalty;
    };
    std::for_each(prompt.begin(), prompt.end(), penalize);
    std::for_each(input.emitted.begin(), input.emitted.end(), penalize);
    for (const int32_t token : prompt) counts_[token] = 0;
    for (const int32_t token : input.emitted) counts_[token] = 0;
  }
  if (counted) {
    for (const int32_t token : input.emitted) {
      BATON_CHECK(token >= 0 && token < vocab_size_);
      ++counts_[token];
    }
    for (const int32_t token : input.emitted) {
      if (counts_[token] == 0) continue;
      const float count = static_cast<float>(counts_[token]);
      adjusted_[token] -= params.frequency_penalty * count;
      adjusted_[token] -= params.presence_penalty;
      counts_[token] = 0;
    }
  }
}

int32_t Sampler::Draw(const SamplingParams& params, int32_t position) {
  const int32_t best = Argmax(adjusted_);
  const double max = adjusted_[best];
  if (!std::isfinite(max)) return best;
  const double temperature = params.temperature;
  candidates_.clear();
  for (int32_t i = 0; i < vocab_size_; ++i) {
    const double scaled = (adjusted_[i] - max) / temperature;
    weights_[i] = std::isnan(scaled) ? 0 : PortableExp(scaled);
    // The likeliest token's weight is 1, so that min_p is an absolute bound.
    if (weights_[i] > 0 && weights_[i] >= params.min_p) candidates_.push_back(i);
  }
  KeepLikeliest(params);
  double total = 0;
  for (const int32_t i : candidates_) total += weights_[i];
  const double target = Uniform(params.seed, params.choice, position) * total;
  double sum = 0;
  for (const int32_t i : candidates_) {
    sum += weights_[i];
    if (sum > target) return i;
  }
  return candidates_.empty() ? best : candidates_.back();
}

// Applies top_k, then top_p, to candidates_ and leaves them ascending by id.
void Sampler::KeepLikeliest(const SamplingParams& params) {
  const auto likelier = [&](int32_t a, int32_t b) {
    return weights_[a] != weights_[b] ? weights_[a] > weights_[b] : a < b;
  };
  const auto k = static_cast<size_t>(params.top_k);
  if (params.top_k > 0 && k < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(), likelier);
    candidates_.resize(k);
    std::sort(candidates_.begin(), candidates_.end());
  }
  if (params.top_p >= 1) return;
  double total = 0;
  for (const int32_t i : candidates_) total += weights_[i];
  // The smallest set of likeliest tokens whose probabilities reach top_p, popped from a heap.
  const auto less_likely = [&](int32_t a, int32_t b) { return likelier(b, a); };
  std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
  double kept = 0;
  auto heap_end = candidates_.end();
  while (heap_end != candidates_.begin()) {
    std::pop_heap(candidates_.begin(), heap_end, less_likely);
    --heap_end;
    kept += weights_[*heap_end];
    if (kept >= params.top_p * total) break;
  }
  candidates_.erase(candidates_.begin(), heap_end);
  std::sort(candidates_.begin(), candidates_.end());
}

}  // namespace baton
