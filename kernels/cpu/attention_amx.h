#pragma once

// Attention in the tile registers of AMX: the form AttentionForm::kBf16Dot where the set has them.
// Queries and probabilities are tiles of 16 rows; keys and values are staged in pairs: for a whole
// partial state at once, as all tiles of a task's rows use them, but for a single tile as many as
// stay in the first cache. Internal linkage, as in vec.h.
//
// The order, of each row alone whatever shares its tile: a score adds one instruction per 32
// elements of the head, a sum of values one per 32 keys (counted from the partial's first) of which
// the row sees some; what a row does not see is zero on both sides.

#if defined(__AMX_BF16__)

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/attention_direct.h"
#include "kernels/cpu/attention_partial.h"
#include "kernels/cpu/attention_stage.h"
#include "kernels/cpu/attention_tile.h"

namespace baton {
namespace {

// Elements of the summed dimension, and dwords of them, per instruction.
inline constexpr int64_t kGroup = 32;
inline constexpr int64_t kGroupDwords = kGroup / 2;
inline constexpr int64_t kTileFloats = 16 * kLanes;
inline constexpr int64_t kMaxVPadded = 256;

inline int64_t Groups(int64_t elements) { return (elements + kGroup - 1) / kGroup; }

// The registers for tiles of a task's rows: 0 to 3 hold sums, 4 rows, 5 to 7 columns.
inline TileSession AttentionTiles(const Workspace& w) {
  const auto rows = static_cast<uint8_t>(w.rows < kTileRows ? w.rows : kTileRows);
  return TileSession({rows, rows, rows, rows, rows, 16, 16, 16});
}

// out[rows of a tile][columns of 16] (+)= a * b over groups of 32. Strides in floats.
struct GroupProduct {
  const float* a = nullptr;  // [rows][groups of 16 dwords]
  int64_t a_stride = 0;
  const float* b = nullptr;  // [16][16] dwords for each group and column.
  int64_t b_group = 0;       // From group to group,
  int64_t b_column = 0;      // from column to column.
  int64_t groups = 0;
  int64_t columns = 0;
  bool continues = false;  // Adds to `out`; else starts at 0.
  float* out = nullptr;
  int64_t out_stride = 0;
};

#define BATON_BEGIN_SUM(tile)                                       \
  if constexpr (tile < kColumns) {                                  \
    if (p.continues) {                                              \
      BATON_TILE_LOAD(tile, out + (tile)*kLanes, p.out_stride * 4); \
    } else {                                                        \
      BATON_TILE_ZERO(tile);                                        \
    }                                                               \
  }
#define BATON_ADD_GROUP(tile, column)                     \
  if constexpr (tile < kColumns) {                        \
    BATON_TILE_STREAM(column, b + (tile)*p.b_column, 64); \
    BATON_TILE_PRODUCT(tile, 4, column);                  \
  }
#define BATON_END_SUM(tile) \
  if constexpr (tile < kColumns) BATON_TILE_STORE(tile, out + (tile)*kLanes, p.out_stride * 4)

template <int kColumns>
BATON_INLINE void MultiplyColumns(const GroupProduct& p, int64_t column) {
  float* out = p.out + column * kLanes;
  const float* a = p.a;
  const float* b = p.b + column * p.b_column;
  BATON_BEGIN_SUM(0)
  BATON_BEGIN_SUM(1)
  BATON_BEGIN_SUM(2)
  BATON_BEGIN_SUM(3)
  for (int64_t g = 0; g < p.groups; ++g) {
    BATON_TILE_LOAD(4, a, p.a_stride * 4);
    BATON_ADD_GROUP(0, 5)
    BATON_ADD_GROUP(1, 6)
    BATON_ADD_GROUP(2, 7)
    BATON_ADD_GROUP(3, 5)
    a += kGroupDwords;
    b += p.b_group;
  }
  BATON_END_SUM(0);
  BATON_END_SUM(1);
  BATON_END_SUM(2);
  BATON_END_SUM(3);
}

inline void Multiply(const GroupProduct& p) {
  int64_t column = 0;
  for (; column + 4 <= p.columns; column += 4) MultiplyColumns<4>(p, column);
  if (p.columns - column == 3) MultiplyColumns<3>(p, column);
  if (p.columns - column == 2) MultiplyColumns<2>(p, column);
  if (p.columns - column == 1) MultiplyColumns<1>(p, column);
}

// Keys of a partial that are staged for a single tile.
inline constexpr int64_t kStreamedKeys = 64;

// Where keys and values are staged.
struct TileStage {
  int64_t first;       // The first of them, counted from the partial's; a multiple of 32.
  int64_t key_groups;  // Of 32 elements.
  int64_t columns;     // Of values: 16 elements.
  float* keys;         // [panels of 16 keys][key_groups][16 pairs][16 keys]
  float* values;       // [groups of 32 keys][columns][16 pairs][16 elements]

