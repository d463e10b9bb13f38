#pragma once

// What warps of attention do with 16 rows each by mma.sync, wherever K and V come from.
// kernels/cuda/attention.h has the order of the sums.

#include "kernels/cuda/attention_softmax.h"
#include "kernels/cuda/attention_tiles.h"

namespace baton::cuda::attention {

// Eight elements of Q.
template <int kDim, typename T>
BATON_DEVICE void LoadQuery(T (*tile)[kRowElements<kDim>], const Problem& args,
                            const BlockWork& work, int index) {
  constexpr int kChunks = kDim / 8;
  const int dim = args.k_cache.dim;
  const int row = index / kChunks, column = index % kChunks * 8;
  const bool live = row < work.num_rows && column < dim;
  const int query = (work.first_row + row) / work.group;
  const int head = work.kv_head * work.group + (work.first_row + row) % work.group;
  const int64_t at =
      live ? (work.sequence.first_token + query) * args.q_stride + int64_t{head} * dim + column : 0;
  CopyAsync(&tile[row][column], static_cast<const T*>(args.q.data) + at, live);
}

template <int kDim, int kWarps, typename T>
BATON_DEVICE void LoadQueries(T (*tile)[kRowElements<kDim>], const Problem& args,
                              const BlockWork& work) {
  for (int index = threadIdx.x; index < kRowsOf<kWarps> * kDim / 8; index += kThreadsOf<kWarps>) {
    LoadQuery<kDim>(tile, args, work, index);
  }
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

}  // namespace baton::cuda::attention
