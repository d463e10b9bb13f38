#include "kernels/cpu/generic_attention.h"

#include "kernels/cpu/attention_fold.h"
#include "kernels/cpu/head_rows.h"
#include "kernels/cpu/lane_math.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/visible_keys.h"

namespace baton::BATON_KERNEL_SET {
namespace {

constexpr float kInfinity = __builtin_inff();

// A task in the making. Row r is query head r % group of token r / group.
struct Work {
  const GenericAttentionArgs* args = nullptr;
  AttentionTask task;
  AttentionShape shape;
  HeadRows k;
  HeadRows v;
  int64_t num_keys = 0;
  int64_t position = 0;      // Of the task's first query.
  float score_scale = 1;     // With q_descale and k_descale.
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

// A descale of the task's sequence and KV head.
float DescaleOf(const Work& w, const float* descales) {
  if (descales == nullptr) return 1.0f;
  return descales[w.task.sequence * w.args->base.scales.stride + w.task.kv_head];
}

// Scale, softcap, bias: as Transform in attention.cc.
Vec Transform(const Work& w, const Vec& product, float slope, int64_t distance) {
  const ScoreOptions& options = w.args->base.scores;
  Vec v = product * Broadcast(w.score_scale);
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

// One partial state of row r, whose sums of values are left in `partial`. A sum of 0: no key.
struct RowPartial {
  float max = -kInfinity;
  float sum = 0;
};

RowPartial RunRow(const Work& w, int64_t r, int64_t first_key) {
  const KeySpan span = SpanOf(w, r, first_key);
  const SparseBlocks sparse = w.Sparse(r);
  int64_t first = span.begin;
  while (first < span.end && !sparse.Sees(first_key + first)) ++first;
  const int64_t v_padded = w.shape.v_padded();
  std::memset(w.partial, 0, v_padded * sizeof(float));
  if (first >= span.end) return {};
  const float max = Score(w, r, first_key, span);
  Vec total = Zero();
  for (int64_t key = span.begin / kLanes * kLanes; key < span.end; key += kLanes) {
    const Vec e = Exp(Load(w.scores + key) - Broadcast(max));
    Store(w.scores + key, e);
    total = total + e;
  }
  for (int64_t key = first; key < span.end; ++key) {
    if (!sparse.Sees(first_key + key)) continue;
    const Vec p = Broadcast(w.scores[key]);
    for (int64_t d = 0; d < v_padded; d += kLanes) {
      Store(w.partial + d, Fma(p, Load(w.values + key * v_padded + d), Load(w.partial + d)));
    }
  }
  return {max, SumLanes(total)};
}

// Adds what is in `partial` to the running state of row r.
void FoldRow(const Work& w, int64_t r, const RowPartial& partial) {
  const int64_t v_padded = w.shape.v_padded();
  FoldPartial(v_padded, w.partial, partial.max, partial.sum, w.sum + r * v_padded, w.max[r],
              w.weight[r]);
}

// Of row r, which is a head of the task's only query, in the caller's partials.
int64_t PartialAt(const Work& w, int64_t r, int64_t partition) {
  const int64_t row = w.task.sequence * w.args->base.num_heads + w.Head(r);
  return row * w.args->partials.max_num_partitions + partition;
}

void StorePartial(const Work& w, int64_t r, int64_t partition, const RowPartial& partial) {
  const AttentionPartials& to = w.args->partials;
  const int64_t at = PartialAt(w, r, partition);
  to.max_logits[at] = partial.max;
  to.exp_sums[at] = partial.sum;
  std::memcpy(to.tmp_out + at * w.shape.v_dim, w.partial, w.shape.v_dim * sizeof(float));
}

RowPartial LoadPartial(const Work& w, int64_t r, int64_t partition) {
  const AttentionPartials& from = w.args->partials;
  const int64_t at = PartialAt(w, r, partition);
  std::memset(w.partial, 0, w.shape.v_padded() * sizeof(float));
  std::memcpy(w.partial, from.tmp_out + at * w.shape.v_dim, w.shape.v_dim * sizeof(float));
  return {from.max_logits[at], from.exp_sums[at]};
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
      FoldRow(w, r, {base.scores.sinks[w.Head(r)], 1.0f});
    }
    const Vec weight = Broadcast(w.weight[r]);
    const Vec descale = Broadcast(DescaleOf(w, base.scales.v_descale));
    const Vec output_scale = Broadcast(base.scales.output_scale);
    for (int64_t d = 0; d < v_padded; d += kLanes) {
      Store(sum + d, Load(sum + d) / weight * descale / output_scale);
    }
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
  HeadRows cached = RowsOfPlane(is_key ? base.k_cache : base.v_cache, role, task.kv_head);
  cached.blocks = TableOf(base, s);
  cached.first_row = args.leftpad == nullptr ? 0 : args.leftpad[s];
  cached.num_cached = base.seq_lens[s] - num_dense;
  cached.dense = rows.dense;
  cached.dense_stride = rows.dense_stride;
  return cached;
}

Work MakeWork(const GenericAttentionArgs& args, const AttentionTask& task, float* scratch) {
  const int64_t s = task.sequence;
  Work w{.args = &args,
         .task = task,
         .shape = args.shape(task.q_end - task.q_begin),
         .k = RowsOf(args, task, CacheRole::kKey),
         .v = RowsOf(args, task, CacheRole::kValue),
         .num_keys = args.base.seq_lens[s]};
  w.position = w.num_keys - args.base.cu_seqlens_q[s + 1] + task.q_begin;
  const AttentionScales& scales = args.base.scales;
  w.score_scale = args.base.scores.scale * (DescaleOf(w, scales.q_descale) *
                                            DescaleOf(w, scales.k_descale));
  const int64_t floats = LayOut(w.shape, scratch, &w);
  // What is not staged must not look like a NaN to lanes that are computed and dropped.
  std::memset(scratch, 0, floats * sizeof(float));
  return w;
}

}  // namespace

int64_t GenericAttentionScratch(const AttentionShape& shape) {
  Work w;
  return LayOut(shape, nullptr, &w);
}

void GenericAttention(const GenericAttentionArgs& args, const AttentionTask& task, float* scratch) {
  const Work w = MakeWork(args, task, scratch);
  const bool leaves_partials = args.partials.given();
  for (int64_t i = task.partial_begin; i < task.partial_end; ++i) {
    Stage(w, i * kPartialKeys);
    for (int64_t r = 0; r < w.shape.rows(); ++r) {
      const RowPartial partial = RunRow(w, r, i * kPartialKeys);
      if (leaves_partials) {
        StorePartial(w, r, i, partial);
      } else {
        FoldRow(w, r, partial);
      }
    }
  }
  if (leaves_partials) return;
  for (int64_t r = 0; r < w.shape.rows(); ++r) WriteRow(w, r);
}

void ReduceGenericAttention(const GenericAttentionArgs& args, const AttentionTask& task,
                            float* scratch) {
  const Work w = MakeWork(args, task, scratch);
  for (int64_t r = 0; r < w.shape.rows(); ++r) {
    for (int64_t i = task.partial_begin; i < task.partial_end; ++i) {
      FoldRow(w, r, LoadPartial(w, r, i));
    }
    WriteRow(w, r);
  }
}

}  // namespace baton::BATON_KERNEL_SET
