#include "kernels/cpu/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "kernels/cpu/sampling/likeliest.h"

namespace baton {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLog2E = 1.44269504088896338700;

// Tokens may be masked by -inf, but not all.
bool AreDistribution(std::span<const float> logits) {
  int is_below = 1;
  int is_any_finite = 0;
  for (const float logit : logits) {
    is_below &= static_cast<int>(logit < kInfinity);  // False for NaN.
    is_any_finite |= static_cast<int>(logit > -kInfinity);
  }
  return (is_below & is_any_finite) != 0;
}

template <typename Args, typename Row>
std::span<const float> LogitsOf(const Args& args, const Row& row) {
  return {args.logits + row.logit_row * args.logits_stride, static_cast<size_t>(args.vocab_size)};
}

template <typename T>
std::span<const T> List(const T* all, int32_t first, int32_t count) {
  return count == 0 ? std::span<const T>() : std::span(all + first, static_cast<size_t>(count));
}

}  // namespace

SampleResult Sampler::Sample(const SampleArgs& args, int64_t index) {
  const SampleRow& row = args.rows[index];
  const std::span<const float> logits = LogitsOf(args, row);
  if (!AreDistribution(logits)) return {.is_bad = 1};
  const std::span<const float> adjusted = Adjust(args, row, logits);
  SampleResult result;
  result.token = row.scale == 0 ? Argmax(adjusted) : Draw(adjusted, row);
  result.token_logit = logits[result.token];
  if (row.num_top >= 0) {
    result.max = logits[Argmax(logits)];
    result.sum = Sum(logits, result.max);
    WriteTop(logits, row.num_top, args.top, index);
  }
  return result;
}

ScoreResult Sampler::Score(const ScoreArgs& args, int64_t index) {
  const ScoreRow& row = args.rows[index];
  const std::span<const float> logits = LogitsOf(args, row);
  if (!AreDistribution(logits)) return {.is_bad = 1};
  const float max = logits[Argmax(logits)];
  WriteTop(logits, row.num_top, args.top, index);
  return {.token_logit = logits[row.token],
          .max = max,
          .rank = static_cast<int32_t>(math_->rank(logits.data(), args.vocab_size, row.token)),
          .sum = Sum(logits, max)};
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

uint64_t Sampler::Sum(std::span<const float> logits, float max) const {
  return math_->weights(logits.data(), static_cast<int64_t>(logits.size()), max, kLog2E, nullptr);
}

void Sampler::WriteTop(std::span<const float> logits, int32_t count, const TopTokens& top,
                       int64_t index) {
  const auto vocab_size = static_cast<int32_t>(logits.size());
  RankLikeliest(logits, maxima_, std::min(count, vocab_size), candidates_);
  int64_t at = index * top.stride;
  for (const int32_t token : candidates_) {
    top.tokens[at] = token;
    top.logits[at++] = logits[token];
  }
}

std::span<const float> Sampler::Adjust(const SampleArgs& args, const SampleRow& row,
                                       std::span<const float> logits) {
  if (row.num_bias == 0 && row.num_mask == 0 && row.repetition == 1 && row.frequency == 0 &&
      row.presence == 0) {
    return logits;
  }
  adjusted_.assign(logits.begin(), logits.end());
  for (const LogitBias& bias : List(args.biases, row.first_bias, row.num_bias)) {
    adjusted_[bias.token] += bias.bias;
  }
  for (const int32_t token : List(args.masks, row.first_mask, row.num_mask)) {
    if (token >= 0 && token < args.vocab_size) adjusted_[token] = -kInfinity;
  }
  Penalize(args, row);
  return adjusted_;
}

void Sampler::Penalize(const SampleArgs& args, const SampleRow& row) {
  const bool repetition = row.repetition != 1;
  const bool counted = row.frequency != 0 || row.presence != 0;
  const auto prompt = List(args.history, row.first_prompt, row.num_prompt);
  const auto emitted = List(args.history, row.first_emitted, row.num_emitted);
  if (repetition || counted) counts_.resize(args.vocab_size);
  if (repetition) {
    const auto penalize = [&](int32_t token) {
      if (counts_[token]++ > 0) return;
      float& logit = adjusted_[token];
      logit = logit > 0 ? logit / row.repetition : logit * row.repetition;
    };
    std::for_each(prompt.begin(), prompt.end(), penalize);
    std::for_each(emitted.begin(), emitted.end(), penalize);
    for (const int32_t token : prompt) counts_[token] = 0;
    for (const int32_t token : emitted) counts_[token] = 0;
  }
  if (!counted) return;
  for (const int32_t token : emitted) ++counts_[token];
  for (const int32_t token : emitted) {
    if (counts_[token] == 0) continue;
    const float count = static_cast<float>(counts_[token]);
    adjusted_[token] -= row.frequency * count;
    adjusted_[token] -= row.presence;
    counts_[token] = 0;
  }
}

int32_t Sampler::Draw(std::span<const float> logits, const SampleRow& row) {
  const int32_t best = Argmax(logits);
  const float max = logits[best];
  if (!std::isfinite(max)) return best;
  candidates_.clear();
  if (row.top_k > 0 && row.top_k < std::ssize(logits)) {
    SelectLikeliest(logits, maxima_, row.top_k, candidates_);
    values_.clear();
    for (const int32_t token : candidates_) values_.push_back(logits[token]);
    logits = values_;
  }
  weighted_.Reset(logits, candidates_, max, row.scale);
  if (row.least_weight > 0) weighted_.KeepAtLeast(row.least_weight);
  if (row.top_p > 0) weighted_.KeepTopP(row.top_p);
  return weighted_.Draw(row.key);
}

}  // namespace baton
