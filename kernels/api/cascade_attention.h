#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/api/attention_args.h"
#include "kernels/api/model_ops.h"
#include "kernels/api/operator_library.h"

namespace baton {

// Attention of S sequences that begin with the same tokens, over a paged cache. The blocks of the
// common prefix are the first of sequence 0's row of the block table; those entries of the other
// rows are not looked at.
struct CascadeAttentionArgs {
  // Neither dense keys, scales, ALiBi, a window nor local chunks; num_tokens is told. Sequences
  // with queries have at least common_prefix_len + query length keys.
  VarlenAttentionArgs attention;
  int32_t common_prefix_len = 0;  // Above 0, a multiple of the block size.
  // Memory of the device for what the parts give, aligned to 16 bytes.
  std::byte* workspace = nullptr;  // [workspace_bytes]
  int64_t workspace_bytes = 0;     // At least CascadeWorkspaceBytes of these arguments.
};

// Of the arguments only num_seqs, num_tokens, num_heads and v_cache.dim are looked at.
int64_t CascadeWorkspaceBytes(const CascadeAttentionArgs& args);

// Whether it pays: a prefix of 256 tokens or more, 8 sequences or more, and no ALiBi, window or
// local chunks, which would make the prefix differ from query to query.
bool CascadeAttentionPays(const CascadeAttentionArgs& args);

// The prefix once for all queries, the suffixes apart, and the two merged (Juravsky et al. 2024;
// FlashInfer's and vLLM's cascade attention). The result is that of VarlenAttention but for
// rounding: f32 throughout, rounded to round_to once at the end. Enqueues as `ops` and `library`
// do, which are one device's, and allocates nothing; after an error `out` and `lse` are as they
// were.
absl::Status CascadeAttention(ModelOps& ops, OperatorLibrary& library,
                              const CascadeAttentionArgs& args);

}  // namespace baton
