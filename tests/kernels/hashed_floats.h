#pragma once

#include <cstdint>
#include <vector>

namespace baton {

// `hashed` of tests/golden/make_attention_goldens.py: inputs that golden files do not store.
inline std::vector<float> HashedFloats(uint64_t seed, int64_t n) {
  std::vector<float> out;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t x = static_cast<uint32_t>(i + seed * 7919) * 2654435761u;
    x = (x ^ (x >> 15)) * 2246822519u;
    x ^= x >> 13;
    out.push_back(static_cast<float>(x >> 8) / 8388608.0f - 1.0f);
  }
  return out;
}

}  // namespace baton
