#pragma once

// What one task of attention keeps: its memory, and the partial state in the making. Internal
// linkage, as in vec.h.

#include "kernels/cpu/attention_stage.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/visible_keys.h"

namespace baton {
namespace {

// Keys staged at a time: few rows stream through the first cache, many use what was staged.
inline int64_t BlockKeys(int64_t rows) { return rows <= kMaxRows ? 64 : 128; }

// Rows of a tile register.
inline constexpr int64_t kTileRows = 16;

// A task's rows: row r is query head r % group of token r / group. One piece of memory.
struct Workspace {
  int64_t rows = 0;
  int64_t group = 0;
  int64_t k_dim = 0;
  int64_t v_dim = 0;
  int64_t v_padded = 0;
  int64_t num_tiles = 0;            // Of rows, of nearly equal height.
  float* q = nullptr;               // Tile after tile, [steps of k_dim][rows of the tile].
  float* stage = nullptr;           // A block of keys, later of values.
  float* scores = nullptr;          // [rows, kScoreStride], then the unnormalised probabilities.
  float* partial = nullptr;         // [rows, v_padded]: of this partial state.
  float* partial_max = nullptr;     // [rows]
  float* partial_weight = nullptr;  // [rows]: sum of probabilities relative to partial_max.
  float* sum = nullptr;             // The same three, folded so far. A weight of 0: nothing yet.
  float* max = nullptr;
  float* weight = nullptr;

  int64_t TileBegin(int64_t tile) const { return tile * rows / num_tiles; }
};

// Lays the workspace out from `base` and returns its size in floats.
inline int64_t LayOut(const AttentionShape& shape, float* base, Workspace* w) {
  w->group = shape.group;
  w->rows = shape.rows();
  w->k_dim = shape.k_dim;
  w->v_dim = shape.v_dim;
  w->v_padded = shape.v_padded();
  w->num_tiles = (w->rows + kMaxRows - 1) / kMaxRows;
  int64_t used = 0;
  const auto take = [&](int64_t size) {
    float* at = base == nullptr ? nullptr : base + used;
    used += RoundUp(size);
    return at;
  };
  const int64_t widest = w->k_dim > w->v_padded ? w->k_dim : w->v_padded;
  int64_t stage = BlockKeys(w->rows) * widest;
  int64_t rows = w->rows;
#if defined(__AMX_BF16__)
  // Whole tiles, and all keys and values of a partial state in pairs.
  if (rows > kTileRows) rows = (rows + kTileRows - 1) / kTileRows * kTileRows;
  const int64_t pairs = kPartialKeys * (RoundUp((w->k_dim + 1) / 2) + w->v_padded / 2);
  if (pairs > stage) stage = pairs;
#endif
  w->q = take(rows * RoundUp(w->k_dim) + kLanes);  // Its last step stores whole registers.
  w->stage = take(stage);
  w->scores = take(rows * kScoreStride);
  w->partial = take(rows * w->v_padded);
  w->partial_max = take(w->rows);
  w->partial_weight = take(w->rows);
  w->sum = take(w->rows * w->v_padded);
  w->max = take(w->rows);
  w->weight = take(w->rows);
  return used;
}

// One partial state in the making. Keys are counted from its first one.
struct Partial {
  const VarlenAttentionArgs* args;
  const Workspace* w;
  HeadKeys k;
  HeadKeys v;
  const float* slopes;  // [rows of a token], or null.
  int64_t num_keys;     // Of the sequence.
  int64_t wanted_keys;  // The end of those that the task sees.
  int64_t position;     // Of the task's first query.
  int64_t first_key;

  // The keys of this partial that row r sees.
  KeySpan Visible(int64_t row) const {
    KeySpan span = VisibleKeys(args->scores, position + row / w->group, num_keys);
    span.begin = span.begin > first_key ? span.begin - first_key : 0;
    // A row whose chunk begins after this partial must not stretch what is staged beyond it.
    if (span.begin > kPartialKeys) span.begin = kPartialKeys;
    span.end = span.end - first_key < kPartialKeys ? span.end - first_key : kPartialKeys;
    if (span.end < span.begin) span.end = span.begin;
    return span;
  }
  // Of any row.
  KeySpan Staged() const { return {Visible(0).begin, Visible(w->rows - 1).end}; }
};

}  // namespace
}  // namespace baton
