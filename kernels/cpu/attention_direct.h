#pragma once

// Attention of the few rows of one query: keys and values go from the cache into the products
// without being staged, and memory is asked for the next ones all the while. The bits are those of
// attention_tile.h. Internal linkage, as in vec.h.

#include <utility>

#include "kernels/cpu/attention_partial.h"
#include "kernels/cpu/attention_stage.h"
#include "kernels/cpu/attention_tile.h"

#if defined(__AVX512F__)
#define BATON_DIRECT_ATTENTION 1
#else
#define BATON_DIRECT_ATTENTION 0
#endif

#if BATON_DIRECT_ATTENTION

namespace baton {
namespace {

// Rows whose sums stay in registers beside a panel of keys.
inline constexpr int kMaxDirectRows = 8;
// Keys from those at hand to those asked for.
inline constexpr int64_t kKeysAhead = 64;
inline constexpr int64_t kCacheLine = 64;

// Whether the rows of a partial are few, see the same keys, and fill whole vectors.
template <AttentionForm kForm>
bool IsDirect(const Partial& p) {
  const Workspace& w = *p.w;
  return w.rows == w.group && w.rows <= kMaxDirectRows && w.k_dim % (kLanes * kStep<kForm>) == 0 &&
         w.v_dim % (2 * kLanes) == 0;
}

// Where the 16 keys or values lie that will be wanted kKeysAhead after `key` of the partial, of
// which [seen.begin, seen.end) is read: after its keys come its values, after these the keys of the
// next partial. Lines are asked for in ascending order, which the second cache's own prefetch
// follows.
inline const std::byte* LinesAhead(const Partial& p, const KeySpan& seen, int64_t key,
                                   bool values) {
  const int64_t end = p.first_key + RoundUp(seen.end);
  int64_t target = p.first_key + key + kKeysAhead;
  const bool past = target >= end;
  if (past && !values) target += p.first_key + seen.begin / kLanes * kLanes - end;
  const HeadKeys& from = past != values ? p.v : p.k;
  const CachePlane& plane = *from.plane;
  int64_t at[kLanes];
  // Beyond the last key nothing is wanted: those at hand, which cost nothing.
  const bool last = target >= p.wanted_keys;
  from.Locate(last ? p.first_key + key : target, 1, at);
  // In small blocks the 16 do not lie in a row.
  if (plane.block_size % kLanes != 0 && !last) from.Prefetch(target, p.wanted_keys);
  return plane.data + at[0] * SizeOf(plane.dtype);
}

// Keys or values [key, key + 16).
struct DirectPanel {
  const HeadKeys& from;
  int64_t key;
  const std::byte* ahead;  // The lines to ask for meanwhile, as many as are read.
};

// Brings 16 values from the second cache into the first, line by line: the products read them
// across, which the hardware's prefetch does not follow.
template <DType kType>
BATON_INLINE void Approach(const CachePlane& plane, const int64_t (&at)[kLanes]) {
  for (const int64_t row : at) {
    const std::byte* from = plane.data + row * SizeOf(kType);
    for (int64_t byte = 0; byte < plane.dim * SizeOf(kType); byte += kCacheLine) {
      __builtin_prefetch(from + byte, 0, 3);
    }
  }
}

// The next kBytes that will be wanted.
template <int64_t kBytes>
BATON_INLINE void AskFor(const std::byte* from) {
#pragma GCC unroll 16
  for (int64_t byte = 0; byte < kBytes; byte += kCacheLine) __builtin_prefetch(from + byte, 0, 2);
}

// scores[row][16 keys] = q . k.
template <int kRows, AttentionForm kForm, DType kType>
void ScoreRows(const DirectPanel& panel, const float* q, float* scores) {
  constexpr int64_t kStepDim = kStep<kForm>;
  constexpr int64_t kSize = SizeOf(kType);
  const CachePlane& plane = *panel.from.plane;
  int64_t at[kLanes];
  panel.from.Locate(panel.key, kLanes, at);
  const Vec scale = Broadcast(panel.from.scale());
  Vec sum[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r] = Zero();
  for (int64_t d = 0; d < plane.dim; d += kLanes * kStepDim) {
    AskFor<kLanes * kLanes * kStepDim * kSize>(panel.ahead + d * kLanes * kSize);
    __m512 columns[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if constexpr (kForm == AttentionForm::kBf16Dot) {
        columns[i] = _mm512_loadu_ps(plane.data + (at[i] + d) * kSize);
      } else {
        const Vec v = LoadLanes<kType>(plane.data, at[i] + d);
        columns[i] = (IsFp8(kType) ? v * scale : v).p[0];
      }
    }
    Transpose(columns);
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; ++c) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sum[r] = MultiplyAdd<kForm>(q[c * kRows + r], {{columns[c]}}, sum[r]);
      }
    }
    q += kLanes * kRows;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) Store(scores + r * kScoreStride, sum[r]);
}

