#pragma once

// The virtual vector of every CPU kernel: 16 floats, whatever the machine's registers hold. Each
// operation is IEEE per lane and fma is exact (rounded once), so all builds of one source give the
// same bits. Included only by the files that are compiled once per kernel set; everything here has
// internal linkage, so no object compiled for a newer CPU can replace one for the baseline.

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace baton {
namespace {

#if defined(__AVX512F__)
#define BATON_HARDWARE_FMA 1
inline constexpr int kPartLanes = 16;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define BATON_HARDWARE_FMA 1
inline constexpr int kPartLanes = 8;
#else
#define BATON_HARDWARE_FMA 0
inline constexpr int kPartLanes = 4;
#endif
inline constexpr int kLanes = 16;
inline constexpr int kParts = kLanes / kPartLanes;

typedef float Part __attribute__((vector_size(kPartLanes * 4)));
typedef int32_t IntPart __attribute__((vector_size(kPartLanes * 4)));

struct Vec {
  Part p[kParts];
};

#define BATON_INLINE inline __attribute__((always_inline))
#define BATON_EACH_PART _Pragma("GCC unroll 8") for (int i = 0; i < kParts; ++i)

BATON_INLINE Vec Load(const float* from) {
  Vec v;
  BATON_EACH_PART std::memcpy(&v.p[i], from + i * kPartLanes, sizeof(Part));
  return v;
}

BATON_INLINE void Store(float* to, const Vec& v) {
  BATON_EACH_PART std::memcpy(to + i * kPartLanes, &v.p[i], sizeof(Part));
}

// The first n lanes, n in [0, 16]; the others are zero, resp. not written.
#if defined(__AVX512F__)
BATON_INLINE Vec LoadFirst(const float* from, int64_t n) {
  return {{_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), from)}};
}

BATON_INLINE void StoreFirst(float* to, const Vec& v, int64_t n) {
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << n) - 1), v.p[0]);
}
#else
BATON_INLINE Vec LoadFirst(const float* from, int64_t n) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = from[i];
  return Load(lanes);
}

BATON_INLINE void StoreFirst(float* to, const Vec& v, int64_t n) {
  float lanes[kLanes];
  Store(lanes, v);
  for (int64_t i = 0; i < n; ++i) to[i] = lanes[i];
}
#endif

BATON_INLINE Vec Broadcast(float x) {
  Vec v;
  BATON_EACH_PART v.p[i] = x - Part{};
  return v;
}

BATON_INLINE Vec Zero() {
  Vec v;
  BATON_EACH_PART v.p[i] = Part{};
  return v;
}

BATON_INLINE Vec operator+(const Vec& a, const Vec& b) {
  Vec v;
  BATON_EACH_PART v.p[i] = a.p[i] + b.p[i];
  return v;
}
BATON_INLINE Vec operator-(const Vec& a, const Vec& b) {
  Vec v;
  BATON_EACH_PART v.p[i] = a.p[i] - b.p[i];
  return v;
}
BATON_INLINE Vec operator*(const Vec& a, const Vec& b) {
  Vec v;
  BATON_EACH_PART v.p[i] = a.p[i] * b.p[i];
  return v;
}
BATON_INLINE Vec operator/(const Vec& a, const Vec& b) {
  Vec v;
  BATON_EACH_PART v.p[i] = a.p[i] / b.p[i];
  return v;
}

// a where a > b, else b: a NaN in b stays.
BATON_INLINE Vec Max(const Vec& a, const Vec& b) {
  Vec v;
  BATON_EACH_PART v.p[i] = a.p[i] > b.p[i] ? a.p[i] : b.p[i];
  return v;
}
BATON_INLINE Vec Min(const Vec& a, const Vec& b) {
  Vec v;
  BATON_EACH_PART v.p[i] = a.p[i] < b.p[i] ? a.p[i] : b.p[i];
  return v;
}

typedef float Quarter __attribute__((vector_size(16)));

struct Quarters {
  Quarter q[4];
};

BATON_INLINE Quarters ToQuarters(const Vec& v) {
  Quarters quarters;
  std::memcpy(&quarters, &v, sizeof(v));
  return quarters;
}

BATON_INLINE Quarter Max(const Quarter& a, const Quarter& b) { return a > b ? a : b; }

// The greatest lane; exact, so the order does not matter.
BATON_INLINE float MaxLane(const Vec& v) {
  const Quarters lanes = ToQuarters(v);
  const Quarter best = Max(Max(lanes.q[0], lanes.q[2]), Max(lanes.q[1], lanes.q[3]));
  const float even = best[0] > best[2] ? best[0] : best[2];
  const float odd = best[1] > best[3] ? best[1] : best[3];
  return even > odd ? even : odd;
}

