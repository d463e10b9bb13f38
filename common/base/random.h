#pragma once

#include <cstdint>

namespace baton {

// SplitMix64 (Steele, Lea, Flood 2014): one 64-bit state, full period, fine for ids under test,
// back-off jitter and fault schedules; not for secrets. Every generator is injected, so a
// simulation replays from its seed.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() { return Mix(state_ += 0x9E3779B97F4A7C15ull); }

  // Uniform in [0, n); n > 0.
  uint64_t Below(uint64_t n) { return Next() % n; }

  // Uniform in [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

  // A bijection of 64 bits that spreads nearby inputs; also used to key draws by position.
  static uint64_t Mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace baton
