#pragma once

// Conversions between float and the storage types; all exact or rounded to nearest, ties to even.

#include "common/base/dtype.h"
#include "kernels/cpu/vec.h"

namespace baton {
namespace {

BATON_INLINE uint32_t FloatBits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

BATON_INLINE float BitsFloat(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

BATON_INLINE float FromBf16(uint16_t h) { return BitsFloat(static_cast<uint32_t>(h) << 16); }

BATON_INLINE uint16_t ToBf16(float x) {
  const uint32_t bits = FloatBits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

BATON_INLINE float FromF16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return BitsFloat(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // 2^112 moves the exponent; the product is exact, also for subnormals.
  const float scaled = BitsFloat(magnitude << 13) * 0x1p112f;
  return BitsFloat(sign | FloatBits(scaled));
}

BATON_INLINE uint16_t ToF16(float x) {
  const uint32_t bits = FloatBits(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // Rounds to 65536 or more.
  if (magnitude < 0x38800000u) {
    // Subnormal or zero: adding 0.5 leaves the value in units of 2^-24 in the low bits.
    const float shifted = BitsFloat(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(FloatBits(shifted) - 0x3f000000u);
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return sign | static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
}

template <DType kType>
BATON_INLINE float LoadOne(const std::byte* base, int64_t index) {
  if constexpr (kType == DType::kF32) {
    float x;
    std::memcpy(&x, base + index * 4, 4);
    return x;
  } else {
    uint16_t h;
    std::memcpy(&h, base + index * 2, 2);
    return kType == DType::kBF16 ? FromBf16(h) : FromF16(h);
  }
}

template <DType kType>
BATON_INLINE void StoreOne(std::byte* base, int64_t index, float x) {
  if constexpr (kType == DType::kF32) {
    std::memcpy(base + index * 4, &x, 4);
  } else {
    const uint16_t h = kType == DType::kBF16 ? ToBf16(x) : ToF16(x);
    std::memcpy(base + index * 2, &h, 2);
  }
}

// 16 consecutive elements from `index`.
template <DType kType>
BATON_INLINE Vec LoadLanes(const std::byte* base, int64_t index) {
  Vec v;
  if constexpr (kType == DType::kF32) {
    BATON_EACH_PART std::memcpy(&v.p[i], base + (index + i * kPartLanes) * 4, sizeof(Part));
  } else if constexpr (kType == DType::kBF16) {
    const std::byte* from = base + index * 2;
#if defined(__AVX512F__)
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    v.p[0] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
#elif BATON_HARDWARE_FMA
    BATON_EACH_PART {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * 16));
      v.p[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
#elif defined(__SSE2__)
    BATON_EACH_PART {
      const __m128i half = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i * 8));
      v.p[i] = _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), half));
    }
#else
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = LoadOne<kType>(from, i);
    v = Load(lanes);
#endif
  } else {
    const std::byte* from = base + index * 2;
#if defined(__AVX512F__)
    v.p[0] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif BATON_HARDWARE_FMA
    BATON_EACH_PART {
      v.p[i] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * 16)));
    }
#else
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = LoadOne<kType>(from, i);
    v = Load(lanes);
#endif
  }
  return v;
}

// x rounded to `to`, kept as float.
BATON_INLINE float RoundTo(DType to, float x) {
  if (to == DType::kF32) return x;
  return to == DType::kBF16 ? FromBf16(ToBf16(x)) : FromF16(ToF16(x));
}

inline void RoundRow(DType to, float* row, int64_t n) {
  if (to == DType::kF32) return;
  if (to == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) row[i] = FromBf16(ToBf16(row[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) row[i] = FromF16(ToF16(row[i]));
  }
}

}  // namespace
}  // namespace baton
