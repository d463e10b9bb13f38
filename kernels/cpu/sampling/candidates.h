#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/sampling/row_math.h"

namespace baton {

// Tokens that were found in a row of values, which has no NaN. Keeps its memory, which grows to the
// longest row and is not cleared for each.
class Candidates {
 public:
  explicit Candidates(const RowMath* math) : math_(math) {}

  // All with at least this value, ascending.
  void FindAtLeast(std::span<const float> x, float bound);
  // The `count` <= x.size() greatest, of equals the lower ones, ascending. `block_max` is RowMath's
  // of x. Nothing is sorted: a bounded number of passes over x, whatever the count.
  void FindGreatest(std::span<const float> x, std::span<const float> block_max, int32_t count);
  // Sorts them: the greatest first, of equals the lower.
  void Rank(std::span<const float> x);

  std::span<const int32_t> tokens() const { return std::span(tokens_).first(count_); }
  std::span<const float> values() const { return std::span(values_).first(count_); }

 private:
  float NthGreatest(std::span<const float> x, int32_t n) const;

  const RowMath* math_;
  std::vector<int32_t> tokens_;
  std::vector<float> values_;
  int64_t count_ = 0;
};

}  // namespace baton
