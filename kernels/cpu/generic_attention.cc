#include "kernels/cpu/generic_attention.h"

#include "kernels/cpu/attention_fold.h"
#include "kernels/api/cache_strides.h"
#include "kernels/cpu/lane_convert.h"
#include "kernels/cpu/lane_math.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/visible_keys.h"

namespace baton::BATON_KERNEL_SET {
namespace {

constexpr float kInfinity = __builtin_inff();

// K or V of one KV head of one sequence.
struct HeadRows {
  const CachePlane* plane = nullptr;
  CacheStrides strides;
  float scale = 1.0f;
  const int32_t* blocks = nullptr;
  int64_t head = 0;
  int64_t first_row = 0;  // Of the sequence's rows in the cache.
  int64_t num_cached = 0;
  const float* dense = nullptr;  // Of the first key after the cached ones.
  int64_t dense_stride = 0;
  int64_t dim = 0;
};

template <DType kType>
void LoadCached(const HeadRows& rows, int64_t at, float* to, int64_t stride) {
  const CacheStrides& s = rows.strides;
  for (int64_t first = 0; first < rows.dim; first += s.group_dim, at += s.group) {
    for (int64_t d = 0; d < s.group_dim; ++d) {
      const float x = LoadOne<kType>(rows.plane->data, at + d);
      to[(first + d) * stride] = IsFp8(kType) ? x * rows.scale : x;
    }
  }
}

// to[d * stride] = element d of key `key`.
void LoadRow(const HeadRows& rows, int64_t key, float* to, int64_t stride) {
  if (key >= rows.num_cached) {
    const float* from = rows.dense + (key - rows.num_cached) * rows.dense_stride;
    for (int64_t d = 0; d < rows.dim; ++d) to[d * stride] = from[d];
    return;
  }
  const int64_t row = rows.first_row + key;
  const int64_t size = rows.plane->block_size;
  const int64_t at = rows.strides.At(rows.blocks[row / size], rows.head, row % size);
  switch (rows.plane->dtype) {
    case DType::kF32:
      return LoadCached<DType::kF32>(rows, at, to, stride);
    case DType::kF16:
      return LoadCached<DType::kF16>(rows, at, to, stride);
    case DType::kBF16:
      return LoadCached<DType::kBF16>(rows, at, to, stride);
    case DType::kFp8E4M3:
      return LoadCached<DType::kFp8E4M3>(rows, at, to, stride);
    case DType::kFp8E5M2:
      return LoadCached<DType::kFp8E5M2>(rows, at, to, stride);
  }
}

// A task in the making. Row r is query head r % group of token r / group.
struct Work {
  const GenericAttentionArgs* args = nullptr;
  AttentionTask task;
  AttentionShape shape;
  HeadRows k;
  HeadRows v;
  int64_t num_keys = 0;
  int64_t position = 0;      // Of the task's first query.
  float* keys = nullptr;     // Of a partial state: [panels of 16 keys][k_dim][16].
  float* values = nullptr;   // [512][v_padded]
  float* scores = nullptr;   // [512] of one row, then the unnormalised probabilities.
  float* partial = nullptr;  // [v_padded] of one row.
  float* sum = nullptr;      // [rows, v_padded], folded so far.
  float* max = nullptr;      // [rows]
  float* weight = nullptr;   // [rows]. 0: nothing yet.

