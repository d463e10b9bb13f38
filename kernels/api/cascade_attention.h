#pragma once

#include "absl/status/status.h"
#include "kernels/api/attention_args.h"
#include "kernels/api/model_ops.h"
#include "kernels/api/operator_library.h"

namespace baton {

// Attention of S sequences that begin with the same tokens, over a paged cache. The blocks of the
// common prefix are the first of sequence 0's row of the block table; those entries of the other
// rows are not looked at.
struct CascadeAttentionArgs {
  // Neither dense keys, scales, ALiBi, a window nor local chunks. Sequences with queries have at
  // least common_prefix_len + query length keys.
  VarlenAttentionArgs attention;
  int32_t common_prefix_len = 0;  // Above 0, a multiple of the block size.
};

// Whether it pays: a prefix of 256 tokens or more, 8 sequences or more, and no ALiBi, window or
// local chunks, which would make the prefix differ from query to query.
bool CascadeAttentionPays(const CascadeAttentionArgs& args);

// The prefix once for all queries, the suffixes apart, and the two merged (Juravsky et al. 2024;
// FlashInfer's and vLLM's cascade attention). The result is that of VarlenAttention but for
// rounding: f32 throughout, rounded to round_to once at the end. Allocates what it needs for the
// length of the call, in memory of the host: arrays are the host's too.
absl::Status CascadeAttention(ModelOps& ops, OperatorLibrary& library,
                              const CascadeAttentionArgs& args);

}  // namespace baton
