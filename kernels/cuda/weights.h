#pragma once

#include <cstdint>

#include "kernels/api/operands.h"
#include "kernels/api/packed_matrix.h"

namespace baton::cuda {

// A matrix of WeightFormat::kCuda is row-major. Its rows begin at 16 bytes; behind a row there are
// zeros.
inline int64_t RowStride(int64_t k) { return (k + 7) / 8 * 8; }
inline ConstFloats FloatsOf(const PackedMatrix& matrix) { return {matrix.data(), matrix.dtype()}; }

}  // namespace baton::cuda
