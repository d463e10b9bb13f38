#include "kernels/cpu/sampling/weighted_tokens.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/api/sample_args.h"

namespace baton {
namespace {

using Wide = unsigned __int128;

constexpr int64_t kBlock = 1024;
constexpr uint64_t kAbove = kWeightOne + 1;  // All weights.
// So few tokens are sorted rather than divided further.
constexpr int64_t kSorted = 256;

// The least number that is at least a share of `total`, in units of 2^-63; not 0, as neither is.
uint64_t ShareOf(uint64_t total, uint64_t share) {
  return static_cast<uint64_t>((Wide{share} * total + ((Wide{1} << 63) - 1)) >> 63);
}

}  // namespace

void WeightedTokens::Reset(std::span<const float> values, std::span<const int32_t> ids, float max,
                           double scale) {
  values_ = values;
  max_ = max;
  scale_ = scale;
  ids_.assign(ids.begin(), ids.end());
  SumBlocks();
}

void WeightedTokens::SumBlocks() {
  sums_.clear();
  total_ = 0;
  const int64_t count = values_.empty() ? size() : static_cast<int64_t>(values_.size());
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    sums_.push_back(
        values_.empty()
            ? math_->sum_at_least(weights_.data() + begin, n, 0).sum
            : math_->weights(values_.data() + begin, n, max_, scale_, nullptr));
    total_ += sums_.back();
  }
}

float WeightedTokens::ValueBelow(uint64_t weight) const {
  if (weight == 0) return -std::numeric_limits<float>::infinity();
  // A weight is within a unit of the power; a hundredth is far more than what rounds here.
  const double least = (static_cast<double>(weight) - 0.75) / static_cast<double>(kWeightOne);
  const double value = max_ + (std::log2(least) - 0.0145) / scale_;
  return std::nextafter(static_cast<float>(value), -std::numeric_limits<float>::infinity());
}

void WeightedTokens::KeepWeights(uint64_t weight) {
  found_.resize(values_.size());
  found_values_.resize(found_.size());
  const int64_t count = math_->find_at_least(values_.data(), static_cast<int64_t>(values_.size()),
                                             ValueBelow(weight), found_.data(),
                                             found_values_.data());
  found_.resize(count);
  weights_.resize(count);
  math_->weights(found_values_.data(), count, max_, scale_, weights_.data());
  if (!ids_.empty()) {
    for (int32_t& index : found_) index = ids_[index];
  }
  ids_.swap(found_);
  values_ = {};
}

void WeightedTokens::DropBelow(uint64_t weight) {
  found_.resize(weights_.size());
  const int64_t count =
      math_->find_between(weights_.data(), size(), weight, kAbove, found_.data());
  // Ascending, so that nothing is overwritten before it was moved.
  for (int64_t i = 0; i < count; ++i) {
    weights_[i] = weights_[found_[i]];
    ids_[i] = ids_[found_[i]];
  }
  weights_.resize(count);
  ids_.resize(count);
}

void WeightedTokens::KeepAtLeast(uint64_t weight) {
  if (!values_.empty()) KeepWeights(weight);
  DropBelow(weight);
  SumBlocks();
}

void WeightedTokens::KeepTopP(uint64_t share) {
  const uint64_t wanted = ShareOf(total_, share);
  // All weights below this add up to no more than what may be left out.
  if (!values_.empty()) KeepWeights((total_ - wanted) / values_.size());
  // The tokens from `low` on reach what is wanted, those from `high` on do not. Where the interval
  // is divided changes nothing but the number of steps: weights spread over many magnitudes.
  uint64_t low = 0, high = kAbove;
  int64_t from_low = size();
  WeightSum from_high;
  while (from_low - from_high.count > kSorted && high - low > 1) {
    const auto middle = static_cast<uint64_t>(
        std::sqrt(static_cast<double>(std::max<uint64_t>(low, 1)) * static_cast<double>(high)));
    const uint64_t bound = std::clamp(middle, low + 1, high - 1);
    const WeightSum sum = math_->sum_at_least(weights_.data(), size(), bound);
    if (sum.sum >= wanted) {
      low = bound;
      from_low = sum.count;
    } else {
      high = bound;
      from_high = sum;
    }
  }
  KeepUntil(wanted, from_high.sum, low, high);
}

void WeightedTokens::KeepUntil(uint64_t wanted, uint64_t sum, uint64_t low, uint64_t high) {
  DropBelow(low);
  found_.resize(weights_.size());
  found_.resize(math_->find_between(weights_.data(), size(), low, high, found_.data()));
  std::sort(found_.begin(), found_.end(), [&](int32_t a, int32_t b) {
    return weights_[a] != weights_[b] ? weights_[a] > weights_[b] : a < b;
  });
  for (const int32_t index : found_) {
    if (sum < wanted) {
      sum += weights_[index];
    } else {
      weights_[index] = 0;
    }
  }
  SumBlocks();
}

std::span<const uint64_t> WeightedTokens::BlockWeights(int64_t block) {
  const int64_t begin = block * kBlock;
  if (values_.empty()) return std::span(weights_).subspan(begin, std::min(kBlock, size() - begin));
  const auto values = values_.subspan(begin);
  weights_.resize(std::min<size_t>(kBlock, values.size()));
  math_->weights(values.data(), size(), max_, scale_, weights_.data());
  return weights_;
}

int32_t WeightedTokens::Draw(uint64_t share) {
  const auto target = static_cast<uint64_t>((Wide{share} * total_) >> 64);  // Below the total.
  uint64_t sum = 0;
  int64_t block = 0;
  while (sum + sums_[block] <= target) sum += sums_[block++];
  const std::span<const uint64_t> weights = BlockWeights(block);
  int64_t i = 0;
  while ((sum += weights[i]) <= target) ++i;
  return IdAt(block * kBlock + i);
}

}  // namespace baton
