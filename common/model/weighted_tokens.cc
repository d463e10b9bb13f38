#include "common/model/weighted_tokens.h"

#include <algorithm>
#include <bit>

namespace baton {
namespace {

// So few tokens are sorted rather than divided further.
constexpr int64_t kSorted = 256;

}  // namespace

void WeightedTokens::Reset(std::span<const float> values, std::span<const int32_t> ids, float max,
                           double temperature) {
  weights_.resize(values.size());
  math_->exp_weights(values.data(), size(), max, temperature, weights_.data());
  ids_.assign(ids.begin(), ids.end());
  least_ = 0;
}

void WeightedTokens::KeepAtLeast(double weight) { least_ = std::max(least_, weight); }

WeightSum WeightedTokens::SumAtLeast(double weight) const {
  return math_->sum_at_least(weights_.data(), size(), weight);
}

// Positive doubles are in the order of their bits, so halving an interval of bits finds the weight
// at which the sum reaches p, whatever the distribution.
void WeightedTokens::KeepTopP(double p) {
  const WeightSum all = SumAtLeast(least_);
  const double wanted = p * all.sum;
  // The tokens from `low` on reach it, those from `high` on do not.
  uint64_t low = std::bit_cast<uint64_t>(least_);
  uint64_t high = std::bit_cast<uint64_t>(1.0) + 1;
  int64_t from_low = all.count;
  WeightSum from_high;
  // All weights below this add up to less than what may be left out: a good first guess.
  const double tail = (1 - p) * all.sum / static_cast<double>(all.count);
  uint64_t middle = std::max(low, std::bit_cast<uint64_t>(tail));
  while (from_low - from_high.count > kSorted && high - low > 1) {
    const WeightSum sum = SumAtLeast(std::bit_cast<double>(middle));
    if (sum.sum >= wanted) {
      low = middle;
      from_low = sum.count;
    } else {
      high = middle;
      from_high = sum;
    }
    middle = low + (high - low) / 2;
  }
  KeepUntil(wanted, from_high.sum, std::bit_cast<double>(low), std::bit_cast<double>(high),
            from_low - from_high.count);
}

void WeightedTokens::KeepUntil(double wanted, double sum, double low, double high, int64_t count) {
  edge_.resize(count);
  math_->find_between(weights_.data(), size(), low, high, edge_.data());
  std::sort(edge_.begin(), edge_.end(), [&](int32_t a, int32_t b) {
    return weights_[a] != weights_[b] ? weights_[a] > weights_[b] : a < b;
  });
  for (const int32_t index : edge_) {
    double& weight = weights_[index];
    if (sum < wanted) {
      sum += weight;
    } else {
      weight = 0;
    }
  }
  least_ = low;
}

int32_t WeightedTokens::Draw(double share) {
  constexpr int64_t kBlock = RowMath::kSumBlock;
  sums_.resize((size() + kBlock - 1) / kBlock);
  math_->block_sums(weights_.data(), size(), least_, sums_.data());
  double total = 0;
  for (const double sum : sums_) total += sum;
  const double target = share * total;
  double sum = 0;
  size_t block = 0;
  while (block + 1 < sums_.size() && sum + sums_[block] <= target) sum += sums_[block++];
  // Rounding may carry the target past the block, and past the end.
  const auto is_kept = [&](int64_t i) { return weights_[i] >= least_ && weights_[i] > 0; };
  for (int64_t i = static_cast<int64_t>(block) * kBlock; i < size(); ++i) {
    if (!is_kept(i)) continue;
    sum += weights_[i];
    if (sum > target) return IdAt(i);
  }
  int64_t last = size() - 1;
  while (!is_kept(last)) --last;
  return IdAt(last);
}

}  // namespace baton
