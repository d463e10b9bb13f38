#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace baton {

inline float FlushSubnormal(float x) {
  return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}

// a * b + c, rounded once, with subnormal operands read as zero and a result turned into zero that
// would be subnormal if exponents had no end.
inline float FlushingFma(float a, float b, float c) {
  a = FlushSubnormal(a);
  b = FlushSubnormal(b);
  c = FlushSubnormal(c);
  const float sum = std::fma(a, b, c);
  if (std::fabs(sum) != 0x1p-126f) return FlushSubnormal(sum);
  // Half a step of 24 bits below: what is less only got here by a subnormal's coarser step.
  const double exact = std::fma(double{a}, double{b}, double{c});
  return std::fabs(exact) < 0x1p-126 - 0x1p-151 ? std::copysign(0.0f, sum) : sum;
}

inline float FlushingAdd(float a, float b) { return FlushingFma(a, 1.0f, b); }

// The sum over k of a * b in the order that GemmArgs tells for `numerics`: the one oracle for the
// bits of matrix products.
inline float SumOfProducts(std::string_view numerics, const float* a, const float* b, int64_t k,
                           int32_t segments = 1) {
  if (segments > 1) {
    const int64_t half = k / 2;
    return SumOfProducts(numerics, a, b, half, segments / 2) +
           SumOfProducts(numerics, a + half, b + half, half, segments / 2);
  }
  float sum = 0;
  if (numerics == "cpu-amx.2") {
    for (int64_t group = 0; group < k; group += 32) {
      float even = 0;
      float odd = 0;
      for (int64_t d = group; d < group + 32; d += 2) {
        even = FlushingFma(d < k ? a[d] : 0, d < k ? b[d] : 0, even);
        odd = FlushingFma(d + 1 < k ? a[d + 1] : 0, d + 1 < k ? b[d + 1] : 0, odd);
      }
      sum = FlushingAdd(sum, FlushingAdd(even, odd));
    }
  } else if (numerics == "cpu-bf16dot.2") {
    for (int64_t d = 0; d < k; d += 2) {
      if (d + 1 < k) sum = FlushingFma(a[d + 1], b[d + 1], sum);
      sum = FlushingFma(a[d], b[d], sum);
    }
  } else {
    for (int64_t d = 0; d < k; ++d) sum = std::fma(a[d], b[d], sum);
  }
  return sum;
}

}  // namespace baton
