#pragma once

#include "kernels/api/model_args.h"
#include "kernels/cuda/operands.h"

namespace baton::cuda {

// Elements [i, i + 4) of a row of FoldPartials.
template <int kParts>
BATON_DEVICE void FoldFour(const FoldPartialsArgs& args, int64_t row, int64_t i, bool vectors,
                           float (&sum)[4]) {
  const int64_t left = args.dim - i;
  float sums[kParts][4];
  BATON_UNROLL
  for (int p = 0; p < kParts; ++p) {
    LoadFour(args.parts[p] + row * args.part_stride + i, left, vectors, sums[p]);
  }
  BATON_UNROLL
  for (int step = 1; step < kParts; step *= 2) {
    BATON_UNROLL
    for (int p = 0; p < kParts; p += 2 * step) {
      BATON_UNROLL
      for (int j = 0; j < 4; ++j) sums[p][j] += sums[p + step][j];
    }
  }
  BATON_UNROLL
  for (int j = 0; j < 4; ++j) {
    if (args.bias != nullptr && j < left) sums[0][j] += args.bias[i + j];
    sum[j] = sums[0][j];
  }
}

}  // namespace baton::cuda
