#pragma once

// What warps of attention do with 16 rows each by mma.sync, wherever K and V come from.
// kernels/cuda/attention.h has the order of the sums.

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/attention_tiles.h"

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

// Rows [first_row, first_row + most_rows) of a KV head of a sequence, or as many as there are.
BATON_DEVICE BlockWork WorkOf(const Problem& args, int64_t s, int kv_head, int first_row,
                              int most_rows) {
  BlockWork work;
  work.s = s;
  work.sequence = SequenceOf(args, s);
  work.kv_head = kv_head;
  work.group = args.num_heads / args.k_cache.num_heads;
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

template <int kDim, int kWarps, typename T>
BATON_DEVICE void LoadQueries(T (*tile)[kRowElements<kDim>], const Problem& args,
                              const BlockWork& work) {
  constexpr int kChunks = kDim / 8;
  const int dim = args.k_cache.dim;
  for (int index = threadIdx.x; index < kRowsOf<kWarps> * kChunks; index += kThreadsOf<kWarps>) {
    const int row = index / kChunks, column = index % kChunks * 8;
    const bool live = row < work.num_rows && column < dim;
    const int query = (work.first_row + row) / work.group;
    const int head = work.kv_head * work.group + (work.first_row + row) % work.group;
    const int64_t at =
        live ? (work.sequence.first_token + query) * args.q_stride + int64_t{head} * dim + column
             : 0;
    CopyAsync(&tile[row][column], static_cast<const T*>(args.q.data) + at, live);
  }
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

// The greatest of a row, whose elements four neighbouring lanes hold.
BATON_DEVICE float RowMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
BATON_DEVICE float RowSum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// scores += Q * K^T of a step. `at` tells where eight elements of a key lie in shared memory.
template <int kDim, typename T, typename Place>
BATON_DEVICE void MultiplyKeys(const T (*q)[kRowElements<kDim>], const Place& at, int lane,
                               float (&scores)[kStepKeys / 8][4]) {
  BATON_UNROLL
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t a[4];
    LoadMatrices(a, &q[lane % 16][step * 16 + lane / 16 * 8]);
    BATON_UNROLL
    for (int j = 0; j < kStepKeys / 16; ++j) {
      uint32_t b[4];
      LoadMatrices(b, at(j * 16 + lane % 8 + lane / 16 * 8, step * 16 + lane / 8 % 2 * 8));
      MultiplyAdd<T>(scores[2 * j], a, b[0], b[1]);
      MultiplyAdd<T>(scores[2 * j + 1], a, b[2], b[3]);
    }
  }
}

// sums += probabilities * V.
template <int kDim, typename T, typename Place>
BATON_DEVICE void MultiplyValues(const Place& at, int lane,
                                 const uint32_t (&probabilities)[kStepKeys / 8][2],
                                 float (&sums)[kDim / 8][4]) {
  BATON_UNROLL
  for (int j = 0; j < kStepKeys / 16; ++j) {
    const uint32_t a[4] = {probabilities[2 * j][0], probabilities[2 * j][1],
                           probabilities[2 * j + 1][0], probabilities[2 * j + 1][1]};
    BATON_UNROLL
    for (int d = 0; d < kDim / 16; ++d) {
      uint32_t b[4];
      LoadMatricesTransposed(b, at(j * 16 + lane % 16, d * 16 + lane / 16 * 8));
      MultiplyAdd<T>(sums[2 * d], a, b[0], b[1]);
      MultiplyAdd<T>(sums[2 * d + 1], a, b[2], b[3]);
    }
  }
}

// Scores become probabilities relative to the new maximum, rounded to T in pairs; what was summed
// before is scaled down to it.
template <int kDim, typename T>
BATON_DEVICE void Softmax(const Problem& args, float scale, int first_key, int lane, Row (&rows)[2],
                          float (&scores)[kStepKeys / 8][4],
                          uint32_t (&probabilities)[kStepKeys / 8][2], float (&sums)[kDim / 8][4]) {
  ScaleScores(args.scores, scale, scores);
  BATON_UNROLL
  for (int h = 0; h < 2; ++h) {
    Row& row = rows[h];
    float max = row.state.max;
    BATON_UNROLL
    for (int j = 0; j < kStepKeys / 8; ++j) {
      BATON_UNROLL
      for (int c = 0; c < 2; ++c) {
        float& x = scores[j][2 * h + c];
        x = ScoreOf(row, x, first_key + 8 * j + lane % 4 * 2 + c);
        max = fmaxf(max, x);
      }
    }
    max = RowMax(max);
    const float base = max == MinusInfinity() ? 0.0f : max;
    const float factor = Exp2(row.state.max - base);
    row.state = {max, row.state.sum * factor};
    BATON_UNROLL
    for (int j = 0; j < kStepKeys / 8; ++j) {
      const T low = FromFloat<T>(Exp2(scores[j][2 * h] - base));
      const T high = FromFloat<T>(Exp2(scores[j][2 * h + 1] - base));
      probabilities[j][h] = low.bits | uint32_t{high.bits} << 16;
      row.state.sum += ToFloat(low);
      row.state.sum += ToFloat(high);
    }
    BATON_UNROLL
    for (int d = 0; d < kDim / 8; ++d) {
      sums[d][2 * h] *= factor;
      sums[d][2 * h + 1] *= factor;
    }
  }
}

}  // namespace baton::cuda::attention
