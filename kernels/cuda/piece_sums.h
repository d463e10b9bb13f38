#pragma once

#include "kernels/api/copy_piece.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// The sum of each, in one launch. `pieces` and where their sums go are in pinned memory.
cudaError_t SumPieces(const SummedPiece* pieces, int64_t count, cudaStream_t stream);

}  // namespace baton::cuda
