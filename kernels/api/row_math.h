#pragma once

#include <cstdint>

namespace baton {

struct WeightSum {
  double sum = 0;
  int64_t count = 0;
};

// What choosing a token computes over one row of logits or of weights, in the instructions of a
// kernel set but with the same bits on all: e^x is PortableExp's, a sum has 16 lanes, element i in
// lane i % 16, folded by halves. Single-threaded; any number of threads may call.
struct RowMath {
  static constexpr int64_t kMaxBlock = 64;
  static constexpr int64_t kSumBlock = 1024;

  // out[b] = the greatest of x[64 b .. 64 b + 63], never a NaN; -inf where there is nothing else.
  void (*block_max)(const float* x, int64_t n, float* out);
  // 1 = the greatest of all; of equals the lower index comes first.
  int64_t (*rank)(const float* x, int64_t n, int64_t index);
  // Sum of e^(x[i] - max); max is finite and not below any x.
  double (*sum_exp)(const float* x, int64_t n, float max);
  // out[i] = e^((x[i] - max) / temperature), where x[i] is a NaN 0.
  void (*exp_weights)(const float* x, int64_t n, float max, double temperature, double* out);
  // Of the weights >= bound >= 0.
  WeightSum (*sum_at_least)(const double* weights, int64_t n, double bound);
  // out[b] = the sum of those of weights[1024 b .. 1024 b + 1023] that are >= bound >= 0.
  void (*block_sums)(const double* weights, int64_t n, double bound, double* out);
  // The indexes of the weights in [low, high), low >= 0, ascending; `out` has room for them all.
  void (*find_between)(const double* weights, int64_t n, double low, double high, int32_t* out);
};

}  // namespace baton
