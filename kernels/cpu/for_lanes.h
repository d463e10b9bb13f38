#pragma once

// Rows of any length by vectors of 16. Included as vec.h is.

#include "kernels/cpu/vec.h"

namespace baton {
namespace {

// Calls body(i, n) for i = 0, 16, ... with n = 16, or fewer at the end.
template <typename Body>
BATON_INLINE void ForLanes(int64_t size, Body body) {
  for (int64_t i = 0; i < size; i += kLanes) body(i, size - i < kLanes ? size - i : kLanes);
}

BATON_INLINE Vec LoadUpTo(const float* from, int64_t n) {
  return n == kLanes ? Load(from) : LoadFirst(from, n);
}

BATON_INLINE void StoreUpTo(float* to, const Vec& v, int64_t n) {
  if (n == kLanes) {
    Store(to, v);
  } else {
    StoreFirst(to, v, n);
  }
}

// The sum of 1, 2, 4 or 8 as a balanced tree, which is left in the first.
BATON_INLINE Vec SumAsTree(Vec* sums, int64_t count) {
  for (int64_t left = count / 2; left > 0; left /= 2) {
    for (int64_t i = 0; i < left; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

}  // namespace
}  // namespace baton
