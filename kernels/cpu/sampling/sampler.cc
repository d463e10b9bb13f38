#include "kernels/cpu/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>


namespace baton {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLog2E = 1.44269504088896338700;

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
  if (!ScanDistribution(logits)) return {.is_bad = 1};
  SampleResult result;
  if (row.num_top >= 0) {
    result.max = logits[best_];
    result.sum = Sum(logits);
    WriteTop(logits, row.num_top, args.top, index);
  }
  const std::span<const float> adjusted = Adjust(args, row, logits);
  // Penalties make a NaN of numbers only if they are beyond all bounds of a request.
  if (adjusted.data() != logits.data() && !Scan(adjusted)) return {.is_bad = 1};
  result.token = row.scale == 0 ? best_ : Draw(adjusted, row);
  result.token_logit = logits[result.token];
  return result;
}

ScoreResult Sampler::Score(const ScoreArgs& args, int64_t index) {
  const ScoreRow& row = args.rows[index];
  const std::span<const float> logits = LogitsOf(args, row);
  if (!ScanDistribution(logits)) return {.is_bad = 1};
  WriteTop(logits, row.num_top, args.top, index);
  return {.token_logit = logits[row.token],
          .max = logits[best_],
          .rank = static_cast<int32_t>(math_->rank(logits.data(), args.vocab_size, row.token)),
          .sum = Sum(logits)};
}

bool Sampler::Scan(std::span<const float> logits) {
  constexpr int64_t kBlock = RowMath::kMaxBlock;
  maxima_.resize((logits.size() + kBlock - 1) / kBlock);
  if (!math_->block_max(logits.data(), std::ssize(logits), maxima_.data())) return false;
  const auto greatest = std::ranges::max_element(maxima_);
  const auto block = logits.begin() + (greatest - maxima_.begin()) * kBlock;
  best_ = static_cast<int32_t>(std::find(block, logits.end(), *greatest) - logits.begin());
  return true;
}

// Tokens may be masked by -inf, but not all.
bool Sampler::ScanDistribution(std::span<const float> logits) {
  return Scan(logits) && std::isfinite(logits[best_]);
}

uint64_t Sampler::Sum(std::span<const float> logits) const {
  return math_->weights(logits.data(), std::ssize(logits), logits[best_], kLog2E, nullptr);
}

void Sampler::WriteTop(std::span<const float> logits, int32_t count, const TopTokens& top,
                       int64_t index) {
  const auto vocab_size = static_cast<int32_t>(logits.size());
  candidates_.FindGreatest(logits, maxima_, std::min(count, vocab_size));
  candidates_.Rank(logits);
  std::ranges::copy(candidates_.tokens(), top.tokens + index * top.stride);
  std::ranges::copy(candidates_.values(), top.logits + index * top.stride);
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
  const float max = logits[best_];
  if (!std::isfinite(max)) return best_;
  std::span<const int32_t> ids;
  if (row.top_k > 0 && row.top_k < std::ssize(logits)) {
    candidates_.FindGreatest(logits, maxima_, row.top_k);
    logits = candidates_.values();
    ids = candidates_.tokens();
  }
  weighted_.Reset(logits, ids, max, row.scale, row.least_weight);
  if (row.top_p > 0) weighted_.KeepTopP(row.top_p);
  return weighted_.Draw(row.key);
}

}  // namespace baton
