#pragma once

// The 16- and 8-bit float types of kernels: the same bits from nvcc and from the emulation. Plain
// structs, so that no vendor's header is needed.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/base/dtype.h"
#include "kernels/cuda/dialect.h"

#define BATON_DEVICE __device__ __forceinline__

namespace baton::cuda {

struct Bf16 {
  static constexpr bool kIsBf16 = true;
  static constexpr DType kDType = DType::kBF16;
  uint16_t bits;
};
struct F16 {
  static constexpr bool kIsBf16 = false;
  static constexpr DType kDType = DType::kF16;
  uint16_t bits;
};
struct Fp8E4M3 {
  static constexpr DType kDType = DType::kFp8E4M3;
  uint8_t bits;
};
struct Fp8E5M2 {
  static constexpr DType kDType = DType::kFp8E5M2;
  uint8_t bits;
};

BATON_DEVICE float FromBits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}
BATON_DEVICE uint32_t ToBits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(x));
  return bits;
}

BATON_DEVICE float ToFloat(float x) { return x; }
BATON_DEVICE float ToFloat(Bf16 x) { return FromBits(uint32_t{x.bits} << 16); }
// A float of the same fields has an exponent that is too small by the difference of the biases: a
// product with 2^112 makes up for it, of subnormals too.
BATON_DEVICE float ToFloat(F16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return FromBits(sign | 0x7f800000u | magnitude << 13);
  return FromBits(sign | ToBits(FromBits(magnitude << 13) * 0x1p112f));
}
BATON_DEVICE float ToFloat(Fp8E4M3 x) {
  const uint32_t sign = (x.bits & 0x80u) << 24, magnitude = x.bits & 0x7fu;
  if (magnitude == 0x7f) return FromBits(sign | 0x7fc00000u);
  return FromBits(sign | ToBits(FromBits(magnitude << 20) * 0x1p120f));
}
// The upper half of an f16.
BATON_DEVICE float ToFloat(Fp8E5M2 x) { return ToFloat(F16{static_cast<uint16_t>(x.bits << 8)}); }

// A magnitude that is below the greatest normal number of the type, to the nearest code, ties to
// even: exponent bias kBias, kMantissa bits of mantissa.
template <int kBias, int kMantissa>
BATON_DEVICE uint32_t RoundMagnitude(uint32_t magnitude) {
  constexpr uint32_t kLeastNormal = static_cast<uint32_t>(128 - kBias) << 23;
  if (magnitude < kLeastNormal) {
    // The float whose last bit is the type's least subnormal: a sum with it rounds there.
    const float unit = FromBits(static_cast<uint32_t>(127 + 23 + 1 - kBias - kMantissa) << 23);
    return ToBits(FromBits(magnitude) + unit) - ToBits(unit);
  }
  constexpr int kCut = 23 - kMantissa;
  const uint32_t half = (1u << (kCut - 1)) - 1 + (magnitude >> kCut & 1);
  return (magnitude + half - (static_cast<uint32_t>(127 - kBias) << 23)) >> kCut;
}

// To the nearest, ties to even; fp8 saturates, f16 overflows to infinity. A NaN stays one.
template <typename T>
BATON_DEVICE T FromFloat(float x);
template <>
BATON_DEVICE float FromFloat<float>(float x) {
  return x;
}
template <>
BATON_DEVICE Bf16 FromFloat<Bf16>(float x) {
  const uint32_t bits = ToBits(x);
  // As hardware: of a NaN the sign goes too.
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <>
BATON_DEVICE F16 FromFloat<F16>(float x) {
  const uint32_t bits = ToBits(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00)};
  return {static_cast<uint16_t>(sign | RoundMagnitude<15, 10>(magnitude))};
}
template <>
BATON_DEVICE Fp8E4M3 FromFloat<Fp8E4M3>(float x) {
  const uint32_t bits = ToBits(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint8_t>(sign | 0x7f)};
  if (magnitude >= 0x43e00000u) return {static_cast<uint8_t>(sign | 0x7e)};  // 448
  return {static_cast<uint8_t>(sign | RoundMagnitude<7, 3>(magnitude))};
}
template <>
BATON_DEVICE Fp8E5M2 FromFloat<Fp8E5M2>(float x) {
  const uint32_t bits = ToBits(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint8_t>(sign | 0x7e)};
  if (magnitude >= 0x47600000u) return {static_cast<uint8_t>(sign | 0x7b)};  // 57344
  return {static_cast<uint8_t>(sign | RoundMagnitude<15, 2>(magnitude))};
}

}  // namespace baton::cuda
