#pragma once

#include <cstdlib>

#include "tests/kernels/kernel_fixture.h"

namespace baton {

inline int64_t FuzzNumber(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}
inline int64_t FirstFuzzSeed() { return FuzzNumber("BATON_FUZZ_SEED", 1); }
inline int64_t FuzzCases() { return FuzzNumber("BATON_FUZZ_CASES", 60); }

inline constexpr int64_t kHostile[] = {-1,      0,         1,         -7,        3,
                                       1 << 20, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};

// Random arguments for every kernel set; a test sets random_ from its seed.
class FuzzTest : public KernelTest {
 protected:
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_.Below(n)); }
  bool Chance(int percent) { return Below(100) < percent; }
  template <typename T>
  void Spoil(T& value) {
    value = static_cast<T>(kHostile[Below(std::size(kHostile))]);
  }
  // To a value that is not above the true one: a larger one that agrees with everything else could
  // not be told from a true one.
  template <typename T>
  void SpoilDown(T& value) {
    const T old = value;
    Spoil(value);
    value = std::min(value, old);
  }

  Random random_{0};
};

}  // namespace baton
