#pragma once

#include "kernels/api/copy_piece.h"
#include "kernels/api/row_args.h"
#include "kernels/cuda/dialect.h"

// Rows and pieces of memory around the layers of a model: the bytes that the CPU writes.
namespace baton::cuda {

cudaError_t RotaryTable(const RotaryTableArgs& args, cudaStream_t stream);
cudaError_t SelectRows(const SelectRowsArgs& args, cudaStream_t stream);

// In one launch. `pieces` are in pinned memory: the host looks at them now, the kernel later.
cudaError_t CopyPieces(const CopyPiece* pieces, int64_t count, cudaStream_t stream);

}  // namespace baton::cuda
