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

// An fp8 code moved into f16: e5m2 is its upper half; e4m3 has a bias of 7 where f16 has 15, so the
// value is 2^8 times as large.
BATON_INLINE float FromE5M2(uint8_t code) { return FromF16(static_cast<uint16_t>(code << 8)); }

BATON_INLINE float FromE4M3(uint8_t code) {
  const uint32_t sign = code & 0x80u;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return BitsFloat(sign << 24 | 0x7fc00000u);
  return FromF16(static_cast<uint16_t>(sign << 8 | magnitude << 7)) * 256.0f;
}

// Round to nearest even into kMantissa bits; beyond the greatest finite value that value (also for
// an infinity), a NaN stays one.
template <int kMantissa, int kBias>
BATON_INLINE uint8_t ToFp8(float x, float greatest, uint8_t nan) {
  const uint32_t bits = FloatBits(x);
  const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  const float magnitude = BitsFloat(bits & 0x7fffffffu);
  const float kept = magnitude < greatest ? magnitude : greatest;
  // Subnormal codes: adding 2^(24 - bias - mantissa) leaves the multiple of the least code in the
  // low bits.
  constexpr uint32_t kUnitExponent = 127 + 24 - kBias - kMantissa;
  constexpr uint32_t kLeastNormal = (127 - kBias + 1) << 23;
  const uint32_t subnormal = FloatBits(kept + BitsFloat(kUnitExponent << 23));
  const uint32_t tie = FloatBits(kept) >> (23 - kMantissa) & 1u;
  const uint32_t rounded = FloatBits(kept) + ((1u << (22 - kMantissa)) - 1) + tie;
  const uint32_t normal = (rounded >> (23 - kMantissa)) - ((127u - kBias) << kMantissa);
  const uint32_t code = FloatBits(kept) < kLeastNormal ? subnormal - (kUnitExponent << 23) : normal;
  return sign | (magnitude == magnitude ? static_cast<uint8_t>(code) : nan);
}

BATON_INLINE uint8_t ToE4M3(float x) { return ToFp8<3, 7>(x, 448.0f, 0x7f); }
BATON_INLINE uint8_t ToE5M2(float x) { return ToFp8<2, 15>(x, 57344.0f, 0x7e); }

template <DType kType>
BATON_INLINE float LoadOne(const std::byte* base, int64_t index) {
  if constexpr (kType == DType::kF32) {
    float x;
    std::memcpy(&x, base + index * 4, 4);
    return x;
  } else if constexpr (IsFp8(kType)) {
    const auto code = static_cast<uint8_t>(base[index]);
    return kType == DType::kFp8E4M3 ? FromE4M3(code) : FromE5M2(code);
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
  } else if constexpr (IsFp8(kType)) {
    base[index] = static_cast<std::byte>(kType == DType::kFp8E4M3 ? ToE4M3(x) : ToE5M2(x));
  } else {
    const uint16_t h = kType == DType::kBF16 ? ToBf16(x) : ToF16(x);
    std::memcpy(base + index * 2, &h, 2);
  }
}

#if BATON_HARDWARE_FMA

// 8 fp8 codes as the f16 of FromE5M2 and FromE4M3; e4m3 still lacks its factor and its NaN.
template <DType kType>
BATON_INLINE __m128i Fp8ToHalves(__m128i codes) {
  const __m128i upper = _mm_unpacklo_epi8(_mm_setzero_si128(), codes);
  if constexpr (kType == DType::kFp8E5M2) return upper;
  const __m128i sign = _mm_and_si128(upper, _mm_set1_epi16(static_cast<int16_t>(0x8000)));
  return _mm_or_si128(_mm_srli_epi16(_mm_slli_epi16(upper, 1), 2), sign);
}

template <DType kType>
BATON_INLINE __m256 LoadEightFp8(const std::byte* from) {
  const __m128i halves =
      Fp8ToHalves<kType>(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  const __m256 v = _mm256_cvtph_ps(halves);
  if constexpr (kType == DType::kFp8E5M2) return v;
  const __m256 scaled = _mm256_mul_ps(v, _mm256_set1_ps(256.0f));
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), scaled);
  // 480 is what the code of NaN would mean.
  const __m256 is_nan = _mm256_cmp_ps(magnitude, _mm256_set1_ps(480.0f), _CMP_EQ_OQ);
  return _mm256_or_ps(scaled, is_nan);
}

#endif

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
  } else if constexpr (IsFp8(kType)) {
    const std::byte* from = base + index;
#if BATON_HARDWARE_FMA
    const __m256 eights[2] = {LoadEightFp8<kType>(from), LoadEightFp8<kType>(from + 8)};
    std::memcpy(&v, eights, sizeof(v));
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
