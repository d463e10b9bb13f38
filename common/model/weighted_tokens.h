#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/row_math.h"

namespace baton {

// The tokens that a draw may choose and their weights: probabilities relative to the likeliest
// token's. Every sum has one order, so that a draw is the same on every machine.
class WeightedTokens {
 public:
  explicit WeightedTokens(const RowMath* math) : math_(math) {}

  // The tokens with these ids, ascending, or with none given the ids 0 .. values.size() - 1. The
  // weight of a value is e^((value - max) / temperature); max is finite and the greatest value.
  void Reset(std::span<const float> values, std::span<const int32_t> ids, float max,
             double temperature);

  // Keeps the tokens with at least this weight; the likeliest one's is 1.
  void KeepAtLeast(double weight);

  // Keeps the smallest set of likeliest tokens whose probabilities sum up to p, of tokens with
  // equal weights those with lower ids.
  void KeepTopP(double p);

  // The token at this share, in [0, 1), of all weights in the order of ids.
  int32_t Draw(double share);

 private:
  int64_t size() const { return static_cast<int64_t>(weights_.size()); }
  WeightSum SumAtLeast(double weight) const;
  // Keeps the `count` tokens with weights in [low, high) that are likeliest until `sum`, that of
  // the likelier ones, has grown to `wanted`.
  void KeepUntil(double wanted, double sum, double low, double high, int64_t count);
  int32_t IdAt(int64_t index) const {
    return ids_.empty() ? static_cast<int32_t>(index) : ids_[index];
  }

  const RowMath* math_;
  std::vector<double> weights_;
  std::vector<int32_t> ids_;  // [weights_.size()], or empty: each token's id is its index.
  double least_ = 0;          // Tokens with a weight below this, or of 0, are not kept.
  std::vector<int32_t> edge_;
  std::vector<double> sums_;
};

}  // namespace baton
