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
  // Each thread has a column.
  float totals[kTotalsInShared<kDim> ? kDim / 2 : 1][kThreadsOf<kWarps>];
};

}  // namespace baton::cuda::attention
