#pragma once

#include "kernels/api/moe_args.h"
#include "kernels/cuda/operands.h"

namespace baton::cuda {

// Which experts, their weights, the order of rows and sums: the CPU's bits.
cudaError_t MoeRouting(const MoeRoutingArgs& args, cudaStream_t stream);
cudaError_t MoeAlign(const MoeAlignArgs& args, cudaStream_t stream);
// `shared` is of the type of `out`, which is f32 or that of round_to; `y` is of it too, or one of
// both is f32.
cudaError_t MoeCombine(const MoeCombineArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