// ((lane 0 + lane 8) + (lane 4 + lane 12)) ...: the one order of a sum over lanes.
BATON_INLINE float SumLanes(const Vec& v) {
  const Quarters lanes = ToQuarters(v);
  const Quarter sum = (lanes.q[0] + lanes.q[2]) + (lanes.q[1] + lanes.q[3]);
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

#if !BATON_HARDWARE_FMA && defined(__SSE2__)

// a * b + c for two lanes, rounded once. The product of two floats is exact in double; the sum is
// rounded to odd (Boldo, Melquiond 2008), after which rounding to float cannot round twice.
BATON_INLINE __m128 FmaTwo(__m128 a, __m128 b, __m128 c) {
  const __m128d p = _mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b));
  const __m128d z = _mm_cvtps_pd(c);
  const __m128d s = _mm_add_pd(p, z);
  // Knuth's TwoSum: p + z = s + e exactly. NaN for infinities, which the comparisons drop.
  const __m128d zz = _mm_sub_pd(s, p);
  const __m128d e = _mm_add_pd(_mm_sub_pd(p, _mm_sub_pd(s, zz)), _mm_sub_pd(z, zz));
  const __m128d zero = _mm_setzero_pd();
  const __m128d positive = _mm_cmpgt_pd(e, zero);
  const __m128d negative = _mm_cmplt_pd(e, zero);
  // Where e points towards zero, s was rounded away from it: step back to the truncated value.
  const __m128d away = _mm_or_pd(_mm_and_pd(negative, _mm_cmpgt_pd(s, zero)),
                                 _mm_and_pd(positive, _mm_cmplt_pd(s, zero)));
  __m128i bits = _mm_add_epi64(_mm_castpd_si128(s), _mm_castpd_si128(away));
  const __m128i inexact = _mm_castpd_si128(_mm_or_pd(positive, negative));
  bits = _mm_or_si128(bits, _mm_srli_epi64(inexact, 63));
  return _mm_cvtpd_ps(_mm_castsi128_pd(bits));
}

// Fma for any lanes.
__attribute__((noinline)) inline void FmaExact(const Vec& a, const Vec& b, const Vec& c, Vec* out) {
  BATON_EACH_PART {
    const __m128 low = FmaTwo(a.p[i], b.p[i], c.p[i]);
    const __m128 high = FmaTwo(_mm_movehl_ps(a.p[i], a.p[i]), _mm_movehl_ps(b.p[i], b.p[i]),
                               _mm_movehl_ps(c.p[i], c.p[i]));
    out->p[i] = _mm_movelh_ps(low, high);
  }
}

BATON_INLINE __m128d SumInDouble(__m128 a, __m128 b, __m128 c) {
  return _mm_add_pd(_mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b)), _mm_cvtps_pd(c));
}

// Ones in a lane whose 29 bits below a float's last are 100...0: there a second rounding may err.
BATON_INLINE __m128i LooksTied(__m128d s) {
  const __m128i low = _mm_and_si128(_mm_castpd_si128(s), _mm_set1_epi64x(0x1fffffff));
  // The 1 in the upper half keeps that half, always zero, from comparing equal.
  return _mm_cmpeq_epi32(low, _mm_set1_epi64x(0x110000000));
}

// a * b + c, rounded once: double arithmetic rounds twice, but that shows only in the middle of two
// floats and among subnormals, which go the long way.
BATON_INLINE Vec Fma(const Vec& a, const Vec& b, const Vec& c) {
  Vec v;
  __m128i doubtful = _mm_setzero_si128();
  BATON_EACH_PART {
    const __m128d low = SumInDouble(a.p[i], b.p[i], c.p[i]);
    const __m128d high = SumInDouble(_mm_movehl_ps(a.p[i], a.p[i]), _mm_movehl_ps(b.p[i], b.p[i]),
                                     _mm_movehl_ps(c.p[i], c.p[i]));
    doubtful = _mm_or_si128(doubtful, _mm_or_si128(LooksTied(low), LooksTied(high)));
    const __m128 r = _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
    const __m128 magnitude = _mm_andnot_ps(_mm_set1_ps(-0.0f), r);
    const __m128 tiny = _mm_cmplt_ps(magnitude, _mm_set1_ps(0x1p-125f));
    doubtful = _mm_or_si128(doubtful, _mm_castps_si128(tiny));
    v.p[i] = r;
  }
  if (_mm_movemask_epi8(doubtful) != 0) FmaExact(a, b, c, &v);
  return v;
}

#elif BATON_HARDWARE_FMA

// a * b + c, rounded once.
BATON_INLINE Vec Fma(const Vec& a, const Vec& b, const Vec& c) {
  Vec v;
#if defined(__AVX512F__)
  BATON_EACH_PART v.p[i] = _mm512_fmadd_ps(a.p[i], b.p[i], c.p[i]);
#else
  BATON_EACH_PART v.p[i] = _mm256_fmadd_ps(a.p[i], b.p[i], c.p[i]);
#endif
  return v;
}

#else

// a * b + c, rounded once.
BATON_INLINE Vec Fma(const Vec& a, const Vec& b, const Vec& c) {
  Vec v;
  BATON_EACH_PART {
    for (int lane = 0; lane < kPartLanes; ++lane) {
      v.p[i][lane] = __builtin_fmaf(a.p[i][lane], b.p[i][lane], c.p[i][lane]);
    }
  }
  return v;
}

#endif

}  // namespace
}  // namespace baton
