#pragma once

#include "kernels/api/moe_args.h"
#include "kernels/cuda/operands.h"

namespace baton::cuda {

// Gemm's arithmetic and types; a row's bits are those of Gemm with that row alone. The grid is the
// same whatever expert_offsets hold, which the host does not read, and only experts with rows have
// their weights read. There are at most num_a_rows * top_k rows, or without a row_order num_a_rows:
// fewer than 2^31. cudaErrorInvalidValue for other types, and for weights that another device has
// packed.
cudaError_t ExpertGemm(const ExpertGemmArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
