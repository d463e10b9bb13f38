#pragma once

#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/api/cache_args.h"

namespace baton {

// Causal attention of S sequences over a paged cache that already holds the K and V of the queries
// themselves. The last query of a sequence stands at position seq_len - 1 (bottom-right aligned);
// a row with one query is a decode row. Keys outside [0, seq_len) are never read.
//
// The result of a query at position p is a function of (q, K[0..p], V[0..p]) alone: partial sums
// start anew at each multiple of 512 keys and are folded left to right in fp32. Batch, chunking,
// block size and threads do not change a bit.
struct VarlenAttentionArgs {
  const float* q = nullptr;               // [T, num_heads, k_cache.dim]
  int64_t q_stride = 0;                   // Elements from token to token.
  int32_t num_heads = 0;                  // A multiple of k_cache.num_heads.
  int64_t num_seqs = 0;                   // S
  const int32_t* cu_seqlens_q = nullptr;  // [S + 1], cu_seqlens_q[0] = 0, not descending.
  const int32_t* seq_lens = nullptr;      // [S]: keys, with those of the queries; >= the queries.
  const int32_t* block_table = nullptr;   // [S, max_blocks]; only entries that hold keys are read.
  int64_t max_blocks = 0;
  CachePlane k_cache;
  CachePlane v_cache;
  float scale = 0;               // Multiplies q . k; > 0.
  DType round_to = DType::kF32;  // What `out` is rounded to, kept as float.
  float* out = nullptr;          // [T, num_heads, v_cache.dim]
  int64_t out_stride = 0;
};

}  // namespace baton
