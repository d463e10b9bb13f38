#pragma once

// The register-blocked products of attention, on dwords: a dword is a float, or with the bf16 dot
// product two neighbours in the summed dimension. Internal linkage, as in vec.h.

#include <utility>

#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/lane_convert.h"
#include "kernels/cpu/vec.h"

namespace baton {
namespace {

// Floats from row to row of scores: not a power of two, so that rows do not share cache sets.
inline constexpr int64_t kScoreStride = kPartialKeys + kLanes;

enum class AttentionForm { kF32, kBf16Dot };

// Elements of the summed dimension per dword.
template <AttentionForm kForm>
inline constexpr int64_t kStep = kForm == AttentionForm::kBf16Dot ? 2 : 1;

// Rows that one pass holds in registers, and vectors of 16 columns beside them.
inline constexpr int kMaxRows = kPartLanes == 16 ? 12 : 6;
template <int kRows>
inline constexpr int kVecsOf = kPartLanes == 16 ? (kRows <= 4 ? 4 : 2) : (kRows <= 2 ? 2 : 1);

BATON_INLINE int64_t RoundUp(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

#if BATON_HARDWARE_FMA

// sum += a * w; a is one dword for all lanes.
template <AttentionForm kForm>
BATON_INLINE Part MultiplyAdd(float a, const Part& w, const Part& sum) {
#if defined(__AVX512BF16__)
  if constexpr (kForm == AttentionForm::kBf16Dot) {
    const auto pair = (__m512bh)_mm512_castps_si512(_mm512_set1_ps(a));
    return _mm512_dpbf16_ps(sum, pair, (__m512bh)_mm512_castps_si512(w));
  }
#endif
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(_mm512_set1_ps(a), w, sum);
#else
  return _mm256_fmadd_ps(_mm256_set1_ps(a), w, sum);
#endif
}

#endif

template <AttentionForm kForm>
BATON_INLINE Vec MultiplyAdd(float a, const Vec& w, const Vec& sum) {
#if BATON_HARDWARE_FMA
  Vec v;
  BATON_EACH_PART v.p[i] = MultiplyAdd<kForm>(a, w.p[i], sum.p[i]);
  return v;
#else
  return Fma(Broadcast(a), w, sum);
#endif
}

// out[rows][vecs * 16] (+)= a * w over `steps` dwords of the summed dimension.
struct TileProduct {
  const float* a = nullptr;
  const float* w = nullptr;  // [vecs][steps][16], vectors w_stride apart.
  int64_t w_stride = 0;
  int64_t steps = 0;
  int64_t num_vecs = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// kPacked: `a` is [steps][kRows] and sums start at 0 (queries); else [kRows][kScoreStride] and sums
// continue what `out` holds (probabilities). Each sum takes its products in ascending order,
// whatever kRows and kVecs are.
template <int kRows, int kVecs, AttentionForm kForm, bool kPacked>
void ProductTile(const TileProduct& t, int64_t vec) {
  constexpr int64_t kRowStride = kPacked ? 1 : kScoreStride;
  constexpr int64_t kStepStride = kPacked ? kRows : 1;
  Vec sum[kRows][kVecs];
  float* out = t.out + vec * kLanes;
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      sum[r][v] = kPacked ? Zero() : Load(out + r * t.out_stride + v * kLanes);
    }
  }
  const float* a = t.a;
  const float* w = t.w + vec * t.w_stride;
  for (int64_t s = 0; s < t.steps; ++s) {
    Vec weight[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) weight[v] = Load(w + v * t.w_stride);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const float x = a[r * kRowStride];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[r][v] = MultiplyAdd<kForm>(x, weight[v], sum[r][v]);
    }
    a += kStepStride;
    w += kLanes;
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) Store(out + r * t.out_stride + v * kLanes, sum[r][v]);
  }
}

template <int kRows, AttentionForm kForm, bool kPacked>
void ProductRows(const TileProduct& t) {
  constexpr int kVecs = kVecsOf<kRows>;
  int64_t vec = 0;
  for (; vec + kVecs <= t.num_vecs; vec += kVecs) ProductTile<kRows, kVecs, kForm, kPacked>(t, vec);
  for (; vec < t.num_vecs; ++vec) ProductTile<kRows, 1, kForm, kPacked>(t, vec);
}

template <AttentionForm kForm, bool kPacked, int... kRows>
BATON_INLINE void Dispatch(int64_t rows, const TileProduct& t,
                           std::integer_sequence<int, kRows...>) {
  static constexpr void (*kTiles[])(const TileProduct&) = {
      ProductRows<kRows + 1, kForm, kPacked>...};
  kTiles[rows - 1](t);
}

// rows in [1, kMaxRows].
template <AttentionForm kForm, bool kPacked>
BATON_INLINE void Product(int64_t rows, const TileProduct& t) {
  Dispatch<kForm, kPacked>(rows, t, std::make_integer_sequence<int, kMaxRows>());
}

// out[v_padded] += a * (the elements of w that `mask` lets through): one step of one row.
template <AttentionForm kForm>
BATON_INLINE void SingleStep(float a, const float* w, int64_t w_stride, int64_t num_vecs,
                             uint32_t mask, float* out) {
  for (int64_t v = 0; v < num_vecs; ++v) {
    Vec weight = Load(w + v * w_stride);
    if constexpr (kForm == AttentionForm::kBf16Dot) {
      BATON_EACH_PART {
        IntPart bits;
        std::memcpy(&bits, &weight.p[i], sizeof(bits));
        bits &= static_cast<int32_t>(mask);
        std::memcpy(&weight.p[i], &bits, sizeof(bits));
      }
    }
    Store(out + v * kLanes, MultiplyAdd<kForm>(a, weight, Load(out + v * kLanes)));
  }
}

}  // namespace
}  // namespace baton
