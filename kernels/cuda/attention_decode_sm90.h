#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_problem.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// Whether the form below computes it here: on sm_90a, where all rows of a KV head (its queries by
// the heads that share it) are at most 16, the cache is of the type of q, or fp8 with heads of at
// most 128 elements whose strides and data are multiples of 16 bytes, and there are scratch memory
// and a counter for each KV head of each sequence. Nobody asks for lengths. The problem is one that
// attention::IsAllowed.
bool IsDecodeOfSm90(const attention::Problem& args, const AttentionRoom& room);

// The bits that attention.h says, by one launch whose shape depends on the device alone: blocks
// find their partials of 512 keys from the lengths in device memory, so that a graph may replay it
// with others, up to max_seq_len, which decides where partials lie in scratch memory.
cudaError_t DecodeAttentionSm90(const attention::Problem& args, const AttentionRoom& room,
                                cudaStream_t stream);

}  // namespace baton::cuda
