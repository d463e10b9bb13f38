#pragma once

// Codes of fp8 caches as elements of T (Bf16 or F16), four at a time: the bits of
// FromFloat<T>(ToFloat(code)).

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/floats.h"

namespace baton::cuda {

// A code's sign, exponent and mantissa in the places that T has for them are a number that is too
// small by the difference of the biases: a product with kFactor makes up for it, of subnormals too,
// and is exact.
template <typename Code, typename T>
struct WideFields {
  static constexpr bool kIsE4M3 = std::is_same_v<Code, Fp8E4M3>;
  // Bits of the exponent that T has more.
  static constexpr int kMore = (T::kIsBf16 ? 8 : 5) - (kIsE4M3 ? 4 : 5);
  // A pair of 2^120, 2^112, 2^8.
  static constexpr uint32_t kFactor =
      T::kIsBf16 ? (kIsE4M3 ? 0x7b807b80u : 0x77807780u) : 0x5c005c00u;
  // The first magnitude that is not finite: no product makes it of its fields.
  static constexpr uint32_t kNotFinite = kIsE4M3 ? 0x7f : 0x7c;
};

// Not 0 if one of four codes is for WidenAnyFour alone.
template <typename Code, typename T>
BATON_DEVICE uint32_t NotFinite(uint32_t codes) {
  constexpr uint32_t kUpToSign = 0x80 - WideFields<Code, T>::kNotFinite;
  return ((codes & 0x7f7f7f7fu) + kUpToSign * 0x01010101u) & 0x80808080u;
}

// Of finite codes.
template <typename Code, typename T>
BATON_DEVICE uint2 WidenFour(uint32_t codes) {
  using Fields = WideFields<Code, T>;
  constexpr uint32_t kFour = 0x01010101u;
  // The bytes of the elements, of which the upper ones have the sign.
  uint32_t upper = codes, lower = 0;
  if constexpr (Fields::kMore > 0) {
    constexpr uint32_t kUpper = 0x7f >> Fields::kMore, kLower = 0xff & 0xff << (8 - Fields::kMore);
    upper = (codes & 0x80 * kFour) | (codes >> Fields::kMore & kUpper * kFour);
    lower = codes << (8 - Fields::kMore) & kLower * kFour;
  }
  uint2 pairs;
  pairs.x = __byte_perm(lower, upper, 0x5140);
  pairs.y = __byte_perm(lower, upper, 0x7362);
  if constexpr (Fields::kMore > 0) {
    pairs.x = MultiplyPairs<T>(pairs.x, Fields::kFactor);
    pairs.y = MultiplyPairs<T>(pairs.y, Fields::kFactor);
  }
  return pairs;
}

template <typename Code, typename T>
BATON_DEVICE uint2 WidenAnyFour(uint32_t codes) {
  uint32_t wide[4];
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    wide[i] = FromFloat<T>(ToFloat(Code{static_cast<uint8_t>(codes >> 8 * i)})).bits;
  }
  uint2 pairs;
  pairs.x = wide[0] | wide[1] << 16;
  pairs.y = wide[2] | wide[3] << 16;
  return pairs;
}

}  // namespace baton::cuda
