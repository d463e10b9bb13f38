#pragma once

#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/api/cache_args.h"

namespace baton {

// What happens to q . k before the softmax, in this order: scale, softcap, ALiBi, mask. A masked
// key is skipped: its K and V are never multiplied, not even by zero.
//
// The query at position p sees key j if j is in [0, seq_len), not after p when `causal`, and in
// [p - window_left, p + window_right].
struct ScoreOptions {
  float scale = 0;                      // Multiplies q . k; 0 stands for k_cache.dim^-0.5.
  float softcap = 0;                    // cap * tanh(x / cap); 0 = off.
  bool causal = true;                   // Decode always is.
  int32_t window_left = -1;             // -1 = infinite. A model's sliding window w is (w - 1, 0).
  int32_t window_right = -1;            // -1 = infinite.
  const float* alibi_slopes = nullptr;  // [num_heads], or [S, num_heads]: bias -slope * |p - j|.
  int64_t alibi_stride = 0;             // Elements from sequence to sequence; 0: the same for all.
};

// Attention of S sequences over a paged cache that already holds the K and V of the queries
// themselves. Query i of n stands at position seq_len - n + i (the mask is bottom-right aligned); a
// row with one query is a decode row. Either length may be 0. A row that sees no key gives 0 and an
// LSE of -inf.
//
// The result of a query is a function of (q, the K and V it sees, their positions) alone: partial
// sums start anew at each multiple of 512 keys and are folded left to right in fp32. Batch,
// chunking, block size and threads do not change a bit.
struct VarlenAttentionArgs {
  const float* q = nullptr;               // [T, num_heads, k_cache.dim]
  int64_t q_stride = 0;                   // Elements from token to token.
  int32_t num_heads = 0;                  // A multiple of k_cache.num_heads.
  int64_t num_seqs = 0;                   // S
  const int32_t* cu_seqlens_q = nullptr;  // [S + 1], cu_seqlens_q[0] = 0, not descending.
  const int32_t* seq_lens = nullptr;      // [S]: keys in the cache.
  const int32_t* block_table =
      nullptr;  // [S, max_blocks]; only entries with visible keys are read.
  int64_t max_blocks = 0;
  CachePlane k_cache;  // dim <= 256, in both.
  CachePlane v_cache;
  ScoreOptions scores;
  // What `out` is rounded to, kept as float. With kBF16 and a bf16 cache, a device that multiplies
  // bf16 pairs rounds q and the unnormalised probabilities to bf16 as well.
  DType round_to = DType::kF32;
  float* out = nullptr;  // [T, num_heads, v_cache.dim]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [num_heads, T]: log of the sum of exp(score), natural; or null.
  int64_t lse_stride = 0;
};

// How the keys of a sequence are divided over threads. The bits are those of kSinglePass.
enum class AttentionSplit : uint8_t {
  kAuto,        // Split when there are too few sequences and heads to keep all threads busy.
  kSinglePass,  // One task for all keys of a sequence and KV head.
  kSplit,       // A task per 512 keys, then a reduction.
};

// Decode: one query per sequence, at its last position; the same bits as VarlenAttention.
struct PagedAttentionArgs {
  const float* q = nullptr;  // [S, num_heads, k_cache.dim]
  int64_t q_stride = 0;      // Elements from sequence to sequence.
  int32_t num_heads = 0;     // A multiple of k_cache.num_heads.
  int64_t num_seqs = 0;
  const int32_t* block_tables =
      nullptr;  // [S, max_blocks]; only entries with visible keys are read.
  int64_t max_blocks = 0;
  const int32_t* seq_lens = nullptr;  // [S]
  int32_t max_seq_len = 0;            // >= every seq_len.
  CachePlane k_cache;
  CachePlane v_cache;
  ScoreOptions scores;
  AttentionSplit split = AttentionSplit::kAuto;
  DType round_to = DType::kF32;
  float* out = nullptr;  // [S, num_heads, v_cache.dim]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [num_heads, S], or null.
  int64_t lse_stride = 0;
};

// Merges the attention of the same queries over two disjoint sets of keys (FlashInfer's merge
// operator; Dao et al. 2022, section 3.1). An LSE of +inf or -inf marks an empty side, whose `out`
// is not read; two empty sides give 0 and -inf. `out` may be either input.
struct MergeAttentionStatesArgs {
  const float* out_a = nullptr;  // [T, num_heads, dim], dense
  const float* lse_a = nullptr;  // [num_heads, T], dense
  const float* out_b = nullptr;
  const float* lse_b = nullptr;
  int64_t num_tokens = 0;
  int32_t num_heads = 0;
  int32_t dim = 0;
  float* out = nullptr;  // [T, num_heads, dim], dense
  float* lse = nullptr;  // [num_heads, T], dense; or null.
};

}  // namespace baton