  int64_t Head(int64_t row) const { return task.kv_head * shape.group + row % shape.group; }
  KeySpan Visible(int64_t row) const {
    return VisibleKeys(args->base.scores, position + row / shape.group, num_keys);
  }
  SparseBlocks Sparse(int64_t row) const {
    return SparseBlocksOf(args->sparsity, args->heads(), Head(row), num_keys);
  }
};

int64_t LayOut(const AttentionShape& shape, float* base, Work* w) {
  int64_t used = 0;
  const auto take = [&](int64_t size) {
    float* at = base == nullptr ? nullptr : base + used;
    used += (size + kLanes - 1) / kLanes * kLanes;
    return at;
  };
  w->keys = take(kPartialKeys * shape.k_dim);
  w->values = take(kPartialKeys * shape.v_padded());
  w->scores = take(kPartialKeys);
  w->partial = take(shape.v_padded());
  w->sum = take(shape.rows() * shape.v_padded());
  w->max = take(shape.rows());
  w->weight = take(shape.rows());
  return used;
}

// Keys of this partial state that row r sees, counted from its first.
KeySpan SpanOf(const Work& w, int64_t row, int64_t first_key) {
  KeySpan span = w.Visible(row);
  span.begin = span.begin > first_key ? span.begin - first_key : 0;
  // A row whose window or chunk begins after this partial must not stretch what is staged beyond
  // it.
  if (span.begin > kPartialKeys) span.begin = kPartialKeys;
  span.end = span.end - first_key < kPartialKeys ? span.end - first_key : kPartialKeys;
  if (span.end < span.begin) span.end = span.begin;
  return span;
}

// Brings in what some row sees. Neither end of a span falls from row to row.
void Stage(const Work& w, int64_t first_key) {
  const int64_t begin = SpanOf(w, 0, first_key).begin;
  const int64_t end = SpanOf(w, w.shape.rows() - 1, first_key).end;
  for (int64_t i = begin; i < end; ++i) {
    bool seen = false;
    // Sparsity goes by head; a sparse task has one token.
    for (int64_t r = 0; r < w.shape.group && !seen; ++r) seen = w.Sparse(r).Sees(first_key + i);
    if (!seen) continue;
    const int64_t panel = i / kLanes * kLanes;
    LoadRow(w.k, first_key + i, w.keys + panel * w.shape.k_dim + i % kLanes, kLanes);
    LoadRow(w.v, first_key + i, w.values + i * w.shape.v_padded(), 1);
  }
}

// Scale, softcap, bias: as Transform in attention.cc.
Vec Transform(const Work& w, const Vec& product, float slope, int64_t distance) {
  const ScoreOptions& options = w.args->base.scores;
  Vec v = product * Broadcast(options.scale);
  if (options.softcap > 0) v = Tanh(v / Broadcast(options.softcap)) * Broadcast(options.softcap);
  if (slope == 0) return v;
  float distances[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    const int64_t d = distance - i;
    distances[i] = static_cast<float>(d < 0 ? -d : d);
  }
  return Fma(Broadcast(-slope), Load(distances), v);
}

float SlopeOf(const Work& w, int64_t row) {
  const ScoreOptions& scores = w.args->base.scores;
  if (scores.alibi_slopes == nullptr) return 0;
  return scores.alibi_slopes[w.task.sequence * scores.alibi_stride + w.Head(row)];
}

// Scores of the keys that row r sees; of those beside them -inf. Returns the greatest.
float Score(const Work& w, int64_t r, int64_t first_key, const KeySpan& span) {
  const VarlenAttentionArgs& base = w.args->base;
  const int64_t token = w.task.q_begin + r / w.shape.group;
  const float* q = base.q.f32() + token * base.q_stride + w.Head(r) * w.shape.k_dim;
  const int64_t position = w.position + r / w.shape.group;
  const float slope = SlopeOf(w, r);
  const SparseBlocks sparse = w.Sparse(r);
  Vec best = Broadcast(-kInfinity);
  for (int64_t key = span.begin / kLanes * kLanes; key < span.end; key += kLanes) {
    Vec v = Zero();
    const float* panel = w.keys + key * w.shape.k_dim;
    for (int64_t d = 0; d < w.shape.k_dim; ++d) {
      v = Fma(Broadcast(q[d]), Load(panel + d * kLanes), v);
    }
    float lanes[kLanes];
    Store(lanes, Transform(w, v, slope, position - first_key - key));
    for (int64_t i = 0; i < kLanes; ++i) {
      const bool seen =
          key + i >= span.begin && key + i < span.end && sparse.Sees(first_key + key + i);
      if (!seen) lanes[i] = -kInfinity;
    }
    Store(w.scores + key, Load(lanes));
    best = Max(Load(lanes), best);
  }
  return MaxLane(best);
}

// One partial state of row r, folded into its running state.
void RunRow(const Work& w, int64_t r, int64_t first_key) {
  const KeySpan span = SpanOf(w, r, first_key);
  const SparseBlocks sparse = w.Sparse(r);
  int64_t first = span.begin;
  while (first < span.end && !sparse.Sees(first_key + first)) ++first;
  if (first >= span.end) return;
  const float max = Score(w, r, first_key, span);
  Vec total = Zero();
  for (int64_t key = span.begin / kLanes * kLanes; key < span.end; key += kLanes) {
    const Vec e = Exp(Load(w.scores + key) - Broadcast(max));
    Store(w.scores + key, e);
    total = total + e;
  }
  const int64_t v_padded = w.shape.v_padded();
  std::memset(w.partial, 0, v_padded * sizeof(float));
  for (int64_t key = first; key < span.end; ++key) {
    if (!sparse.Sees(first_key + key)) continue;
    const Vec p = Broadcast(w.scores[key]);
    for (int64_t d = 0; d < v_padded; d += kLanes) {
      Store(w.partial + d, Fma(p, Load(w.values + key * v_padded + d), Load(w.partial + d)));
    }
  }
  FoldPartial(v_padded, w.partial, max, SumLanes(total), w.sum + r * v_padded, w.max[r],
              w.weight[r]);
}

void WriteRow(const Work& w, int64_t r) {
  const VarlenAttentionArgs& base = w.args->base;
  const int64_t token = w.task.q_begin + r / w.shape.group;
  const int64_t v_padded = w.shape.v_padded();
  const int64_t v_dim = w.shape.v_dim;
  float* sum = w.sum + r * v_padded;
  float lse = -kInfinity;
  if (w.weight[r] == 0) {
    std::memset(sum, 0, v_padded * sizeof(float));
  } else {
    if (base.scores.sinks != nullptr) {
      std::memset(w.partial, 0, v_padded * sizeof(float));
      FoldPartial(v_padded, w.partial, base.scores.sinks[w.Head(r)], 1.0f, sum, w.max[r],
                  w.weight[r]);
    }
    const Vec weight = Broadcast(w.weight[r]);
    for (int64_t d = 0; d < v_padded; d += kLanes) Store(sum + d, Load(sum + d) / weight);
    RoundRow(base.round_to, sum, v_dim);
    lse = w.max[r] + Log(w.weight[r]);
  }
  float* out = base.out.f32() + token * base.out_stride + w.Head(r) * v_dim;
  std::memcpy(out, sum, v_dim * sizeof(float));
  if (base.lse != nullptr) base.lse[w.Head(r) * base.lse_stride + token] = lse;
}

// The rows of K, or of V, that the task's sequence has.
HeadRows RowsOf(const GenericAttentionArgs& args, const AttentionTask& task, CacheRole role) {
  const VarlenAttentionArgs& base = args.base;
  const bool is_key = role == CacheRole::kKey;
  const int64_t s = task.sequence;
  HeadRows rows{.head = task.kv_head};
  int64_t num_dense = 0;
  if (base.dense.cu_seqlens_k != nullptr) {
    const DenseKeys& dense = base.dense;
    const int64_t begin = dense.cu_seqlens_k[s];
    num_dense = dense.cu_seqlens_k[s + 1] - begin;
    rows.dim = is_key ? dense.k_dim : dense.v_dim;
    rows.dense_stride = is_key ? dense.k_stride : dense.v_stride;
    if (num_dense > 0) {  // Else there may be no memory to point to.
      rows.dense =
          (is_key ? dense.k : dense.v).f32() + begin * rows.dense_stride + task.kv_head * rows.dim;
    }
  }
  if (!args.has_cache()) return rows;
  const CachePlane& plane = is_key ? base.k_cache : base.v_cache;
  rows.plane = &plane;
  rows.strides = StridesOf(plane, role);
  if (plane.num_scales > 0) rows.scale = plane.scales[plane.num_scales == 1 ? 0 : task.kv_head];
  rows.blocks = TableOf(base, s);
  rows.first_row = args.leftpad == nullptr ? 0 : args.leftpad[s];
  rows.num_cached = base.seq_lens[s] - num_dense;
  rows.dim = plane.dim;
  return rows;
}

}  // namespace

int64_t GenericAttentionScratch(const AttentionShape& shape) {
  Work w;
  return LayOut(shape, nullptr, &w);
}

void GenericAttention(const GenericAttentionArgs& args, const AttentionTask& task, float* scratch) {
  const int64_t s = task.sequence;
  Work w{.args = &args,
         .task = task,
         .shape = args.shape(task.q_end - task.q_begin),
         .k = RowsOf(args, task, CacheRole::kKey),
         .v = RowsOf(args, task, CacheRole::kValue),
         .num_keys = args.base.seq_lens[s]};
  w.position = w.num_keys - args.base.cu_seqlens_q[s + 1] + task.q_begin;
  const int64_t floats = LayOut(w.shape, scratch, &w);
  // What is not staged must not look like a NaN to lanes that are computed and dropped.
  std::memset(scratch, 0, floats * sizeof(float));
  for (int64_t i = task.partial_begin; i < task.partial_end; ++i) {
    Stage(w, i * kPartialKeys);
    for (int64_t r = 0; r < w.shape.rows(); ++r) RunRow(w, r, i * kPartialKeys);
  }
  for (int64_t r = 0; r < w.shape.rows(); ++r) WriteRow(w, r);
}

}  // namespace baton::BATON_KERNEL_SET
