#pragma once

#include <cstdint>

namespace baton {

struct WeightSum {
  uint64_t sum = 0;
  int64_t count = 0;
};

// What choosing a token computes over one row of logits or of weights. A weight is 2^((x - max)
// scale) in units of 2^-44, rounded: an integer, so that a sum has no order, and the same
// one on every kernel set. No sum of a row's weights overflows. Single-threaded; any number of
// threads may call.
struct RowMath {
  static constexpr int64_t kMaxBlock = 64;

  // out[b] = the greatest of x[64 b .. 64 b + 63], never a NaN; -inf where there is nothing else.
  // Returns whether no x is a NaN.
  bool (*block_max)(const float* x, int64_t n, float* out);
  // 1 = the greatest of all; of equals the lower index comes first.
  int64_t (*rank)(const float* x, int64_t n, int64_t index);
  // out[i] = the weight of x[i], within one unit; of a NaN 0. max is finite and not below any x.
  // Returns their sum; `out` may be null.
  uint64_t (*weights)(const float* x, int64_t n, float max, double scale, uint64_t* out);
  int64_t (*count_at_least)(const float* x, int64_t n, float bound);
  // The indexes of the x >= bound, ascending, and those x; returns their number. Like that of
  // find_between the output has room for n.
  int64_t (*find_at_least)(const float* x, int64_t n, float bound, int32_t* indexes, float* found);
  // Of the weights >= bound.
  WeightSum (*sum_at_least)(const uint64_t* weights, int64_t n, uint64_t bound);
  // The indexes of the weights in [low, high), ascending; returns their number.
  int64_t (*find_between)(const uint64_t* weights, int64_t n, uint64_t low, uint64_t high,
                          int32_t* indexes);
};

}  // namespace baton
