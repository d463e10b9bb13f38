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
// Of as many values each, one run is a sample; of short rows none is worth its time.
constexpr int64_t kSampledRun = 8;
constexpr int64_t kSampledPart = 32;
constexpr int64_t kShortRow = 4096;

// The least number that is at least a share of `total`, in units of 2^-63; not 0, as neither is.
uint64_t ShareOf(uint64_t total, uint64_t share) {
  return static_cast<uint64_t>((Wide{share} * total + ((Wide{1} << 63) - 1)) >> 63);
}

}  // namespace

void WeightedTokens::Reset(std::span<const float> values, std::span<const int32_t> ids, float max,
                           double scale, uint64_t least) {
  values_ = values;
  ids_ = ids;
  max_ = max;
  scale_ = scale;
  weights_ = {};
  if (least > 0) {
    KeepAtLeast(least);
  } else {
    least_ = 0;
    SumBlocks();
  }
}

std::span<uint64_t> WeightedTokens::Weigh(std::span<const float> values) {
  if (memory_.size() < values.size()) memory_.resize(values.size());
  math_->weights(values.data(), std::ssize(values), max_, scale_, memory_.data());
  return std::span(memory_).first(values.size());
}

void WeightedTokens::SumBlocks() {
  sums_.clear();
  total_ = 0;
  const int64_t count = weights_.empty() ? std::ssize(values_) : std::ssize(weights_);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    sums_.push_back(weights_.empty()
                        ? math_->weights(values_.data() + begin, n, max_, scale_, nullptr)
                        : SumAtLeast(weights_.subspan(begin, n), least_).sum);
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

void WeightedTokens::KeepAtLeast(uint64_t weight) {
  found_.FindAtLeast(values_, ValueBelow(weight));
  weights_ = Weigh(found_.values());
  least_ = weight;
  SumBlocks();
}

void WeightedTokens::KeepTopP(uint64_t share) {
  const uint64_t wanted = ShareOf(total_, share);
  if (weights_.empty()) {
    const uint64_t spare = total_ - wanted;
    KeepAtLeast(LikelyBound(spare));
    // All weights below this add up to no more than what may be left out.
    if (total_ < wanted) KeepAtLeast(spare / values_.size());
  }
  CutAt(FindEdge(weights_, least_, wanted), wanted);
  SumBlocks();
}

uint64_t WeightedTokens::LikelyBound(uint64_t spare) {
  const auto size = std::ssize(values_);
  if (size < kShortRow) return spare / size;
  sample_.clear();
  for (int64_t i = 0; i + kSampledRun <= size; i += kSampledRun * kSampledPart) {
    sample_.insert(sample_.end(), values_.begin() + i, values_.begin() + i + kSampledRun);
  }
  const std::span<const uint64_t> weights = Weigh(sample_);
  const uint64_t total = SumAtLeast(weights, 0).sum;
  // Three quarters of what the sample may leave out; and no single weight that is much of it, since
  // a sample may have seen none of a few.
  const uint64_t part = std::min(total, spare / (kSampledPart * 4) * 3);
  return std::min({FindEdge(weights, 0, total - part).low, spare / kSorted, kWeightOne});
}

WeightedTokens::Edge WeightedTokens::FindEdge(std::span<const uint64_t> weights, uint64_t low,
                                              uint64_t wanted) const {
  Edge edge = {.low = low, .high = kAbove};
  int64_t from_low = std::ssize(weights), from_high = 0;
  while (from_low - from_high > kSorted && edge.high - edge.low > 1) {
    // Where the interval is divided changes nothing but the number of steps: weights spread over
    // many magnitudes.
    const auto middle = static_cast<uint64_t>(std::sqrt(
        static_cast<double>(std::max<uint64_t>(edge.low, 1)) * static_cast<double>(edge.high)));
    const uint64_t bound = std::clamp(middle, edge.low + 1, edge.high - 1);
    const WeightSum sum = SumAtLeast(weights, bound);
    if (sum.sum >= wanted) {
      edge.low = bound;
      from_low = sum.count;
    } else {
      edge.high = bound;
      edge.sum_from_high = sum.sum;
      from_high = sum.count;
    }
  }
  return edge;
}

void WeightedTokens::CutAt(const Edge& edge, uint64_t wanted) {
  least_ = edge.low;
  if (in_edge_.size() < weights_.size()) in_edge_.resize(weights_.size());
  const int64_t count = math_->find_between(weights_.data(), std::ssize(weights_), edge.low,
                                            edge.high, in_edge_.data());
  const std::span<int32_t> tokens = std::span(in_edge_).first(count);
  // Those of one weight are in order.
  if (edge.high - edge.low > 1) {
    std::ranges::sort(tokens, [&](int32_t a, int32_t b) {
      return weights_[a] != weights_[b] ? weights_[a] > weights_[b] : a < b;
    });
  }
  uint64_t sum = edge.sum_from_high;
  for (const int32_t token : tokens) {
    if (sum < wanted) {
      sum += weights_[token];
    } else {
      weights_[token] = 0;
    }
  }
}

int32_t WeightedTokens::Draw(uint64_t share) {
  const auto target = static_cast<uint64_t>((Wide{share} * total_) >> 64);  // Below the total.
  uint64_t sum = 0;
  int64_t index = 0;
  for (; sum + sums_[index / kBlock] <= target; index += kBlock) sum += sums_[index / kBlock];
  const auto block = weights_.empty() ? Weigh(values_.subspan(index).first(
                                            std::min(kBlock, std::ssize(values_) - index)))
                                      : weights_.subspan(index);
  for (const uint64_t weight : block) {
    if (weight >= least_) sum += weight;
    if (sum > target) break;
    ++index;
  }
  const auto token = weights_.empty() ? static_cast<int32_t>(index) : found_.tokens()[index];
  return ids_.empty() ? token : ids_[token];
}

}  // namespace baton
