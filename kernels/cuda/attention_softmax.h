#pragma once

// What threads that hold scores of 64 keys do with them, in the layout of mma's sums, which those
// of each warp of a wgmma share: lane / 4 and lane / 4 + 8 are its rows of a warp's 16, and of each
// 8 columns it has lane % 4 * 2 and the next.

#include "kernels/cuda/attention_rows.h"

namespace baton::cuda::attention {

// What a block works on.
struct BlockWork {
  int64_t s;
  Sequence sequence;
  int kv_head;
  int group;  // Heads that share the KV head.
  int first_row;
  int num_rows;   // Of the block's.
  KeyRange keys;  // What some row sees, and this block is to look at.
};

// Of rows [first_row, first_row + most_rows) of a KV head, as far as there are any.
BATON_DEVICE BlockWork WorkOfRows(const Problem& args, int64_t s, int kv_head, int first_row,
                                  int most_rows) {
  BlockWork work;
  work.group = args.num_heads / args.k_cache.num_heads;
  work.kv_head = kv_head;
  work.s = s;
  work.sequence = SequenceOf(args, s);
  work.first_row = first_row;
  work.num_rows = max(0, min(most_rows, work.sequence.num_queries * work.group - first_row));
  work.keys = {0, 0};
  if (work.num_rows == 0) return work;
  const auto visible = [&](int row) {
    return VisibleKeys(args.scores, work.sequence.PositionOf(row / work.group),
                       work.sequence.seq_len);
  };
  // What neighbours see overlaps or adjoins, and moves to the right.
  work.keys.begin = visible(first_row).begin;
  work.keys.end = visible(first_row + work.num_rows - 1).end;
  return work;
}

// One of the two rows of a thread, lane / 4 and lane / 4 + 8 of its warp's.
struct Row {
  KeyRange keys;
  int32_t position;
  float slope;  // Of ALiBi, in powers of two.
  SoftmaxState state;
};

BATON_DEVICE Row RowOf(const Problem& args, const BlockWork& work, int row) {
  Row out{{0, 0}, 0, 0.0f, {MinusInfinity(), 0.0f}};
  if (row >= work.num_rows) return out;
  out.position = work.sequence.PositionOf((work.first_row + row) / work.group);
  out.keys = VisibleKeys(args.scores, out.position, work.sequence.seq_len);
  if (args.scores.alibi_slopes != nullptr) {
    const int head = work.kv_head * work.group + (work.first_row + row) % work.group;
    out.slope = args.scores.alibi_slopes[work.s * args.scores.alibi_stride + head] * kLog2E;
  }
  return out;
}

// Products q . k become powers of two. A choice for each of them makes a softmax a third longer.
BATON_DEVICE void ScaleScores(const ScoreOptions& options, float scale,
                              float (&scores)[kStepKeys / 8][4]) {
  BATON_UNROLL
  for (int j = 0; j < kStepKeys / 8; ++j) {
    BATON_UNROLL
    for (int c = 0; c < 4; ++c) scores[j][c] *= scale;  // With log2(e), unless there is a softcap.
  }
  if (options.softcap <= 0) return;
  BATON_UNROLL
  for (int j = 0; j < kStepKeys / 8; ++j) {
    BATON_UNROLL
    for (int c = 0; c < 4; ++c) {
      scores[j][c] = options.softcap * Tanh(scores[j][c] / options.softcap) * kLog2E;
    }
  }
}

// With what the distance takes off; minus infinity where the row does not see the key.
BATON_DEVICE float ScoreOf(const Row& row, float x, int key) {
  if (key < row.keys.begin || key >= row.keys.end) return MinusInfinity();
  const int distance = row.position > key ? row.position - key : key - row.position;
  return fmaf(-row.slope, static_cast<float>(distance), x);
}

// Whether ScoreOf changes nothing of a step's.
BATON_DEVICE bool SeesAllAlike(const Row& row, int first_key) {
  return first_key >= row.keys.begin && first_key <= row.keys.end - kStepKeys && row.slope == 0;
}

// The greatest of a row, whose elements four neighbouring lanes hold.
BATON_DEVICE float RowMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
BATON_DEVICE float RowSum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

BATON_DEVICE void MaskScores(const Row (&rows)[2], int first_key, int lane,
                             float (&scores)[kStepKeys / 8][4]) {
  BATON_UNROLL
  for (int h = 0; h < 2; ++h) {
    if (SeesAllAlike(rows[h], first_key)) continue;
    BATON_UNROLL
    for (int i = 0; i < kStepKeys / 4; ++i) {
      float& x = scores[i / 2][2 * h + i % 2];
      x = ScoreOf(rows[h], x, first_key + 8 * (i / 2) + lane % 4 * 2 + i % 2);
    }
  }
}

// Of a row, and of what it had before: neighbours side by side, for each waits for the one before.
BATON_DEVICE float MaxOf(float before, const float (&scores)[kStepKeys / 8][4], int h) {
  float even = before, odd = scores[0][2 * h + 1];
  BATON_UNROLL
  for (int j = 0; j < kStepKeys / 8; ++j) {
    even = fmaxf(even, scores[j][2 * h]);
    if (j > 0) odd = fmaxf(odd, scores[j][2 * h + 1]);
  }
  return fmaxf(even, odd);
}

// Scores become probabilities relative to the new maximum, rounded to T. What was summed before is
// to be multiplied by `factors`, one for each row. Both rows go side by side, without a branch.
template <typename T>
BATON_DEVICE void Softmax(const Problem& args, float scale, int first_key, int lane, Row (&rows)[2],
                          float (&scores)[kStepKeys / 8][4], float (&factors)[2]) {
  ScaleScores(args.scores, scale, scores);
  MaskScores(rows, first_key, lane, scores);
  const float maxima[2] = {MaxOf(rows[0].state.max, scores, 0),
                           MaxOf(rows[1].state.max, scores, 1)};
  float bases[2];
  BATON_UNROLL
  for (int h = 0; h < 2; ++h) {
    SoftmaxState& state = rows[h].state;
    const float max = RowMax(maxima[h]);
    bases[h] = max == MinusInfinity() ? 0.0f : max;
    factors[h] = Exp2(state.max - bases[h]);
    state = {max, state.sum * factors[h]};
  }
  BATON_UNROLL
  for (int j = 0; j < kStepKeys / 8; ++j) {
    BATON_UNROLL
    for (int h = 0; h < 2; ++h) {
      float &low = scores[j][2 * h], &high = scores[j][2 * h + 1];
      const uint32_t rounded = RoundPair<T>(Exp2(low - bases[h]), Exp2(high - bases[h]));
      low = ToFloat(T{static_cast<uint16_t>(rounded)});
      high = ToFloat(T{static_cast<uint16_t>(rounded >> 16)});
      rows[h].state.sum += low;
      rows[h].state.sum += high;
    }
  }
}

// Probabilities as an operand of the products with V. Not a part of Softmax: while these products
// are in flight, nvcc serialises them if anything else writes registers that may become their
// operand.
template <typename T>
BATON_DEVICE void Pack(const float (&scores)[kStepKeys / 8][4],
                       uint32_t (&probabilities)[kStepKeys / 8][2]) {
  BATON_UNROLL
  for (int j = 0; j < kStepKeys / 8; ++j) {
    BATON_UNROLL
    for (int h = 0; h < 2; ++h) {
      probabilities[j][h] = RoundPair<T>(scores[j][2 * h], scores[j][2 * h + 1]);
    }
  }
}

template <int kColumns>
BATON_DEVICE void ScaleSums(const float (&factors)[2], float (&sums)[kColumns / 8][4]) {
  BATON_UNROLL
  for (int d = 0; d < kColumns / 8; ++d) {
    BATON_UNROLL
    for (int c = 0; c < 4; ++c) sums[d][c] *= factors[c / 2];
  }
}

// Ends a partial of both rows: what it came to, while they start anew.
BATON_DEVICE void EndPartial(Row (&rows)[2], SoftmaxState (&ended)[2]) {
  BATON_UNROLL
  for (int h = 0; h < 2; ++h) {
    ended[h] = rows[h].state;
    rows[h].state = {MinusInfinity(), 0.0f};
  }
}

// Folds it into the totals, of which total_of(h, d, c) is that of sums[d][2 h + c]; sums start
// anew.
template <int kColumns, typename TotalOf>
BATON_DEVICE void FoldPartial(const SoftmaxState (&ended)[2], float (&sums)[kColumns / 8][4],
                              SoftmaxState (&totals)[2], const TotalOf& total_of) {
  BATON_UNROLL
  for (int h = 0; h < 2; ++h) {
    const SoftmaxState state{ended[h].max, RowSum(ended[h].sum)};
    FoldFactors by{1.0f, 0.0f};
    if (state.max > MinusInfinity()) by = Fold(totals[h], state);
    BATON_UNROLL
    for (int d = 0; d < kColumns / 8; ++d) {
      BATON_UNROLL
      for (int c = 0; c < 2; ++c) {
        float& total = total_of(h, d, c);
        total = Fold(by, total, sums[d][2 * h + c]);
        sums[d][2 * h + c] = 0.0f;
      }
    }
  }
}

}  // namespace baton::cuda::attention