#if defined(__AVX512BF16__)

// 32 elements of two neighbours in pairs.
BATON_INLINE void LoadValuePairs(const std::byte* first, const std::byte* second, Vec (&v)[2]) {
  static constexpr auto kOrder = [] {
    struct {
      alignas(64) uint16_t low[32], high[32];
    } order{};
    for (uint16_t i = 0; i < 32; ++i) {
      order.low[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
      order.high[i] = static_cast<uint16_t>(order.low[i] + 16);
    }
    return order;
  }();
  const __m512i a = _mm512_loadu_si512(first);
  const __m512i b = _mm512_loadu_si512(second);
  v[0].p[0] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, _mm512_load_si512(kOrder.low), b));
  v[1].p[0] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, _mm512_load_si512(kOrder.high), b));
}

#endif

// Elements [d, d + 32 * kPairs) of the sums of values: out[row] += probability * value.
template <int kRows, int kPairs, AttentionForm kForm, DType kType>
void WeighColumns(const DirectPanel& panel, const int64_t (&at)[kLanes], int64_t d,
                  const float* probabilities, float* out, int64_t out_stride) {
  constexpr int64_t kStepKeys = kStep<kForm>;
  constexpr int64_t kSize = SizeOf(kType);
  const std::byte* data = panel.from.plane->data;
  const Vec scale = Broadcast(panel.from.scale());
  Vec sum[kRows][kPairs][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i) {
      sum[r][i][0] = Load(out + r * out_stride + d + i * 32);
      sum[r][i][1] = Load(out + r * out_stride + d + i * 32 + kLanes);
    }
  }
  constexpr int64_t kBytes = kStepKeys * 32 * kSize;
  const std::byte* ahead = panel.ahead + d * kLanes * kSize;
  for (int64_t s = 0; s < kLanes / kStepKeys; ++s) {
    const int64_t key = s * kStepKeys;
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i) {
      const int64_t element = d + i * 32;
      AskFor<kBytes>(ahead);
      ahead += kBytes;
      Vec v[2];
      if constexpr (kForm == AttentionForm::kBf16Dot) {
#if defined(__AVX512BF16__)
        LoadValuePairs(data + (at[key] + element) * kSize, data + (at[key + 1] + element) * kSize,
                       v);
#endif
      } else {
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          v[h] = LoadLanes<kType>(data, at[key] + element + h * kLanes);
          if constexpr (IsFp8(kType)) v[h] = v[h] * scale;
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float x = probabilities[r * kScoreStride + s];
        sum[r][i][0] = MultiplyAdd<kForm>(x, v[0], sum[r][i][0]);
        sum[r][i][1] = MultiplyAdd<kForm>(x, v[1], sum[r][i][1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i) {
      Store(out + r * out_stride + d + i * 32, sum[r][i][0]);
      Store(out + r * out_stride + d + i * 32 + kLanes, sum[r][i][1]);
    }
  }
}

template <int kRows, AttentionForm kForm, DType kType>
void WeighRows(const DirectPanel& panel, const float* probabilities, float* out,
               int64_t out_stride) {
  constexpr int kPairs = kRows <= 2 ? 4 : kRows <= 4 ? 2 : 1;
  const int64_t dim = panel.from.plane->dim;
  int64_t at[kLanes];
  panel.from.Locate(panel.key, kLanes, at);
  Approach<kType>(*panel.from.plane, at);
  int64_t d = 0;
  for (; d + 32 * kPairs <= dim; d += 32 * kPairs) {
    WeighColumns<kRows, kPairs, kForm, kType>(panel, at, d, probabilities, out, out_stride);
  }
  for (; d < dim; d += 32) {
    WeighColumns<kRows, 1, kForm, kType>(panel, at, d, probabilities, out, out_stride);
  }
}

// Calls body with `rows`, in [1, kMaxDirectRows], as a constant.
template <typename Body, int... kRows>
BATON_INLINE void WithRows(int64_t rows, Body body, std::integer_sequence<int, kRows...>) {
  static_cast<void>(
      ((rows == kRows + 1 && (body(std::integral_constant<int, kRows + 1>()), true)) || ...));
}

// `q` is [steps of k_dim][rows].
template <AttentionForm kForm, DType kType>
void ScorePanel(int64_t rows, const DirectPanel& panel, const float* q, float* scores) {
  WithRows(
      rows, [&](auto n) { ScoreRows<n(), kForm, kType>(panel, q, scores); },
      std::make_integer_sequence<int, kMaxDirectRows>());
}

template <AttentionForm kForm, DType kType>
void WeighPanel(int64_t rows, const DirectPanel& panel, const float* probabilities, float* out,
                int64_t out_stride) {
  WithRows(
      rows, [&](auto n) { WeighRows<n(), kForm, kType>(panel, probabilities, out, out_stride); },
      std::make_integer_sequence<int, kMaxDirectRows>());
}

}  // namespace
}  // namespace baton

#endif
