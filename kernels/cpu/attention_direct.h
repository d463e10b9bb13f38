#pragma once

// Attention of the few rows of one query: keys and values go from the cache into the products
// without being staged, and memory is asked for the next ones all the while. The bits are those of
// attention_tile.h. Internal linkage, as in vec.h.

#include <utility>

#include "kernels/cpu/attention_partial.h"
#include "kernels/cpu/attention_stage.h"
#include "kernels/cpu/attention_tile.h"

// Without a fused multiplication nothing is gained.
#define BATON_DIRECT_ATTENTION BATON_HARDWARE_FMA

#if BATON_DIRECT_ATTENTION

namespace baton {
namespace {

// Rows of a token that share keys at hand in the first cache.
inline constexpr int64_t kMaxDirectRows = 8;
// Keys from those at hand to those asked for.
inline constexpr int64_t kKeysAhead = 64;
inline constexpr int64_t kCacheLine = 64;

// Whether the rows of a partial are few and see the same keys.
inline bool IsDirect(const Workspace& w) { return w.rows == w.group && w.rows <= kMaxDirectRows; }

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
  // No entry of a block before the window is read.
  if (target < p.first_key + seen.begin) target = p.first_key + seen.begin;
  const int64_t here = p.first_key + (key > seen.begin ? key : seen.begin);
  return (past != values ? p.v : p.k).Ahead(here, target, p.wanted_keys);
}

// Keys or values [lanes.begin, lanes.end) of the 16 from `key` on.
struct DirectPanel {
  const HeadKeys& from;
  int64_t key;
  KeySpan lanes;
  int64_t column;          // Of `key` in the scores.
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

// scores[row][16 keys] = q . k.
template <int kRows, AttentionForm kForm, DType kType>
void ScoreRows(const DirectPanel& panel, const float* q, float* scores) {
  const int64_t dim = panel.from.plane->dim;
  int64_t at[kLanes];
  panel.from.LocateLanes(panel.key, panel.lanes, at);
  Vec sum[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r] = Zero();
  for (int64_t d = 0; d < dim; d += kBlockDim<kType>) {
    ForColumns<kType, kForm>(
        panel.from, at, d, panel.ahead + d * kLanes * SizeOf(kType),
        [&](int64_t step, int part, const Part& column) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            sum[r].p[part] = MultiplyAdd<kForm>(q[step * kRows + r], column, sum[r].p[part]);
          }
        });
    q += kBlockDim<kType> / kStep<kForm> * kRows;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) Store(scores + r * kScoreStride, sum[r]);
}

// Element `d` and the 15 after it, of which n exist, of the values of a step of keys.
template <AttentionForm kForm, DType kType>
BATON_INLINE Vec LoadValues(const DirectPanel& panel, const int64_t (&at)[kLanes], int64_t step,
                            int64_t d, int64_t n) {
  const std::byte* data = panel.from.plane->data;
#if defined(__AVX512BF16__)
  if constexpr (kForm == AttentionForm::kBf16Dot) {
    return LoadValuePair(data, at[2 * step] + d, at[2 * step + 1] + d, n,
                         PairMask(panel.lanes, step));
  }
#endif
  const Vec v = LoadUpTo<kType>(data, at[step] + d, n);
  return IsFp8(kType) ? v * Broadcast(panel.from.scale()) : v;
}

// Elements [d, d + 16 * kVecs), of the last vector n, of the sums of values:
// out[row] += probability * value.
template <int kRows, int kVecs, AttentionForm kForm, DType kType>
void WeighColumns(const DirectPanel& panel, const int64_t (&at)[kLanes], int64_t d, int64_t n,
                  const float* probabilities, float* out, int64_t out_stride) {
  constexpr int64_t kBytes = kLanes * SizeOf(kType) * kStep<kForm>;  // Of a vector.
  Vec sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sum[r][v] = Load(out + r * out_stride + d + v * kLanes);
  }
  const std::byte* ahead = panel.ahead + d * kLanes * SizeOf(kType);
  const int64_t end = (panel.lanes.end + kStep<kForm> - 1) / kStep<kForm>;
  for (int64_t s = panel.lanes.begin / kStep<kForm>; s < end; ++s) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v, ahead += kBytes) {
      if (v * kBytes % kCacheLine == 0) __builtin_prefetch(ahead, 0, 2);
      const Vec value =
          LoadValues<kForm, kType>(panel, at, s, d + v * kLanes, kVecs == 1 ? n : int64_t{kLanes});
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sum[r][v] = MultiplyAdd<kForm>(probabilities[r * kScoreStride + s], value, sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) Store(out + r * out_stride + d + v * kLanes, sum[r][v]);
  }
}

template <int kRows, AttentionForm kForm, DType kType>
void WeighRows(const DirectPanel& panel, const float* probabilities, float* out,
               int64_t out_stride) {
  constexpr int kVecs = kVecsOf<kRows>;
  const int64_t dim = panel.from.plane->dim;
  int64_t at[kLanes];
  panel.from.LocateLanes(panel.key, panel.lanes, at);
  Approach<kType>(*panel.from.plane, at);
  int64_t d = 0;
  for (; d + kVecs * kLanes <= dim; d += kVecs * kLanes) {
    WeighColumns<kRows, kVecs, kForm, kType>(panel, at, d, kLanes, probabilities, out, out_stride);
  }
  for (; d < dim; d += kLanes) {
    WeighColumns<kRows, 1, kForm, kType>(panel, at, d, dim - d, probabilities, out, out_stride);
  }
}

// Calls body with `rows`, in [1, kMax], as a constant.
template <typename Body, int... kRows>
BATON_INLINE void WithRows(int64_t rows, Body body, std::integer_sequence<int, kRows...>) {
  static_cast<void>(
      ((rows == kRows + 1 && (body(std::integral_constant<int, kRows + 1>()), true)) || ...));
}
// A tile of direct rows.
using DirectRows = std::make_integer_sequence < int,
      kMaxRows<kMaxDirectRows ? kMaxRows : kMaxDirectRows>;

template <AttentionForm kForm, DType kType>
void ScorePanel(const Workspace& w, const DirectPanel& panel) {
  const int64_t steps = (w.k_dim + kStep<kForm> - 1) / kStep<kForm>;
  for (int64_t tile = 0; tile < w.num_tiles; ++tile) {
    const int64_t row = w.TileBegin(tile);
    WithRows(
        w.TileBegin(tile + 1) - row,
        [&](auto n) {
          ScoreRows<n(), kForm, kType>(panel, w.q + row * steps,
                                       w.scores + row * kScoreStride + panel.column);
        },
        DirectRows());
  }
}

template <AttentionForm kForm, DType kType>
void WeighPanel(const Workspace& w, const DirectPanel& panel) {
  for (int64_t tile = 0; tile < w.num_tiles; ++tile) {
    const int64_t row = w.TileBegin(tile);
    WithRows(
        w.TileBegin(tile + 1) - row,
        [&](auto n) {
          WeighRows<n(), kForm, kType>(panel,
                                       w.scores + row * kScoreStride + panel.column / kStep<kForm>,
                                       w.partial + row * w.v_padded, w.v_padded);
        },
        DirectRows());
  }
}

}  // namespace
}  // namespace baton

#endif
