#pragma once

#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/api/cache_args.h"
#include "kernels/api/operands.h"

namespace baton {

// Most elements of a head of K or V.
inline constexpr int32_t kMaxAttentionDim = 256;

// Of all operators here: q, new K and V, and outputs are floats. Of a model in f16 or bf16 they are
// the values of that type, which a float holds exactly; sums are f32 throughout.

// What happens to q . k before the softmax, in this order: scale, softcap, ALiBi, mask. A masked
// key is skipped: its K and V are never multiplied, not even by zero.
//
// The query at position p sees key j if j is in [0, seq_len), not after p when `causal`, in
// [p - window_left, p + window_right], and with `local_chunk` in the chunk of p.
struct ScoreOptions {
  float scale = 0;                      // Multiplies q . k; 0 stands for k_cache.dim^-0.5.
  float softcap = 0;                    // cap * tanh(x / cap); 0 = off.
  bool causal = true;                   // Decode always is.
  int32_t window_left = -1;             // -1 = infinite. A model's sliding window w is (w - 1, 0).
  int32_t window_right = -1;            // -1 = infinite.
  int32_t local_chunk = 0;              // Sees j if j / local_chunk = p / local_chunk; 0 = off.
                                        // Needs `causal`.
  const float* alibi_slopes = nullptr;  // [num_heads], or [S, num_heads]: bias -slope * |p - j|.
                                        // Finite.
  int64_t alibi_stride = 0;             // Elements from sequence to sequence; 0: the same for all.
  // [num_heads], or null. Attention sinks: a row that sees a key adds exp(sink) to the sum of
  // exp(score) that it is divided by (and that its LSE is of), as if one more key had that score
  // and a value of 0 (Xiao et al. 2023; gpt-oss). Neither scaled nor capped.
  const float* sinks = nullptr;
};

// Scales of q, K and V beside those of an fp8 plane, one per sequence and KV head (q_descale,
// k_descale and v_descale of FlashAttention-3): q . k is multiplied by q_descale * k_descale with
// its scale, before the softcap, and the result by v_descale. Then it is divided by output_scale
// (vLLM's) and rounded. The LSE knows neither v_descale nor output_scale. All are finite and above
// 0.
struct AttentionScales {
  const float* q_descale = nullptr;  // [S, num_kv_heads]; null: 1. So are the others.
  const float* k_descale = nullptr;
  const float* v_descale = nullptr;
  int64_t stride = 0;  // Elements from sequence to sequence; 0: the same for all.
  float output_scale = 1;

