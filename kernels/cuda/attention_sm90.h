#pragma once

#include "kernels/api/attention_args.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// Whether AttentionSm90 takes them: caches of the type of q, whose blocks are of a multiple of 8
// tokens, and at most 64 heads that share one of K and V. Everything else as in
// kernels/cuda/attention.h.
bool AttentionSm90Takes(const VarlenAttentionArgs& args);

// Whether it takes them and is to compute them where there is an sm_90a: heads of more than 32
// elements, and more rows than one block of the other form has.
bool AttentionSm90Pays(const VarlenAttentionArgs& args);

// VarlenAttention with wgmma and tensor copies, for sm_90a alone: the bits that MmaVarlenAttention
// has there. Needs no scratch.
cudaError_t AttentionSm90(const VarlenAttentionArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
