#pragma once

// What a block of the attention kernels is, and what it holds in shared memory.

#include "kernels/cuda/attention_rows.h"

namespace baton::cuda::attention {

// A block takes 64 rows of one KV head: queries by the heads that share it, row = query * group +
// head. Each warp has 16 of them and sees all keys, so that no bit depends on how many warps there
// are. K and V have one tile each in shared memory: V arrives during the product with K, the next K
// during the product with V.
constexpr int kMostWarps = 4;
template <int kWarps>
constexpr int kThreadsOf = 32 * kWarps;
template <int kWarps>
constexpr int kRowsOf = 16 * kWarps;

// Elements of a row in shared memory: an odd number of 16-byte chunks, so that the eight rows of
// one ldmatrix lie in different banks.
template <int kDim>
constexpr int kRowElements = kDim + 8;
// Sums of all partials so far stay in registers while there are enough of them.
template <int kDim>
constexpr bool kTotalsInShared = kDim > 128;
// Warps of a block where it gets less shared memory than four need.
template <int kDim>
constexpr int kFewWarps = kDim <= 128 ? kMostWarps : kDim <= 192 ? 2 : 1;

template <int kDim, typename T, int kWarps>
struct Tiles {
  T q[kRowsOf<kWarps>][kRowElements<kDim>];
  T k[kStepKeys][kRowElements<kDim>];
  T v[kStepKeys][kRowElements<kDim>];
  // Each thread has a column: the totals of one of its rows, then those of the other.
  float totals[kTotalsInShared<kDim> ? kDim / 2 : 1][kThreadsOf<kWarps>];
};

// The sums of all partials so far, of two rows.
template <int kDim>
struct Totals {
  SoftmaxState state[2];
  float sums[kTotalsInShared<kDim> ? 1 : kDim / 8][4];
};

// A row's totals where a loop can count through them: unrolled, storing them was half of a kernel.
// Those of registers go to rows of Q, which are this warp's and were read before the last barrier.
template <int kDim, typename T, int kWarps>
BATON_DEVICE const float* RowTotals(Tiles<kDim, T, kWarps>& shared, const Totals<kDim>& totals,
                                    int h, int warp, int lane) {
  if constexpr (kTotalsInShared<kDim>) {
    return &shared.totals[h * kDim / 4][threadIdx.x];
  } else {
    float* const row = reinterpret_cast<float*>(shared.q[warp * 16]) + lane;
    static_assert(sizeof(float[kDim / 4][32]) <= sizeof(T[16][kRowElements<kDim>]));
    BATON_UNROLL
    for (int i = 0; i < kDim / 4; ++i) row[i * 32] = totals.sums[i / 2][2 * h + i % 2];
    return row;
  }
}
// From one to the next.
template <int kDim, int kWarps>
constexpr int kTotalsStride = kTotalsInShared<kDim> ? kThreadsOf<kWarps> : 32;

}  // namespace baton::cuda::attention
