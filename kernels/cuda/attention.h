#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/attention_args.h"
#include "kernels/cuda/operands.h"

namespace baton::cuda {

// baton::VarlenAttentionArgs and baton::PagedAttentionArgs over device memory: attention over a
// paged kHnd cache that already holds the K and V of the queries. Query i of n stands at position
// seq_len - n + i. A row that sees no key gives 0 and an LSE of -inf.
//
// The result of a query is a function of (q, the K and V it sees, their positions) alone. Scores are
// sums in steps of 16 of the head size (mma.sync), scaled into powers of two; softmax takes 64 keys
// at a time, from absolute multiples of 64, and starts anew at each multiple of 512; these partials
// are folded left to right in f32. Probabilities are rounded to the type of q before they are
// summed, by four lanes of which each adds its own keys in ascending order, and multiplied with V.
// Scales of fp8 multiply scores and results, not elements.
struct AttentionArgs {
  ConstFloats q;                          // [T, num_heads, dim], bf16 or f16, aligned to 16 bytes.
  int64_t q_stride = 0;                   // Elements from token to token; a multiple of 8.
  int32_t num_heads = 0;                  // A multiple of k_cache.num_heads.
  int64_t num_seqs = 0;                   // S
  const int32_t* cu_seqlens_q = nullptr;  // [S + 1]; null: one query for each sequence.
  int32_t max_query_len = 0;              // >= every query length.
  const int32_t* seq_lens = nullptr;      // [S]: keys.
  int32_t max_seq_len = 0;                // >= every seq_len.
  const int32_t* block_table = nullptr;   // [S, max_blocks]; only entries with visible keys are read.
  int64_t max_blocks = 0;
  // kHnd of one dim, a multiple of 8 up to 256; of the type of q, or fp8. Strides and data are
  // multiples of 8 elements.
  CachePlane k_cache;
  CachePlane v_cache;
  ScoreOptions scores;  // Arrays in device memory.
  Floats out;           // [T, num_heads, dim], f32 or the type of q.
  int64_t out_stride = 0;
  float* lse = nullptr;  // [num_heads, T], natural; or null.
  int64_t lse_stride = 0;
  // For few queries of long sequences: with scratch memory each partial has its own block. The bits
  // are the same. [AttentionScratchBytes()] or null.
  float* scratch = nullptr;
};

// What `scratch` holds for num_tokens queries in all; of args only the sizes are looked at.
int64_t AttentionScratchBytes(const AttentionArgs& args, int64_t num_tokens);

// cudaErrorInvalidValue for what is not allowed above.
cudaError_t Attention(const AttentionArgs& args, cudaStream_t stream);

}  // namespace baton::cuda
