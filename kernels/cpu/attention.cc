#include "kernels/cpu/attention.h"

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/lane_convert.h"
#include "kernels/cpu/lane_math.h"
#include "kernels/cpu/vec.h"

namespace baton::BATON_KERNEL_SET {
namespace {

// Keys of one partial state. Part of the numerics: changing it changes bits.
constexpr int64_t kPartialKeys = 512;

int64_t RoundUp(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// A task's rows: row r is query head r % group of token r / group. One piece of memory.
struct Workspace {
  int64_t rows = 0;
  int64_t group = 0;
  int64_t k_dim = 0;
  int64_t v_dim = 0;
  int64_t v_padded = 0;
  float* q = nullptr;               // [rows, k_dim]
  float* keys = nullptr;            // [32 panels][k_dim][16 keys]
  float* values = nullptr;          // [v_padded / 16 panels][512 keys][16]
  float* scores = nullptr;          // [rows, 512], then the unnormalised probabilities.
  float* partial = nullptr;         // [rows, v_padded]: of this partial.
  float* sum = nullptr;             // [rows, v_padded]: folded so far.
  float* max = nullptr;             // [rows]: greatest score so far.
  float* weight = nullptr;          // [rows]: sum of probabilities relative to max.
  float* partial_max = nullptr;     // [rows]
  float* partial_weight = nullptr;  // [rows]
};

// Lays the workspace out from `base` and returns its size in floats.
int64_t LayOut(const AttentionShape& shape, float* base, Workspace* w) {
  w->group = shape.group;
  w->rows = shape.num_queries * shape.group;
  w->k_dim = shape.k_dim;
  w->v_dim = shape.v_dim;
  w->v_padded = RoundUp(shape.v_dim);
  int64_t used = 0;
  const auto take = [&](int64_t size) {
    float* at = base == nullptr ? nullptr : base + used;
    used += RoundUp(size);
    return at;
  };
  w->q = take(w->rows * w->k_dim);
  w->keys = take(kPartialKeys * w->k_dim);
  w->values = take(kPartialKeys * w->v_padded);
  w->scores = take(w->rows * kPartialKeys);
  w->partial = take(w->rows * w->v_padded);
  w->sum = take(w->rows * w->v_padded);
  w->max = take(w->rows);
  w->weight = take(w->rows);
  w->partial_max = take(w->rows);
  w->partial_weight = take(w->rows);
  return used;
}

// The keys [first, first + count) of one head, found through the block table.
struct KeyRange {
  const int32_t* blocks;
  int64_t head;
  int64_t first;
  int64_t count;
};

int64_t ElementOf(const CachePlane& cache, const KeyRange& range, int64_t key) {
  const int64_t at = range.first + key;
  return range.blocks[at / cache.block_size] * cache.block_stride +
         (range.head * cache.block_size + at % cache.block_size) * cache.dim;
}

// Four rows of four become four columns.
typedef float Four __attribute__((vector_size(16)));
typedef int32_t FourIndexes __attribute__((vector_size(16)));
BATON_INLINE void TransposeFour(const float* const from[4], int64_t d, float* to) {
  Four r[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&r[i], from[i] + d, sizeof(Four));
  const Four ab_low = __builtin_shuffle(r[0], r[1], FourIndexes{0, 4, 1, 5});
  const Four ab_high = __builtin_shuffle(r[0], r[1], FourIndexes{2, 6, 3, 7});
  const Four cd_low = __builtin_shuffle(r[2], r[3], FourIndexes{0, 4, 1, 5});
  const Four cd_high = __builtin_shuffle(r[2], r[3], FourIndexes{2, 6, 3, 7});
  const Four out[4] = {__builtin_shuffle(ab_low, cd_low, FourIndexes{0, 1, 4, 5}),
                       __builtin_shuffle(ab_low, cd_low, FourIndexes{2, 3, 6, 7}),
                       __builtin_shuffle(ab_high, cd_high, FourIndexes{0, 1, 4, 5}),
                       __builtin_shuffle(ab_high, cd_high, FourIndexes{2, 3, 6, 7})};
  for (int i = 0; i < 4; ++i) std::memcpy(to + i * kLanes, &out[i], sizeof(Four));
}

// Keys become panels with one key per lane, so that a score adds its products in the order of d.
// Lanes past the last key are zero.
template <DType kType>
void StageKeys(const CachePlane& cache, const KeyRange& range, float* to) {
  const int64_t dim = cache.dim;
  const int64_t padded = RoundUp(range.count);
  for (int64_t key = 0; key < padded; key += 4) {
    float* panel = to + key / kLanes * dim * kLanes + key % kLanes;
    if (kType == DType::kF32 && key + 4 <= range.count && dim % 4 == 0) {
      const float* rows[4];
      for (int i = 0; i < 4; ++i) {
        rows[i] = reinterpret_cast<const float*>(cache.data) + ElementOf(cache, range, key + i);
      }
      for (int64_t d = 0; d < dim; d += 4) TransposeFour(rows, d, panel + d * kLanes);
      continue;
    }
    for (int i = 0; i < 4; ++i) {
      if (key + i >= range.count) {
        for (int64_t d = 0; d < dim; ++d) panel[d * kLanes + i] = 0.0f;
        continue;
      }
      const int64_t at = ElementOf(cache, range, key + i);
      for (int64_t d = 0; d < dim; ++d) {
        panel[d * kLanes + i] = LoadOne<kType>(cache.data, at + d);
      }
    }
  }
}

// Values become panels of 16 elements of d; elements past v_dim are zero.
template <DType kType>
void StageValues(const CachePlane& cache, const KeyRange& range, float* to) {
  const int64_t dim = cache.dim;
  for (int64_t key = 0; key < range.count; ++key) {
    const int64_t at = ElementOf(cache, range, key);
    for (int64_t d = 0; d < dim; d += kLanes) {
      float* out = to + (d / kLanes * kPartialKeys + key) * kLanes;
      if (d + kLanes <= dim) {
        Store(out, LoadLanes<kType>(cache.data, at + d));
        continue;
      }
      for (int64_t i = 0; i < kLanes; ++i) {
        out[i] = d + i < dim ? LoadOne<kType>(cache.data, at + d + i) : 0.0f;
      }
    }
  }
}

void Stage(const VarlenAttentionArgs& args, const KeyRange& range, const Workspace& w) {
  switch (args.k_cache.dtype) {
    case DType::kF32:
      StageKeys<DType::kF32>(args.k_cache, range, w.keys);
      return StageValues<DType::kF32>(args.v_cache, range, w.values);
    case DType::kF16:
      StageKeys<DType::kF16>(args.k_cache, range, w.keys);
      return StageValues<DType::kF16>(args.v_cache, range, w.values);
    case DType::kBF16:
      StageKeys<DType::kBF16>(args.k_cache, range, w.keys);
      return StageValues<DType::kBF16>(args.v_cache, range, w.values);
  }
}

struct RowKeys {
  int64_t group;
  int64_t position;  // Of the task's first query.
  int64_t first_key;
};

// How many keys of the partial row r sees; <= 0: none.
int64_t CountOf(int64_t row, const RowKeys& keys) {
  const int64_t count = keys.position + row / keys.group + 1 - keys.first_key;
  return count < kPartialKeys ? count : kPartialKeys;
}

// Turns the first `count` of a row of scores into exp(score * scale - max); the lanes after them
// become 0. Returns the max and the sum.
void Softmax(float* row, int64_t count, float scale, float* max, float* sum) {
  const int64_t full = count / kLanes * kLanes;
  const float lowest = -__builtin_inff();
  Vec best = Broadcast(lowest);
  for (int64_t i = 0; i < full; i += kLanes) {
    const Vec v = Load(row + i) * Broadcast(scale);
    Store(row + i, v);
    best = Max(v, best);
  }
  if (full < count) {
    float tail[kLanes];
    Store(tail, Load(row + full) * Broadcast(scale));
    for (int64_t i = count - full; i < kLanes; ++i) tail[i] = lowest;
    Store(row + full, Load(tail));
    best = Max(Load(tail), best);
  }
  *max = MaxLane(best);
  Vec total = Zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec e = Exp(Load(row + i) - Broadcast(*max));
    Store(row + i, e);
    total = total + e;
  }
  *sum = SumLanes(total);
}

// partial[row] = sum over the row's keys of probability * value. Rows of later tokens see more
// keys; what the first row of a group does not see is added row by row, in the same order.
void WeighValues(const Workspace& w, int64_t first_row, const RowKeys& keys) {
  constexpr int64_t kGroupRows = 6;
  for (int64_t row = first_row; row < w.rows; row += kGroupRows) {
    const int64_t rows = w.rows - row < kGroupRows ? w.rows - row : kGroupRows;
    const int64_t common = CountOf(row, keys);
    GemmBlock block{.a = w.scores + row * kPartialKeys,
                    .a_stride = kPartialKeys,
                    .m = rows,
                    .k = common,
                    .panels = reinterpret_cast<const std::byte*>(w.values),
                    .dtype = DType::kF32,
                    .panel_stride = kPartialKeys * kLanes,
                    .num_panels = w.v_padded / kLanes,
                    .out = w.partial + row * w.v_padded,
                    .out_stride = w.v_padded,
                    .n = w.v_padded};
    Gemm(block);
    for (int64_t r = row; r < row + rows; ++r) {
      const int64_t extra = CountOf(r, keys) - common;
      if (extra == 0) continue;
      block.a = w.scores + r * kPartialKeys + common;
      block.m = 1;
      block.k = extra;
      block.panels = reinterpret_cast<const std::byte*>(w.values + common * kLanes);
      block.out = w.partial + r * w.v_padded;
      block.accumulate = true;
      Gemm(block);
    }
  }
}

// Adds a partial state to a row's running state.
void Fold(const Workspace& w, int64_t row, float max, float weight) {
  float* sum = w.sum + row * w.v_padded;
  const float* partial = w.partial + row * w.v_padded;
  const float top = max > w.max[row] ? max : w.max[row];
  float scales[kLanes] = {w.max[row] - top, max - top};
  Store(scales, Exp(Load(scales)));
  for (int64_t d = 0; d < w.v_padded; d += kLanes) {
    const Vec old = Load(sum + d) * Broadcast(scales[0]);
    Store(sum + d, Fma(Load(partial + d), Broadcast(scales[1]), old));
  }
  w.weight[row] = w.weight[row] * scales[0] + weight * scales[1];
  w.max[row] = top;
}

void RunPartial(const VarlenAttentionArgs& args, const KeyRange& range, const RowKeys& keys,
                const Workspace& w) {
  Stage(args, range, w);
  int64_t first_row = 0;
  while (CountOf(first_row, keys) <= 0) ++first_row;
  const int64_t num_panels = RoundUp(range.count) / kLanes;
  Gemm({.a = w.q + first_row * w.k_dim,
        .a_stride = w.k_dim,
        .m = w.rows - first_row,
        .k = w.k_dim,
        .panels = reinterpret_cast<const std::byte*>(w.keys),
        .dtype = DType::kF32,
        .panel_stride = w.k_dim * kLanes,
        .num_panels = num_panels,
        .out = w.scores + first_row * kPartialKeys,
        .out_stride = kPartialKeys,
        .n = num_panels * kLanes});
  for (int64_t r = first_row; r < w.rows; ++r) {
    Softmax(w.scores + r * kPartialKeys, CountOf(r, keys), args.scale, &w.partial_max[r],
            &w.partial_weight[r]);
  }
  WeighValues(w, first_row, keys);
  for (int64_t r = first_row; r < w.rows; ++r) {
    if (keys.first_key == 0) {
      w.max[r] = w.partial_max[r];
      w.weight[r] = w.partial_weight[r];
      std::memcpy(w.sum + r * w.v_padded, w.partial + r * w.v_padded, w.v_padded * sizeof(float));
    } else {
      Fold(w, r, w.partial_max[r], w.partial_weight[r]);
    }
  }
}

}  // namespace

int64_t AttentionScratch(const AttentionShape& shape) {
  Workspace w;
  return LayOut(shape, nullptr, &w);
}

void Attention(const VarlenAttentionArgs& args, const AttentionTask& task, float* scratch) {
  const int64_t s = task.sequence;
  const int64_t group = args.num_heads / args.k_cache.num_heads;
  Workspace w;
  LayOut({task.q_end - task.q_begin, group, args.k_cache.dim, args.v_cache.dim}, scratch, &w);
  const int64_t first_head = task.kv_head * group;
  for (int64_t t = task.q_begin; t < task.q_end; ++t) {
    std::memcpy(w.q + (t - task.q_begin) * group * w.k_dim,
                args.q + t * args.q_stride + first_head * w.k_dim, group * w.k_dim * sizeof(float));
  }
  // Position of the task's first query, and the keys that its last query sees.
  const int64_t position = args.seq_lens[s] - args.cu_seqlens_q[s + 1] + task.q_begin;
  const int64_t num_keys = position + task.q_end - task.q_begin;
  for (int64_t first = 0; first < num_keys; first += kPartialKeys) {
    const int64_t left = num_keys - first;
    RunPartial(args,
               {.blocks = args.block_table + s * args.max_blocks,
                .head = task.kv_head,
                .first = first,
                .count = left < kPartialKeys ? left : kPartialKeys},
               {.group = group, .position = position, .first_key = first}, w);
  }
  for (int64_t r = 0; r < w.rows; ++r) {
    float* sum = w.sum + r * w.v_padded;
    const Vec weight = Broadcast(w.weight[r]);
    for (int64_t d = 0; d < w.v_padded; d += kLanes) Store(sum + d, Load(sum + d) / weight);
    RoundRow(args.round_to, sum, w.v_dim);
    const int64_t token = task.q_begin + r / group;
    std::memcpy(args.out + token * args.out_stride + (first_head + r % group) * w.v_dim, sum,
                w.v_dim * sizeof(float));
  }
}

}  // namespace baton::BATON_KERNEL_SET
