#pragma once

#include <cstdint>

#include "kernels/api/attention_args.h"
#include "kernels/cuda/operands.h"

// Attention of every layout, type and option, which kernels/cuda/attention.h does not serve: caches
// in f32, kNhd, kPacked or with any strides, dense keys, a prefix, block sparsity, AttentionScales,
// partials of the caller's, appending. Arrays are in device memory, also those of ScoreOptions and
// AttentionScales; what they hold is the caller's to check. q, K and V beside a cache are f32, f16
// or bf16; `out` is f32 or `round_to`. cudaErrorInvalidValue for more rows than a grid has blocks.
//
// The bits are those of the CPU's generic kernel, in f32 whatever the types are: products of a
// score in ascending order, sums of probabilities in 16 lanes that are added as a tree, values in
// ascending order of the keys; partials of 512 keys are folded left to right. So a prefix over a
// cache of the engine's has other bits than VarlenAttention over it, which rounds probabilities.
namespace baton::cuda {

// num_tokens must be told, also to PrefixAttention.
cudaError_t GenericAttention(const VarlenAttentionArgs& args, cudaStream_t stream);
// In two passes where partials are given; `split` is not looked at.
cudaError_t GenericAttention(const PagedAttentionArgs& args, cudaStream_t stream);
cudaError_t PrefixAttention(const PrefixAttentionArgs& args, cudaStream_t stream);

// Appends, then attends. Nothing is written beyond the rows that the cache has for a sequence.
cudaError_t AttentionWithKvCache(const AttentionWithKvCacheArgs& args, cudaStream_t stream);

// `lse` may be that of either side.
cudaError_t MergeAttentionStates(const MergeAttentionStatesArgs& args, cudaStream_t stream);

cudaError_t CascadeLens(const CascadeLensArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
