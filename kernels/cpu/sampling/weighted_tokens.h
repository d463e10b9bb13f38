#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/sampling/row_math.h"

namespace baton {

// The tokens that a draw may choose and their weights (RowMath's integers). All sums and shares are
// exact, so that a draw is the same on every machine, whatever the order of its steps. Tokens with
// a weight of 0 are never drawn. Of a whole row only sums are kept; the weights of single tokens
// are computed where a choice needs them.
class WeightedTokens {
 public:
  explicit WeightedTokens(const RowMath* math) : math_(math) {}

  // The tokens with these ids, ascending, or with none given the ids 0 .. values.size() - 1. The
  // weight of a value is 2^((value - max) scale); max is finite and the greatest value.
  // `values` is looked at until the next Reset.
  void Reset(std::span<const float> values, std::span<const int32_t> ids, float max,
             double scale);

  // Keeps the tokens with at least this weight, in [0, kWeightOne]; the likeliest one's is that.
  void KeepAtLeast(uint64_t weight);

  // Keeps the smallest set of likeliest tokens whose probabilities sum up to `share`, in units of
  // 2^-63, not 0; of tokens with equal weights those with lower ids.
  void KeepTopP(uint64_t share);

  // The token at this share of all weights in the order of ids, in units of 2^-64.
  int32_t Draw(uint64_t share);

 private:
  int64_t size() const { return static_cast<int64_t>(weights_.size()); }
  int32_t IdAt(int64_t index) const {
    return ids_.empty() ? static_cast<int32_t>(index) : ids_[index];
  }
  // No value with a weight of at least `weight` is below this.
  float ValueBelow(uint64_t weight) const;
  // From now on the weights are kept, of all tokens with at least this one and few others.
  void KeepWeights(uint64_t weight);
  void DropBelow(uint64_t weight);
  // Keeps all tokens with a weight of at least `high`, whose sum is `sum`, and of those in
  // [low, high) the likeliest until the sum has grown to `wanted`.
  void KeepUntil(uint64_t wanted, uint64_t sum, uint64_t low, uint64_t high);
  void SumBlocks();
  std::span<const uint64_t> BlockWeights(int64_t block);

  const RowMath* math_;
  std::span<const float> values_;  // Empty once the weights are kept.
  float max_ = 0;
  double scale_ = 1;
  std::vector<uint64_t>
      weights_;  // Of the tokens; while values_ stands, of one block. 0: not kept.
  std::vector<int32_t> ids_;       // Of the tokens, or empty: each token's id is its index.
  std::vector<uint64_t> sums_;     // Of the weights of each kBlock tokens.
  uint64_t total_ = 0;
  std::vector<int32_t> found_;
  std::vector<float> found_values_;
};

}  // namespace baton