  TileStage(const Workspace& w, int64_t first_key)
      : first(first_key),
        key_groups(Groups(w.k_dim)),
        columns(w.v_padded / kLanes),
        keys(w.stage),
        values(w.stage + kPartialKeys * key_groups * kGroupDwords) {}

  int64_t panel() const { return key_groups * kTileFloats; }
  int64_t group() const { return columns * kTileFloats; }
  float* KeysFrom(int64_t key) const { return keys + (key - first) / kLanes * panel(); }
  float* ValuesFrom(int64_t key) const { return values + (key - first) / kGroup * group(); }
};

// Queries become [rows][key_groups][32] in bf16; beyond the head's elements they are zero.
inline void PackTileQueries(const VarlenAttentionArgs& args, const AttentionTask& task,
                            const Workspace& w) {
  const int64_t padded = Groups(w.k_dim) * kGroup;
  auto* out = reinterpret_cast<std::byte*>(w.q);
  const float* queries = args.q.f32();
  for (int64_t r = 0; r < w.rows; ++r) {
    const float* q = queries + (task.q_begin + r / w.group) * args.q_stride +
                     (task.kv_head * w.group + r % w.group) * w.k_dim;
    for (int64_t d = 0; d < padded; d += kLanes, out += kLanes * 2) {
      const int64_t left = w.k_dim - d;
      const Vec v = LoadFirst(q + d, left < 0 ? 0 : left < kLanes ? left : kLanes);
      const auto halves = (__m256i)_mm512_cvtneps_pbh(v.p[0]);
      std::memcpy(out, &halves, sizeof(halves));
    }
  }
}

// Keys `span` of those that the task sees.
inline void StageTileKeys(const Partial& p, const KeySpan& task, const KeySpan& span,
                          const TileStage& stage) {
  const int64_t unused = stage.panel() - (p.w->k_dim + 1) / 2 * kLanes;
  for (int64_t key = span.begin / kLanes * kLanes; key < span.end; key += kLanes) {
    const KeySpan lanes = Clip(span, key, key + kLanes);
    float* to = stage.KeysFrom(key);
    StageKeyPanel<DType::kBF16, AttentionForm::kBf16Dot>(p.k, p.first_key + key,
                                                         {lanes.begin - key, lanes.end - key},
                                                         LinesAhead(p, task, key, false), to);
    std::memset(to + stage.panel() - unused, 0, unused * sizeof(float));
  }
}

// The same for values. Of a group of which the task does not see all keys the others become zero.
inline void StageTileValues(const Partial& p, const KeySpan& task, const KeySpan& span,
                            const TileStage& stage) {
  for (int64_t key = span.begin / kGroup * kGroup; key < span.end; key += kGroup) {
    const KeySpan keys = Clip(span, key, key + kGroup);
    float* to = stage.ValuesFrom(key);
    if (keys.end - keys.begin < kGroup) std::memset(to, 0, stage.group() * sizeof(float));
    for (int64_t half = key; half < keys.end; half += kLanes) {
      const std::byte* ahead = LinesAhead(p, task, half, true);
      for (int64_t byte = 0; byte < kLanes * p.v.plane->dim * 2; byte += kCacheLine) {
        __builtin_prefetch(ahead + byte, 0, 2);
      }
    }
    StageValuePairs(p.v, p.first_key + keys.begin, keys.end - keys.begin, keys.begin - key,
                    {to, kTileFloats});
  }
}

// A tile of a task's rows, with one partial state of theirs.
struct RowTile {
  const Partial& p;
  int64_t row;
  int64_t rows;
  float* scores;  // [kTileRows, kScoreStride], later probabilities in pairs.

