#pragma once

// What a row of attention is, whichever kernel computes it: its keys, how partials are folded, and
// how it ends. kernels/cuda/attention.h has the order of the sums.

#include "kernels/cuda/attention_problem.h"
#include "kernels/cuda/math.h"

namespace baton::cuda::attention {

constexpr int kStepKeys = 64;
constexpr float kLn2 = 0.69314718055994531f;

BATON_DEVICE float MinusInfinity() { return FromBits(0xff800000u); }

// Keys [begin, end); none if end <= begin.
struct KeyRange {
  int32_t begin;
  int32_t end;
};

// What the query at `position` sees.
BATON_DEVICE KeyRange VisibleKeys(const ScoreOptions& scores, int32_t position, int32_t seq_len) {
  KeyRange keys{0, seq_len};
  if (scores.causal) keys.end = min(keys.end, position + 1);
  // No sum of two that overflows.
  if (scores.window_left >= 0) {
    const int64_t begin = int64_t{position} - scores.window_left;
    if (begin > keys.begin) keys.begin = static_cast<int32_t>(begin);
  }
  if (scores.window_right >= 0) {
    const int64_t end = int64_t{position} + scores.window_right + 1;
    if (end < keys.end) keys.end = static_cast<int32_t>(end);
  }
  if (scores.local_chunk > 0 && position >= 0) {
    keys.begin = max(keys.begin, position / scores.local_chunk * scores.local_chunk);
  }
  return keys;
}

// Queries of a sequence.
struct Sequence {
  int64_t first_token;
  int32_t num_queries;
  int32_t seq_len;

  BATON_DEVICE int32_t PositionOf(int32_t query) const { return seq_len - num_queries + query; }
};

BATON_DEVICE Sequence SequenceOf(const Problem& args, int64_t s) {
  if (args.cu_seqlens_q == nullptr) return {s, 1, args.seq_lens[s]};
  const int32_t first = args.cu_seqlens_q[s];
  return {first, args.cu_seqlens_q[s + 1] - first, args.seq_lens[s]};
}

BATON_DEVICE const int32_t* TableOf(const Problem& args, int64_t s) {
  return args.block_table +
         (args.table_starts == nullptr ? s * args.max_blocks : args.table_starts[s]);
}

// Maximum and sum of a softmax over some keys, of powers of two.
struct SoftmaxState {
  float max;
  float sum;
};

// By what the two sides of a fold are multiplied.
struct FoldFactors {
  float total;
  float partial;
};

// Adds a partial that saw a key.
BATON_DEVICE FoldFactors Fold(SoftmaxState& total, const SoftmaxState& partial) {
  const float max = fmaxf(total.max, partial.max);
  const FoldFactors by{Exp2(total.max - max), Exp2(partial.max - max)};
  total = {max, fmaf(total.sum, by.total, partial.sum * by.partial)};
  return by;
}
BATON_DEVICE float Fold(const FoldFactors& by, float total, float partial) {
  return fmaf(total, by.total, partial * by.partial);
}

BATON_DEVICE float ScaleOf(const CachePlane& cache, int head) {
  if (cache.num_scales == 0) return 1.0f;
  return cache.scales[cache.num_scales == 1 ? 0 : head];
}

// By what the sums of a row are multiplied at its end; adds the sink. Of the threads that share the
// row one writes the LSE.
BATON_DEVICE float EndRow(const Problem& args, SoftmaxState row, int64_t token, int head,
                          int kv_head, bool writes_lse) {
  const bool saw_a_key = row.max > MinusInfinity();
  float factor = 1.0f;
  if (saw_a_key && args.scores.sinks != nullptr) {
    const float sink = args.scores.sinks[head] * kLog2E;
    const float max = fmaxf(row.max, sink);
    factor = Exp2(row.max - max);
    row = {max, fmaf(row.sum, factor, Exp2(sink - max))};
  }
  if (args.lse != nullptr && writes_lse) {
    args.lse[head * args.lse_stride + token] =
        saw_a_key ? (row.max + Log2(row.sum)) * kLn2 : MinusInfinity();
  }
  return saw_a_key ? factor / row.sum * ScaleOf(args.v_cache, kv_head) : 0.0f;
}

// Where a row's results begin.
BATON_DEVICE int64_t FirstResult(const Problem& args, int64_t token, int head) {
  return token * args.out_stride + int64_t{head} * args.v_cache.dim;
}

template <typename T>
BATON_DEVICE void StoreResult(const Problem& args, int64_t token, int head, int column,
                              float x) {
  const int64_t at = FirstResult(args, token, head) + column;
  if (args.out.dtype == DType::kF32) {
    static_cast<float*>(args.out.data)[at] = x;
  } else {
    static_cast<T*>(args.out.data)[at] = FromFloat<T>(x);
  }
}

// What a thread has of a row: total 2 d + c is of column 8 d + lane % 4 * 2 + c.
template <typename Out>
BATON_DEVICE void StoreRow(Out* to, const float* totals, int stride, float factor, int lane,
                           int dim) {
  BATON_ROLLED
  for (int d = 0; d < dim / 8; ++d) {
    BATON_UNROLL
    for (int c = 0; c < 2; ++c) {
      to[8 * d + lane % 4 * 2 + c] = FromFloat<Out>(totals[(2 * d + c) * stride] * factor);
    }
  }
}

// Partials of a call with scratch memory: [T * num_heads][partials] states, then as many rows of
// [dim].
struct Scratch {
  int num_partials;
  int dim;
  float* data;

  BATON_DEVICE float* StateOf(int64_t row, int partial) const {
    return data + (row * num_partials + partial) * (2 + dim);
  }
  BATON_DEVICE float* SumsOf(int64_t row, int partial) const { return StateOf(row, partial) + 2; }
};

// Folds partials [first, last] of a row in their order: of its sums kColumns from `column` on,
// which begin as zeros: one, or two from an even one. Several partials are loaded at once.
template <int kColumns>
BATON_DEVICE SoftmaxState FoldStates(const Scratch& scratch, int64_t row, int first, int last,
                                     int column, float (&sums)[kColumns]) {
  constexpr int kAtOnce = 16;
  SoftmaxState total{MinusInfinity(), 0.0f};
  BATON_ROLLED
  for (int some = first; some <= last; some += kAtOnce) {
    SoftmaxState states[kAtOnce];
    float partials[kAtOnce][kColumns];
    BATON_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      states[i] = {MinusInfinity(), 0.0f};
      if (some + i > last) continue;
      const float* from = scratch.StateOf(row, some + i);
      states[i] = {from[0], from[1]};
      from += 2 + column;
      if constexpr (kColumns == 2) {
        const float2 both = *reinterpret_cast<const float2*>(from);
        partials[i][0] = both.x;
        partials[i][1] = both.y;
      } else {
        partials[i][0] = from[0];
      }
    }
    BATON_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (states[i].max == MinusInfinity()) continue;  // No key was seen, or there is no partial.
      const FoldFactors by = Fold(total, states[i]);
      BATON_UNROLL
      for (int c = 0; c < kColumns; ++c) sums[c] = Fold(by, sums[c], partials[i][c]);
    }
  }
  return total;
}

}  // namespace baton::cuda::attention