  bool any() const {
    return q_descale != nullptr || k_descale != nullptr || v_descale != nullptr ||
           output_scale != 1;
  }
};

// K and V beside each other in memory instead of in a cache. The heads of a token are dense.
struct DenseKeys {
  ConstFloats k;         // [Tk, num_heads, k_dim]; may be null, as v, if Tk = 0.
  int64_t k_stride = 0;  // Elements from token to token.
  ConstFloats v;         // [Tk, num_heads, v_dim]
  int64_t v_stride = 0;
  int32_t num_heads = 0;
  int32_t k_dim = 0;  // <= 256, as v_dim.
  int32_t v_dim = 0;
  // [S + 1], cu_seqlens_k[0] = 0, not descending, Tk at the end. Null: there are no dense keys.
  const int32_t* cu_seqlens_k = nullptr;
};

// Attention of S sequences over a paged cache that already holds the K and V of the queries
// themselves, or over dense K and V. Query i of n stands at position seq_len - n + i (the mask is
// bottom-right aligned); a row with one query is a decode row. Either length may be 0. A row that
// sees no key gives 0 and an LSE of -inf.
//
// Without `causal` it is the attention of an encoder, or with the tables and lengths of a second
// cache that of a decoder on its encoder. A layer that shares the cache of another passes the
// other's planes: attention never writes to them.
//
// The result of a query is a function of (q, the K and V it sees, their positions) alone: partial
// sums start anew at each multiple of 512 keys and are folded left to right in fp32. Batch,
// chunking, block size, layout and threads do not change a bit; but a device that multiplies bf16
// pairs does so for HND caches only.
struct VarlenAttentionArgs {
  ConstFloats q;                          // [T, num_heads, k_cache.dim]
  int64_t q_stride = 0;                   // Elements from token to token.
  int32_t num_heads = 0;                  // A multiple of the heads of K and V.
  int64_t num_seqs = 0;                   // S
  const int32_t* cu_seqlens_q = nullptr;  // [S + 1], cu_seqlens_q[0] = 0, not descending.
  // Where the host cannot read arrays of the device it must be told, above 0: this and the others.
  int64_t num_tokens = 0;             // T = cu_seqlens_q[S]; 0: not told.
  int32_t max_seqlen_q = 0;           // At least every query length; 0: not told.
  const int32_t* seq_lens = nullptr;  // [S]: keys. With `dense` null stands for all of them,
                                      // else the first so many of each are used.
  int32_t max_seqlen_k = 0;           // At least every number of keys; 0: not told.
  const int32_t* block_table =
      nullptr;  // [S, max_blocks]; only entries with visible keys are read.
  int64_t max_blocks = 0;
  // [S]: where the entries of a sequence begin, of which it has no more than max_blocks; in any
  // order, and several may share some. Null: at s * max_blocks.
  const int32_t* table_starts = nullptr;
  CachePlane k_cache;  // dim <= 256, in both.
  CachePlane v_cache;
  DenseKeys dense;  // Instead of the caches and the table.
  ScoreOptions scores;
  AttentionScales scales;
  // What `out` is rounded to, kept as float. With kBF16 and a bf16 cache, a device that multiplies
  // bf16 pairs rounds q and the unnormalised probabilities to bf16 as well.
  DType round_to = DType::kF32;
  Floats out;  // [T, num_heads, v_cache.dim]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [num_heads, T]: log of the sum of exp(score), natural; or null.
  int64_t lse_stride = 0;
};

// Prefill with part of the context in the cache: the keys of a sequence are the first
// seq_len - query_len tokens of its table, then the new K and V, which need not be in the cache and
// are read as they are given. Causal. The result is that of VarlenAttention once the new K and V
// are in a cache that holds them exactly.
struct PrefixAttentionArgs {
  ConstFloats q;          // [T, num_heads, k_cache.dim]
  int64_t q_stride = 0;   // Elements from token to token.
  int32_t num_heads = 0;  // A multiple of k_cache.num_heads.
  ConstFloats k;          // [T, k_cache.num_heads, k_cache.dim]
  int64_t k_stride = 0;
  ConstFloats v;  // [T, k_cache.num_heads, v_cache.dim]
  int64_t v_stride = 0;
  int64_t num_seqs = 0;
  const int32_t* cu_seqlens_q = nullptr;  // [S + 1]
  int64_t num_tokens = 0;                 // As in VarlenAttentionArgs.
  const int32_t* seq_lens = nullptr;      // [S]: context and new, at least the query length.
  const int32_t* block_table = nullptr;   // [S, max_blocks] of the context.
  int64_t max_blocks = 0;
  CachePlane k_cache;
  CachePlane v_cache;
  ScoreOptions scores;
  AttentionScales scales;     // Of the context and of new K and V alike.
  bool skip_decodes = false;  // Leaves `out` and `lse` of sequences with one query as they are.
  DType round_to = DType::kF32;
  Floats out;  // [T, num_heads, v_cache.dim]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [num_heads, T], or null.
  int64_t lse_stride = 0;
};

// How the keys of a sequence are divided over threads. The bits are those of kSinglePass.
enum class AttentionSplit : uint8_t {
  kAuto,        // Split when there are too few sequences and heads to keep all threads busy.
  kSinglePass,  // One task for all keys of a sequence and KV head.
  kSplit,       // A task per 512 keys, then a reduction.
  // As vLLM chooses between its v1 and v2 kernels: a single pass if and only if max_seq_len <= 8192
  // and (max_seq_len <= 512 or num_seqs * num_heads > 512).
  kReference,
};

// Block-sparse attention of decode (vLLM's, for Phi-3-small). Keys are divided into blocks of
// block_size; the query is in block b = (seq_len - 1) / block_size. A head sees block k if
// (k + offset) % vert_stride = 0, or if k > b - local_blocks. offset is
// (tp_rank * num_heads + head) * head_sliding_step + 1, with a step below 0 instead
// (tp_rank * num_kv_heads + kv_head) * -head_sliding_step + 1.
struct BlockSparsity {
  int32_t vert_stride = 0;  // Off up to 1; then the other fields are not looked at.
  int32_t local_blocks = 0;
  int32_t block_size = 64;        // A multiple of the cache's.
  int32_t head_sliding_step = 0;  // In [-65536, 65536].
  int32_t tp_rank = 0;            // In [0, 65536]; num_heads and num_kv_heads are those of a rank.
};

// Keys of one partition of a sequence.
inline constexpr int32_t kPartitionKeys = 512;

// What the first of two passes leaves for the second, in memory of the caller's (vLLM's
// paged_attention_v2). Partition p has the keys [512 p, 512 (p + 1)); of those that a head sees,
// `max_logits` is the greatest score, `exp_sums` the sum of exp(score - max_logits), and `tmp_out`
// the sum of exp(score - max_logits) * V, which vLLM divides by exp_sums and Baton does not: so the
// bits are those of a single pass. Without such keys they are -inf, 0 and 0. Partitions behind the
// end of a sequence are not written. Sinks and `scales` for V and the output are in none of them.
struct AttentionPartials {
  float* exp_sums = nullptr;    // [S, num_heads, max_num_partitions]
  float* max_logits = nullptr;  // [S, num_heads, max_num_partitions]
  float* tmp_out = nullptr;     // [S, num_heads, max_num_partitions, v_cache.dim]
  int64_t max_num_partitions = 0;  // At least max_seq_len / 512, rounded up.

