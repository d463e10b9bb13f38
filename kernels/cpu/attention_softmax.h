#pragma once

// From scores to probabilities. Internal linkage, as in vec.h.

#include <type_traits>

#include "kernels/cpu/attention_partial.h"
#include "kernels/cpu/lane_math.h"

namespace baton {
namespace {

inline constexpr float kInfinity = __builtin_inff();

// What becomes of the products of one row.
struct Scoring {
  float scale;
  float softcap;
  float slope;
  int64_t distance;  // From the partial's first key to the query.
};

// Scale, softcap, bias: of the 16 keys from `key` on.
BATON_INLINE Vec Transform(const Scoring& scoring, const Vec& product, int64_t key) {
  Vec v = product * Broadcast(scoring.scale);
  if (scoring.softcap > 0) v = Tanh(v / Broadcast(scoring.softcap)) * Broadcast(scoring.softcap);
  if (scoring.slope == 0) return v;
  float distances[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    const int64_t distance = scoring.distance - key - i;
    distances[i] = static_cast<float>(distance < 0 ? -distance : distance);
  }
  return Fma(Broadcast(-scoring.slope), Load(distances), v);
}

// Lanes outside of `lanes` become -inf.
BATON_INLINE Vec Within(const KeySpan& lanes, const Vec& v) {
  static constexpr int32_t kIndexes[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                               8, 9, 10, 11, 12, 13, 14, 15};
  const auto begin = static_cast<int32_t>(lanes.begin);
  const auto end = static_cast<int32_t>(lanes.end);
  Vec within;
  BATON_EACH_PART {
    IntPart index;
    std::memcpy(&index, kIndexes + i * kPartLanes, sizeof(index));
    within.p[i] = (index >= begin) & (index < end) ? v.p[i] : Part{} - kInfinity;
  }
  return within;
}

// The probabilities of 16 keys take their place in a row: as they are, or rounded to bf16 pairs.
// Returns what was stored.
template <AttentionForm kForm>
BATON_INLINE Vec StoreProbabilities(const Vec& e, float* row, int64_t key) {
#if defined(__AVX512BF16__)
  if constexpr (kForm == AttentionForm::kBf16Dot) {
    const auto halves = (__m256i)_mm512_cvtneps_pbh(e.p[0]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + key / 2), halves);
    Vec v;
    v.p[0] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    return v;
  }
#endif
  Store(row + key, e);
  return e;
}

// Turns the visible scores of row r into exp(score - max); lanes beside them become 0. Those that
// are only scaled are so twice instead of being kept.
template <AttentionForm kForm, bool kScaleOnly>
void SoftmaxOf(const Partial& p, int64_t r, const Scoring& scoring, const KeySpan& span,
               float* row) {
  const auto score = [&](int64_t key) __attribute__((always_inline)) {
    const Vec product = Load(row + key);
    const Vec v =
        kScaleOnly ? product * Broadcast(scoring.scale) : Transform(scoring, product, key);
    if (key >= span.begin && key + kLanes <= span.end) return v;
    return Within({span.begin - key, span.end - key}, v);
  };
  const int64_t first = span.begin / kLanes * kLanes;
  Vec best = Broadcast(-kInfinity);
  for (int64_t key = first; key < span.end; key += kLanes) {
    const Vec v = score(key);
    if (!kScaleOnly) Store(row + key, v);
    best = Max(v, best);
  }
  const float max = MaxLane(best);
  Vec total = Zero();
  const auto add = [&](int64_t key, auto count) __attribute__((always_inline)) {
    constexpr int kVecs = count;
    Vec e[kVecs];
    BATON_EACH_VEC e[v] = kScaleOnly ? score(key + v * kLanes) : Load(row + key + v * kLanes);
    BATON_EACH_VEC e[v] = e[v] - Broadcast(max);
    ExpBounded(e);
    BATON_EACH_VEC total = total + StoreProbabilities<kForm>(e[v], row, key + v * kLanes);
  };
  constexpr int kTogether = kPartLanes == 16 ? 4 : 1;  // As registers allow.
  int64_t key = first;
  for (; key + kTogether * kLanes <= RoundUp(span.end); key += kTogether * kLanes) {
    add(key, std::integral_constant<int, kTogether>());
  }
  for (; key < span.end; key += kLanes) add(key, std::integral_constant<int, 1>());
  p.w->partial_max[r] = max;
  p.w->partial_weight[r] = SumLanes(total);
}

template <AttentionForm kForm>
void Softmax(const Partial& p, int64_t r, const KeySpan& span, float* row) {
  const ScoreOptions& options = p.args->scores;
  const Scoring scoring{.scale = options.scale,
                        .softcap = options.softcap,
                        .slope = p.slopes == nullptr ? 0.0f : p.slopes[r % p.w->group],
                        .distance = p.position + r / p.w->group - p.first_key};
  if (scoring.softcap > 0 || scoring.slope != 0) {
    return SoftmaxOf<kForm, false>(p, r, scoring, span, row);
  }
  SoftmaxOf<kForm, true>(p, r, scoring, span, row);
}

// Softmax of all rows. Of one that sees no key only a weight of 0.
template <AttentionForm kForm>
void SoftmaxRows(const Partial& p) {
  for (int64_t r = 0; r < p.w->rows; ++r) {
    const KeySpan span = p.Visible(r);
    p.w->partial_weight[r] = 0.0f;
    if (span.begin < span.end) Softmax<kForm>(p, r, span, p.w->scores + r * kScoreStride);
  }
}

}  // namespace
}  // namespace baton
