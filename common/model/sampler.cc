#include "common/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/model/likeliest.h"
#include "kernels/api/portable_math.h"
#include "kernels/api/sample_args.h"
#include "xxhash.h"

namespace baton {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

}  // namespace

Sampler::Sampler(const RowMath* math, int32_t vocab_size, std::vector<int32_t> eos_token_ids)
    : math_(math),
      vocab_size_(vocab_size),
      eos_token_ids_(std::move(eos_token_ids)),
      weighted_(math) {}

TokenOutput Sampler::Sample(const SampleInput& input) {
  BATON_CHECK(static_cast<int32_t>(input.logits.size()) == vocab_size_);
  const SamplingParams& params = input.context->params;
  const std::span<const float> adjusted = Adjust(input);
  TokenOutput output{.position = input.position};
  output.token =
      params.temperature == 0 ? Argmax(adjusted) : Draw(adjusted, params, input.position);
  if (params.num_logprobs >= 0) {
    const double log_sum = LogSum(input.logits, Argmax(input.logits));
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
  const double log_sum = LogSum(logits, Argmax(logits));
  return {.position = position,
          .token = token,
          .logprob = static_cast<float>(logits[token] - log_sum),
          .rank = static_cast<int32_t>(math_->rank(logits.data(), vocab_size_, token)),
          .top = Top(logits, num_top, log_sum)};
}

int32_t Sampler::Argmax(std::span<const float> logits) {
  constexpr int64_t kBlock = RowMath::kMaxBlock;
  maxima_.resize((logits.size() + kBlock - 1) / kBlock);
  math_->block_max(logits.data(), static_cast<int64_t>(logits.size()), maxima_.data());
  const auto greatest = std::max_element(maxima_.begin(), maxima_.end());
  const auto block = logits.begin() + (greatest - maxima_.begin()) * kBlock;
  const auto token = std::find(block, logits.end(), *greatest);
  BATON_CHECK(token != logits.end());
  return static_cast<int32_t>(token - logits.begin());
}

// log(sum of e^logit), in double.
double Sampler::LogSum(std::span<const float> logits, int32_t likeliest) const {
  const float max = logits[likeliest];
  if (!std::isfinite(max)) return max;
  const uint64_t sum = math_->weights(logits.data(), vocab_size_, max, 1, nullptr);
  return max + PortableLog(static_cast<double>(sum) / static_cast<double>(RowMath::kOne));
}

std::vector<TokenLogprob> Sampler::Top(std::span<const float> logits, int32_t count,
                                       double log_sum) {
  RankLikeliest(logits, maxima_, std::clamp(count, 0, vocab_size_), candidates_);
  std::vector<TokenLogprob> top;
  top.reserve(candidates_.size());
  for (const int32_t token : candidates_) {
    top.push_back({.token = token, .logprob = static_cast<float>(logits[token] - log_sum)});
  }
  return top;
}

std::span<const float> Sampler::Adjust(const SampleInput& input) {
  const SamplingParams& params = input.context->params;
  if (params.logit_bias.empty() && input.num_emitted >= params.min_tokens &&
      params.repetition_penalty == 1 && params.frequency_penalty == 0 &&
      params.presence_penalty == 0) {
    return input.logits;
  }
  adjusted_.assign(input.logits.begin(), input.logits.end());
  for (const LogitBias& bias : params.logit_bias) {
    BATON_CHECK(bias.token >= 0 && bias.token < vocab_size_);
    adjusted_[bias.token] += bias.bias;
  }
  MaskEndTokens(input);
  Penalize(input);
  return adjusted_;
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
  if (repetition || counted) counts_.resize(vocab_size_);
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

int32_t Sampler::Draw(std::span<const float> logits, const SamplingParams& params,
                      int32_t position) {
  const int32_t best = Argmax(logits);
  const float max = logits[best];
  if (!std::isfinite(max)) return best;
  candidates_.clear();
  if (params.top_k > 0 && params.top_k < vocab_size_) {
    SelectLikeliest(logits, maxima_, params.top_k, candidates_);
    values_.clear();
    for (const int32_t token : candidates_) values_.push_back(logits[token]);
    logits = values_;
  }
  weighted_.Reset(logits, candidates_, max, params.temperature);
  if (params.min_p > 0) weighted_.KeepAtLeast(params.min_p);
  if (params.top_p < 1) weighted_.KeepTopP(params.top_p);
  return weighted_.Draw(MakeSampleRow(params, position).key);
}

}  // namespace baton