  bool given() const {
    return exp_sums != nullptr || max_logits != nullptr || tmp_out != nullptr ||
           max_num_partitions != 0;
  }
};

// Decode: one query per sequence, at its last position; the same bits as VarlenAttention.
struct PagedAttentionArgs {
  ConstFloats q;          // [S, num_heads, k_cache.dim]
  int64_t q_stride = 0;   // Elements from sequence to sequence.
  int32_t num_heads = 0;  // A multiple of k_cache.num_heads.
  int64_t num_seqs = 0;
  const int32_t* block_tables =
      nullptr;  // [S, max_blocks]; only entries with visible keys are read.
  int64_t max_blocks = 0;
  const int32_t* table_starts = nullptr;  // As in VarlenAttentionArgs.
  const int32_t* seq_lens = nullptr;      // [S]
  int32_t max_seq_len = 0;                // >= every seq_len.
  CachePlane k_cache;
  CachePlane v_cache;
  ScoreOptions scores;
  AttentionScales scales;
  BlockSparsity sparsity;
  // Without `partials`: of HND caches without scales, sinks and sparsity; others always take a
  // single pass.
  AttentionSplit split = AttentionSplit::kAuto;
  // If given, two passes go through them, of any layout and with every option, unless kReference
  // chooses a single one, which leaves them as they are; kSinglePass is refused. In f32 throughout.
  AttentionPartials partials;
  DType round_to = DType::kF32;
  Floats out;  // [S, num_heads, v_cache.dim]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [num_heads, S], or null.
  int64_t lse_stride = 0;
};

// Attention of a batch of equally many queries over a cache to which their K and V may be appended
// first (FlashAttention's flash_attn_with_kvcache). Sequence s has cache_seqlens[s] rows in the
// cache, of which the first cache_leftpad[s] are no keys; K and V of its new tokens become rows
// cache_seqlens[s], cache_seqlens[s] + 1, ..., rounded as ReshapeAndCache does. The caller advances
// cache_seqlens. Query i of n stands at the n - i-th last key.
//
// The cache is contiguous, with one block for each sequence, or paged. Appending beyond it, or two
// tokens into one place, is refused before anything is written. So are keys beyond 2^31 - 1.
//
// q, k, v and out are dense: they have no strides. `lse` is [num_heads, S * num_queries], as that
// of all operators here; FlashAttention's is [S, num_heads, num_queries].
struct AttentionWithKvCacheArgs {
  ConstFloats q;            // [S, num_queries, num_heads, k_cache.dim], dense
  int32_t num_heads = 0;    // A multiple of k_cache.num_heads.
  int64_t num_seqs = 0;     // S
  int64_t num_queries = 0;  // Of each sequence.
  ConstFloats k;            // [S, num_new, k_cache.num_heads, k_cache.dim], dense; or null.
  ConstFloats v;            // [S, num_new, k_cache.num_heads, v_cache.dim], dense; or null.
  int64_t num_new = 0;      // 0 without k and v.
  CachePlane k_cache;       // Contiguous: block_size is the capacity in tokens.
  CachePlane v_cache;
  const int32_t* cache_seqlens = nullptr;    // [S]; null: all are cache_seqlen.
  int32_t cache_seqlen = -1;                 // -1 with cache_seqlens.
  const int32_t* cache_batch_idx = nullptr;  // [S]: block of sequence s; null: s. Contiguous only.
  const int32_t* cache_leftpad = nullptr;    // [S], in [0, cache_seqlens[s]]; or null.
  const int32_t* block_table = nullptr;      // [S, max_blocks]: a paged cache. Null: contiguous.
  int64_t max_blocks = 0;
  // [num_rotary_positions, rotary_dim / 2]. Rotates new K by the position of its row in the cache,
  // and q: of query i by cache_seqlens[s] + i if the mask is causal or a window, else by
  // cache_seqlens[s]. Null: neither. Needs k and v.
  const float* rotary_cos = nullptr;
  const float* rotary_sin = nullptr;
  int64_t num_rotary_positions = 0;
  int32_t rotary_dim = 0;           // Even, <= k_cache.dim; elements beyond it stay.
  bool rotary_interleaved = false;  // Pairs (0, 1), (2, 3), ...; else (0, rotary_dim / 2), ...
  ScoreOptions scores;
  AttentionScales scales;  // Of what the cache holds, so of new K and V as well.
  int32_t num_splits = 0;  // 0: heuristic, 1: a single pass, more: split. Never changes a bit.
  DType round_to = DType::kF32;
  Floats out;            // [S, num_queries, num_heads, v_cache.dim], dense
  float* lse = nullptr;  // [num_heads, S * num_queries], dense; or null.
};

// Merges the attention of the same queries over two disjoint sets of keys (FlashInfer's merge
// operator; Dao et al. 2022, section 3.1). An LSE of +inf or -inf marks an empty side, whose `out`
// is not read; two empty sides give 0 and -inf. `out` may be either input.
struct MergeAttentionStatesArgs {
  ConstFloats out_a;             // [T, num_heads, dim], dense
  const float* lse_a = nullptr;  // [num_heads, T], dense
  ConstFloats out_b;
  const float* lse_b = nullptr;
  int64_t num_tokens = 0;
  int32_t num_heads = 0;
  int32_t dim = 0;
  DType round_to = DType::kF32;  // What `out` is rounded to, kept as float.
  Floats out;                    // [T, num_heads, dim]
  int64_t out_stride = 0;        // Elements from token to token; 0: dense, as where it is an input.
  float* lse = nullptr;          // [num_heads, T], or null.
  int64_t lse_stride = 0;        // Elements from head to head; 0: dense, as where it is an input.
};

// The lengths of the two calls that CascadeAttention (cascade_attention.h) makes of one: all
// queries as one sequence over the common prefix, and each sequence over what it has behind it
// (vLLM's cu_prefix_query_lens, prefix_kv_lens and suffix_kv_lens).
struct CascadeLensArgs {
  VarlenAttentionArgs
      attention;  // Both as in CascadeAttentionArgs. Its arrays of integers are read.
  int32_t common_prefix_len = 0;
  int32_t* prefix_queries = nullptr;  // [2]: 0 and num_tokens.
  int32_t* prefix_len = nullptr;      // [1]: common_prefix_len.
  int32_t* suffix_lens = nullptr;     // [S]: max(seq_len - common_prefix_len, 0).
};

}  // namespace baton