  KeySpan Visible(int64_t r) const { return p.Visible(row + r); }
  // What of `span` some row sees.
  KeySpan Seen(const KeySpan& span) const {
    return Clip(span, Visible(0).begin, Visible(rows - 1).end);
  }
};

// Scores of the keys that are staged.
inline void ScoreRowTile(const RowTile& t, const TileStage& stage, const KeySpan& staged) {
  const KeySpan seen = t.Seen(staged);
  if (seen.begin == seen.end) return;
  const int64_t begin = seen.begin / kLanes * kLanes;
  const int64_t dwords = stage.key_groups * kGroupDwords;
  Multiply({.a = t.p.w->q + t.row * dwords,
            .a_stride = dwords,
            .b = stage.KeysFrom(begin),
            .b_group = kTileFloats,
            .b_column = stage.panel(),
            .groups = stage.key_groups,
            .columns = (RoundUp(seen.end) - begin) / kLanes,
            .out = t.scores + begin,
            .out_stride = kScoreStride});
}

// Probabilities lie in halves of a group; a half without any becomes zero.
inline void CompleteGroups(const KeySpan& seen, float* row) {
  const auto clear = [&](int64_t key) {
    std::memset(row + key / 2, 0, kLanes / 2 * sizeof(float));
  };
  if (seen.begin % kGroup >= kLanes) clear(seen.begin / kGroup * kGroup);
  if (RoundUp(seen.end) % kGroup != 0) clear(RoundUp(seen.end));
}

// sum += probabilities * values over the groups from `key` on.
inline GroupProduct WeighGroups(const RowTile& t, const TileStage& stage, int64_t key,
                                int64_t groups) {
  return {.a = t.scores + key / 2,
          .a_stride = kScoreStride,
          .b = stage.ValuesFrom(key),
          .b_group = stage.group(),
          .b_column = kTileFloats,
          .groups = groups,
          .columns = stage.columns,
          .continues = true,
          .out = t.p.w->partial + t.row * t.p.w->v_padded,
          .out_stride = t.p.w->v_padded};
}

// A group of which the tile's rows see different keys: the instruction computes all rows with the
// values that some of them see, and only theirs are kept.
inline void WeighMixedGroup(const RowTile& t, const TileStage& stage, int64_t first) {
  alignas(64) float values[kMaxVPadded / kLanes * kTileFloats];
  alignas(64) float sums[kTileRows * kMaxVPadded];
  const int64_t v_padded = t.p.w->v_padded;
  const auto seen_by = [&](int64_t r) { return Clip(t.Visible(r), first, first + kGroup); };
  GroupProduct product = WeighGroups(t, stage, first, 1);
  float* partial = product.out;
  const float* all = product.b;
  product.b = values;
  product.out = sums;
  for (int64_t r = 0, next = 0; r < t.rows; r = next) {
    const KeySpan seen = seen_by(r);
    for (next = r + 1; next < t.rows; ++next) {
      const KeySpan other = seen_by(next);
      if (other.begin != seen.begin || other.end != seen.end) break;
    }
    if (seen.begin == seen.end) continue;
    for (int64_t pair = 0; pair < kGroupDwords; ++pair) {
      const auto half = [&](int64_t key, uint32_t bits) {
        return seen.begin <= key && key < seen.end ? bits : 0;
      };
      const uint32_t mask = half(first + 2 * pair, 0xffff) | half(first + 2 * pair + 1, 0xffff0000);
      for (int64_t at = pair * kLanes; at < stage.group(); at += kTileFloats) {
        const __m512i both = _mm512_loadu_si512(all + at);
        _mm512_storeu_si512(values + at, _mm512_and_si512(both, _mm512_set1_epi32(mask)));
      }
    }
    const int64_t bytes = (next - r) * v_padded * 4;
    std::memcpy(sums + r * v_padded, partial + r * v_padded, bytes);
    Multiply(product);
    std::memcpy(partial + r * v_padded, sums + r * v_padded, bytes);
  }
}

// The sums of values over the keys that are staged.
inline void WeighRowTile(const RowTile& t, const TileStage& stage, const KeySpan& staged) {
  const KeySpan seen = t.Seen(staged);
  const int64_t begin = t.Visible(t.rows - 1).begin;
  const int64_t end = t.Visible(0).end;
  // Whether all rows see all that was staged of the group from `key` on.
  const auto is_full = [&](int64_t key) {
    const KeySpan keys = Clip(staged, key, key + kGroup);
    return begin <= keys.begin && keys.end <= end;
  };
  for (int64_t key = seen.begin / kGroup * kGroup; key < seen.end; key += kGroup) {
    int64_t full_end = key;
    while (full_end < seen.end && is_full(full_end)) full_end += kGroup;
    if (full_end > key) Multiply(WeighGroups(t, stage, key, (full_end - key) / kGroup));
    if (full_end < seen.end) WeighMixedGroup(t, stage, full_end);
    key = full_end;
  }
}

// The partial's scores of a tile become probabilities, and its sums zero. softmax(row, seen,
// scores) does so for a row.
template <typename Softmax>
void BeginSums(const RowTile& t, Softmax softmax) {
  const Workspace& w = *t.p.w;
  for (int64_t r = 0; r < t.rows; ++r) {
    const KeySpan seen = t.Visible(r);
    float* scores = t.scores + r * kScoreStride;
    w.partial_weight[t.row + r] = 0;
    if (seen.begin == seen.end) continue;
    softmax(t.row + r, seen, scores);
    CompleteGroups(seen, scores);
  }
  std::memset(w.partial + t.row * w.v_padded, 0, t.rows * w.v_padded * sizeof(float));
}

template <typename Softmax>
void RunSingleTile(const Partial& p, Softmax softmax) {
  const Workspace& w = *p.w;
  const KeySpan task = p.Staged();
  const int64_t first = task.begin / kStreamedKeys * kStreamedKeys;
  const RowTile tile{p, 0, w.rows, w.scores};
  for (int64_t key = first; key < task.end; key += kStreamedKeys) {
    const TileStage stage(w, key);
    const KeySpan keys = Clip(task, key, key + kStreamedKeys);
    StageTileKeys(p, task, keys, stage);
    ScoreRowTile(tile, stage, keys);
  }
  BeginSums(tile, softmax);
  for (int64_t key = first; key < task.end; key += kStreamedKeys) {
    const TileStage stage(w, key);
    const KeySpan keys = Clip(task, key, key + kStreamedKeys);
    StageTileValues(p, task, keys, stage);
    WeighRowTile(tile, stage, keys);
  }
}

// One partial state of all rows: w.partial, w.partial_max, w.partial_weight.
template <typename Softmax>
void RunTilePartial(const Partial& p, Softmax softmax) {
  const Workspace& w = *p.w;
  if (w.rows <= kTileRows) return RunSingleTile(p, softmax);
  const KeySpan task = p.Staged();
  const TileStage stage(w, 0);
  StageTileKeys(p, task, task, stage);
  StageTileValues(p, task, task, stage);
  for (int64_t row = 0; row < w.rows; row += kTileRows) {
    const int64_t rows = w.rows - row < kTileRows ? w.rows - row : kTileRows;
    const RowTile tile{p, row, rows, w.scores};
    ScoreRowTile(tile, stage, task);
    BeginSums(tile, softmax);
    WeighRowTile(tile, stage, task);
  }
}

}  // namespace
}  // namespace baton

#endif
