#include "kernels/cpu/attention.h"

#include <type_traits>

#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_direct.h"
#include "kernels/cpu/attention_fold.h"
#include "kernels/cpu/attention_partial.h"
#include "kernels/cpu/attention_softmax.h"
#include "kernels/cpu/attention_stage.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/lane_convert.h"
#include "kernels/cpu/lane_math.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/visible_keys.h"

namespace baton::BATON_KERNEL_SET {
namespace {

// Calls body with the dtype as a constant.
template <AttentionForm kForm, typename Body>
void WithDType(DType dtype, Body body) {
  if constexpr (kForm == AttentionForm::kBf16Dot) {
    return body(std::integral_constant<DType, DType::kBF16>());
  } else {
    switch (dtype) {
      case DType::kF32:
        return body(std::integral_constant<DType, DType::kF32>());
      case DType::kF16:
        return body(std::integral_constant<DType, DType::kF16>());
      case DType::kBF16:
        return body(std::integral_constant<DType, DType::kBF16>());
      case DType::kFp8E4M3:
        return body(std::integral_constant<DType, DType::kFp8E4M3>());
      case DType::kFp8E5M2:
        return body(std::integral_constant<DType, DType::kFp8E5M2>());
    }
  }
}

template <AttentionForm kForm>
void StageKeys(const Partial& p, const KeySpan& span, float* to) {
  WithDType<kForm>(p.k.plane->dtype, [&](auto dtype) {
    for (int64_t key = span.begin / kLanes * kLanes; key < span.end; key += kLanes) {
      const KeySpan lanes = Clip(span, key, key + kLanes);
      const int64_t here = p.first_key + lanes.begin;
      StageKeyPanel<dtype(), kForm>(p.k, p.first_key + key, {lanes.begin - key, lanes.end - key},
                                    p.k.Ahead(here, here + BlockKeys(p.w->rows), p.wanted_keys),
                                    to);
      to += (p.w->k_dim + kStep<kForm> - 1) / kStep<kForm> * kLanes;
    }
  });
}

// Keys [span.begin, span.end) of the block that begins at `block`.
template <AttentionForm kForm>
void StageValueBlock(const Partial& p, const KeySpan& span, int64_t block, const ValueStage& to) {
  const int64_t key = p.first_key + span.begin;
  const int64_t count = span.end - span.begin;
  const int64_t offset = span.begin - block;
  if constexpr (kForm == AttentionForm::kBf16Dot) {
#if defined(__AVX512BF16__)
    StageValuePairs(p.v, key, count, offset, to);
#endif
  } else {
    WithDType<kForm>(p.v.plane->dtype,
                     [&](auto dtype) { StageValues<dtype()>(p.v, key, count, offset, to); });
  }
}

// scores[row][key] = q . k for every tile and panel in which some row sees some key.
template <AttentionForm kForm>
void ScoreBlock(const Partial& p, const KeySpan& span) {
  const Workspace& w = *p.w;
  const int64_t steps = (w.k_dim + kStep<kForm> - 1) / kStep<kForm>;
  StageKeys<kForm>(p, span, w.stage);
  const int64_t group = w.rows <= 4 ? 4 * kLanes : 2 * kLanes;
  const int64_t first = span.begin / kLanes * kLanes;
  for (int64_t key = first; key < span.end; key += group) {
    const int64_t end = key + group < RoundUp(span.end) ? key + group : RoundUp(span.end);
    for (int64_t tile = 0; tile < w.num_tiles; ++tile) {
      const int64_t row = w.TileBegin(tile);
      const int64_t rows = w.TileBegin(tile + 1) - row;
      const int64_t last = RoundUp(p.Visible(row + rows - 1).end);
      if (p.Visible(row).begin >= end || last <= key) continue;
      Product<kForm, true>(rows, {.a = w.q + row * steps,
                                  .w = w.stage + (key - first) * steps,
                                  .w_stride = steps * kLanes,
                                  .steps = steps,
                                  .num_vecs = ((end < last ? end : last) - key) / kLanes,
                                  .out = w.scores + row * kScoreStride + key,
                                  .out_stride = kScoreStride});
    }
  }
}

// A step of the sums over keys: one key, or a pair.
template <AttentionForm kForm>
struct RowSteps {
  KeySpan keys;
  int64_t begin() const { return keys.begin / kStep<kForm>; }
  int64_t end() const {
    return keys.begin == keys.end ? begin() : (keys.end + kStep<kForm> - 1) / kStep<kForm>;
  }
  // All keys of a step are seen.
  int64_t full_begin() const { return (keys.begin + kStep<kForm> - 1) / kStep<kForm>; }
  int64_t full_end() const { return keys.end / kStep<kForm>; }
  uint32_t Mask(int64_t step) const {
    if constexpr (kForm == AttentionForm::kF32) return ~0u;
    return PairMask(keys, step);
  }
};

// partial[row] += probability * value over the keys of a staged block, in ascending order for each
// row: what all rows of a tile see together, what only some see before and after it.
template <AttentionForm kForm>
void WeighTile(const Partial& p, int64_t row, int64_t rows, const KeySpan& block,
               const ValueStage& values) {
  const Workspace& w = *p.w;
  const int64_t first_step = block.begin / kStep<kForm>;
  const int64_t num_vecs = w.v_padded / kLanes;
  RowSteps<kForm> each[kMaxRows];
  int64_t begin = 0, end = INT64_MAX;
  for (int64_t r = 0; r < rows; ++r) {
    each[r].keys = Clip(p.Visible(row + r), block.begin, block.end);
    begin = each[r].full_begin() > begin ? each[r].full_begin() : begin;
    end = each[r].full_end() < end ? each[r].full_end() : end;
  }
  const auto single = [&](int64_t r, int64_t from, int64_t to) {
    for (int64_t s = from; s < to; ++s) {
      SingleStep<kForm>(w.scores[(row + r) * kScoreStride + s],
                        values.data + (s - first_step) * kLanes, values.stride, num_vecs,
                        each[r].Mask(s), w.partial + (row + r) * w.v_padded);
    }
  };
  if (begin >= end) {
    for (int64_t r = 0; r < rows; ++r) single(r, each[r].begin(), each[r].end());
    return;
  }
  for (int64_t r = 0; r < rows; ++r) single(r, each[r].begin(), begin);
  Product<kForm, false>(rows, {.a = w.scores + row * kScoreStride + begin,
                               .w = values.data + (begin - first_step) * kLanes,
                               .w_stride = values.stride,
                               .steps = end - begin,
                               .num_vecs = num_vecs,
                               .out = w.partial + row * w.v_padded,
                               .out_stride = w.v_padded});
  for (int64_t r = 0; r < rows; ++r) single(r, end, each[r].end());
}

#if BATON_DIRECT_ATTENTION

// RunPartial for the few rows of one query, which all see the same keys: keys and values go from
// the cache straight into the products.
template <AttentionForm kForm>
void RunDirectPartial(const Partial& p) {
  const KeySpan seen = p.Staged();
  const auto panel = [&](int64_t key, bool values) {
    const KeySpan lanes = Clip(seen, key, key + kLanes);
    return DirectPanel{.from = values ? p.v : p.k,
                       .key = p.first_key + key,
                       .lanes = {lanes.begin - key, lanes.end - key},
                       .column = key,
                       .ahead = LinesAhead(p, seen, key, values)};
  };
  const int64_t first = seen.begin / kLanes * kLanes;
  WithDType<kForm>(p.k.plane->dtype, [&](auto dtype) {
    for (int64_t key = first; key < seen.end; key += kLanes) {
      ScorePanel<kForm, dtype()>(*p.w, panel(key, false));
    }
  });
  SoftmaxRows<kForm>(p);
  std::memset(p.w->partial, 0, p.w->rows * p.w->v_padded * sizeof(float));
  WithDType<kForm>(p.v.plane->dtype, [&](auto dtype) {
    for (int64_t key = first; key < seen.end; key += kLanes) {
      WeighPanel<kForm, dtype()>(*p.w, panel(key, true));
    }
  });
}

#endif

// One partial state of all rows: w.partial, w.partial_max, w.partial_weight.
template <AttentionForm kForm>
void RunPartial(const Partial& p) {
#if BATON_DIRECT_ATTENTION
  if (IsDirect(*p.w)) return RunDirectPartial<kForm>(p);
#endif
  const Workspace& w = *p.w;
  const KeySpan staged = p.Staged();
  const int64_t block_keys = BlockKeys(w.rows);
  const int64_t first_block = staged.begin / block_keys * block_keys;
  for (int64_t block = first_block; block < staged.end; block += block_keys) {
    ScoreBlock<kForm>(p, Clip(staged, block, block + block_keys));
  }
  SoftmaxRows<kForm>(p);
  std::memset(w.partial, 0, w.rows * w.v_padded * sizeof(float));
  const ValueStage values{w.stage, block_keys / kStep<kForm> * kLanes};
  for (int64_t block = first_block; block < staged.end; block += block_keys) {
    for (int64_t key = block; key < block + block_keys; key += kLanes) {
      const KeySpan lanes = Clip(staged, key, key + kLanes);
      if (lanes.begin == lanes.end) continue;
      p.v.Prefetch(p.first_key + lanes.begin + block_keys, p.wanted_keys);
      StageValueBlock<kForm>(p, lanes, block, values);
    }
    for (int64_t tile = 0; tile < w.num_tiles; ++tile) {
      const int64_t row = w.TileBegin(tile);
      WeighTile<kForm>(p, row, w.TileBegin(tile + 1) - row, {block, block + block_keys}, values);
    }
  }
}

void Fold(const Workspace& w, int64_t row, const float* partial, float max, float weight) {
  FoldPartial(w.v_padded, partial, max, weight, w.sum + row * w.v_padded, w.max[row],
              w.weight[row]);
}

AttentionShape ShapeOf(const VarlenAttentionArgs& args, const AttentionTask& task) {
  return {task.q_end - task.q_begin, args.num_heads / args.k_cache.num_heads, args.k_cache.dim,
          args.v_cache.dim};
}

template <AttentionForm kForm>
void PackQueries(const VarlenAttentionArgs& args, const AttentionTask& task, const Workspace& w) {
  const int64_t steps = (w.k_dim + kStep<kForm> - 1) / kStep<kForm>;
  const float* q = args.q.f32();
  for (int64_t tile = 0; tile < w.num_tiles; ++tile) {
    const int64_t begin = w.TileBegin(tile);
    const int64_t rows = w.TileBegin(tile + 1) - begin;
    const float* queries[kMaxRows];
    for (int64_t r = 0; r < kMaxRows; ++r) {
      const int64_t row = begin + (r < rows ? r : rows - 1);
      queries[r] = q + (task.q_begin + row / w.group) * args.q_stride +
                   (task.kv_head * w.group + row % w.group) * w.k_dim;
    }
    PackTile<kForm>(queries, rows, w.k_dim, w.q + begin * steps);
  }
}

#if defined(__AMX_BF16__)

// With tiles the bf16 form is theirs.
template <AttentionForm kForm>
requires(kForm == AttentionForm::kBf16Dot) void PackQueries(const VarlenAttentionArgs& args,
                                                            const AttentionTask& task,
                                                            const Workspace& w) {
  PackTileQueries(args, task, w);
}

template <AttentionForm kForm>
requires(kForm == AttentionForm::kBf16Dot) void RunPartial(const Partial& p) {
  RunTilePartial(p, [&](int64_t r, const KeySpan& seen, float* scores) {
    Softmax<kForm>(p, r, seen, scores);
  });
}

#endif

void WriteOutput(const VarlenAttentionArgs& args, const AttentionTask& task, const Workspace& w) {
  float* out = args.out.f32();
  for (int64_t r = 0; r < w.rows; ++r) {
    float* sum = w.sum + r * w.v_padded;
    const int64_t token = task.q_begin + r / w.group;
    const int64_t head = task.kv_head * w.group + r % w.group;
    float lse = -kInfinity;
    if (w.weight[r] == 0) {
      std::memset(sum, 0, w.v_padded * sizeof(float));
    } else {
      const Vec weight = Broadcast(w.weight[r]);
      for (int64_t d = 0; d < w.v_padded; d += kLanes) Store(sum + d, Load(sum + d) / weight);
      RoundRow(args.round_to, sum, w.v_dim);
      lse = w.max[r] + Log(w.weight[r]);
    }
    std::memcpy(out + token * args.out_stride + head * w.v_dim, sum, w.v_dim * sizeof(float));
    if (args.lse != nullptr) args.lse[head * args.lse_stride + token] = lse;
  }
}

template <AttentionForm kForm>
void Run(const VarlenAttentionArgs& args, const AttentionTask& task, const Workspace& w) {
  const int64_t s = task.sequence;
  const int32_t* blocks = TableOf(args, s);
  const float* slopes = args.scores.alibi_slopes;
  if (slopes != nullptr) slopes += s * args.scores.alibi_stride + task.kv_head * w.group;
  PackQueries<kForm>(args, task, w);
  std::memset(w.weight, 0, w.rows * sizeof(float));
  const int64_t num_keys = args.seq_lens[s];
  const int64_t position = num_keys - args.cu_seqlens_q[s + 1] + task.q_begin;
  const int64_t last = position + task.q_end - task.q_begin - 1;
  for (int64_t i = task.partial_begin; i < task.partial_end; ++i) {
    RunPartial<kForm>({.args = &args,
                       .w = &w,
                       .k = {&args.k_cache, blocks, task.kv_head},
                       .v = {&args.v_cache, blocks, task.kv_head},
                       .slopes = slopes,
                       .num_keys = num_keys,
                       .wanted_keys = VisibleKeys(args.scores, last, num_keys).end,
                       .position = position,
                       .first_key = i * kPartialKeys});
    if (task.states == nullptr) {
      for (int64_t r = 0; r < w.rows; ++r) {
        Fold(w, r, w.partial + r * w.v_padded, w.partial_max[r], w.partial_weight[r]);
      }
      continue;
    }
    float* state = task.states + (i - task.partial_begin) * ShapeOf(args, task).StateFloats();
    std::memcpy(state, w.partial, w.rows * w.v_padded * sizeof(float));
    state += w.rows * w.v_padded;
    std::memcpy(state, w.partial_max, w.rows * sizeof(float));
    std::memcpy(state + w.rows, w.partial_weight, w.rows * sizeof(float));
  }
  if (task.states == nullptr) WriteOutput(args, task, w);
}

}  // namespace

int64_t AttentionScratch(const AttentionShape& shape) {
  Workspace w;
  return LayOut(shape, nullptr, &w);
}

void Attention(const VarlenAttentionArgs& args, const AttentionTask& task, float* scratch) {
  Workspace w;
  LayOut(ShapeOf(args, task), scratch, &w);
#if defined(__AVX512BF16__)
  if (args.round_to == DType::kBF16 && args.k_cache.dtype == DType::kBF16) {
#if defined(__AMX_BF16__)
    const TileSession tiles = AttentionTiles(w);
#endif
    return Run<AttentionForm::kBf16Dot>(args, task, w);
  }
#endif
  Run<AttentionForm::kF32>(args, task, w);
}

void ReduceAttention(const VarlenAttentionArgs& args, const AttentionTask& task, float* scratch) {
  Workspace w;
  const AttentionShape shape = ShapeOf(args, task);
  LayOut(shape, scratch, &w);
  std::memset(w.weight, 0, w.rows * sizeof(float));
  const float* state = task.states;
  for (int64_t i = task.partial_begin; i < task.partial_end; ++i, state += shape.StateFloats()) {
    const float* max = state + w.rows * w.v_padded;
    for (int64_t r = 0; r < w.rows; ++r) {
      Fold(w, r, state + r * w.v_padded, max[r], max[w.rows + r]);
    }
  }
  WriteOutput(args, task, w);
}

void MergeAttentionStates(const MergeAttentionStatesArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.dim;
  const float* out_a = args.out_a.f32();
  const float* out_b = args.out_b.f32();
  const int64_t out_stride = args.out_stride == 0 ? args.num_heads * dim : args.out_stride;
  const int64_t lse_stride = args.lse_stride == 0 ? args.num_tokens : args.lse_stride;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t h = 0; h < args.num_heads; ++h) {
      float* out = args.out.f32() + t * out_stride + h * dim;
      const int64_t at = h * args.num_tokens + t;
      const int64_t row = (t * args.num_heads + h) * dim;
      const float a = args.lse_a[at] == kInfinity ? -kInfinity : args.lse_a[at];
      const float b = args.lse_b[at] == kInfinity ? -kInfinity : args.lse_b[at];
      const float top = a > b || a != a ? a : b;  // What is no number stays none.
      float lse = -kInfinity;
      float shares[kLanes] = {a - top, b - top};
      if (top != -kInfinity) {
        Store(shares, Exp(Load(shares)));
        const float total = shares[0] + shares[1];
        lse = top + Log(total);
        shares[0] /= total;
        shares[1] /= total;
      }
      for (int64_t d = 0; d < dim; ++d) {
        // An empty side may hold anything.
        const float from_a = a == -kInfinity ? 0.0f : out_a[row + d] * shares[0];
        const float from_b = b == -kInfinity ? 0.0f : out_b[row + d] * shares[1];
        out[d] = from_a + from_b;
      }
      RoundRow(args.round_to, out, dim);
      if (args.lse != nullptr) args.lse[h * lse_stride + t] = lse;
    }
  }
}

}  // namespace baton::BATON_KERNEL_SET
