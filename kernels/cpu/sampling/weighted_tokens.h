#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/sampling/candidates.h"
#include "kernels/cpu/sampling/row_math.h"

namespace baton {

// The tokens that a draw may choose and their weights (RowMath's integers). All sums and shares are
// exact, so that a draw is the same on every machine, whatever the order of its steps. Tokens with
// a weight of 0 are never drawn. Of a whole row only sums are kept; the weights of single tokens
// are computed where a choice needs them.
class WeightedTokens {
 public:
  explicit WeightedTokens(const RowMath* math) : math_(math), found_(math) {}

  // The tokens with these ids, ascending, or with none given the ids 0 .. values.size() - 1, whose
  // weight is at least `least`, in [0, kWeightOne]. The weight of a value is 2^((value - max)
  // scale); max is finite and the greatest value. Both lists are looked at until the next Reset.
  void Reset(std::span<const float> values, std::span<const int32_t> ids, float max, double scale,
             uint64_t least);

  // Keeps the smallest set of likeliest tokens whose probabilities sum up to `share`, in units of
  // 2^-63, not 0; of tokens with equal weights those with lower ids.
  void KeepTopP(uint64_t share);

  // The token at this share of all weights in the order of ids, in units of 2^-64.
  int32_t Draw(uint64_t share);

 private:
  // The weights from `low` on reach a sum, those from `high` on do not.
  struct Edge {
    uint64_t low = 0;
    uint64_t high = 0;
    uint64_t sum_from_high = 0;
  };

  std::span<uint64_t> Weigh(std::span<const float> values);
  WeightSum SumAtLeast(std::span<const uint64_t> weights, uint64_t bound) const {
    return math_->sum_at_least(weights.data(), std::ssize(weights), bound);
  }
  // No value with a weight of at least `weight` is below this.
  float ValueBelow(uint64_t weight) const;
  // From now on weights_ has the tokens with at least this weight, and few others.
  void KeepAtLeast(uint64_t weight);
  // A weight so that all smaller ones probably add up to less than `spare`, but not to much less.
  uint64_t LikelyBound(uint64_t spare);
  // Within [low, kAbove).
  Edge FindEdge(std::span<const uint64_t> weights, uint64_t low, uint64_t wanted) const;
  // Drops the least likely tokens within the edge that are not wanted.
  void CutAt(const Edge& edge, uint64_t wanted);
  void SumBlocks();

  const RowMath* math_;
  std::span<const float> values_;
  std::span<const int32_t> ids_;
  float max_ = 0;
  double scale_ = 1;
  Candidates found_;              // Among values_.
  std::span<uint64_t> weights_;   // Of found_; empty while all values are kept.
  uint64_t least_ = 0;            // Smaller ones are not kept.
  std::vector<uint64_t> sums_;    // Of the weights that are kept of each kBlock tokens.
  uint64_t total_ = 0;
  std::vector<uint64_t> memory_;  // Of weights_, else for those of some values.
  std::vector<float> sample_;
  std::vector<int32_t> in_edge_;
};

}  // namespace baton
