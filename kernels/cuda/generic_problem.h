#pragma once

// What the generic kernel takes of every operator's arguments.

#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "kernels/api/attention_args.h"
#include "kernels/cuda/strided_rows.h"

namespace baton::cuda::generic_attention {

// A superset of the operators. Sequence s has the keys of its cache from row leftpad[s] on, then
// those of base.dense, if any: the last cu_seqlens_k[s + 1] - cu_seqlens_k[s] with a cache too.
struct Problem {
  VarlenAttentionArgs base;  // With num_tokens and scores.scale; its planes are not looked at.
  StridedPlane k, v;         // Data of null: there is no cache.
  int32_t num_kv_heads = 0;
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  int64_t num_queries = 0;  // Of each sequence, where base.cu_seqlens_q is null.
  BlockSparsity sparsity;
  // Its offset of head h, or of a KV head, modulo vert_stride: h * slide_step + slide_begin.
  bool slides_by_kv_head = false;
  uint32_t slide_step = 0;
  uint32_t slide_begin = 0;
  bool skip_decodes = false;
  AttentionPartials partials;  // Of one query per sequence.
  int64_t num_partitions = 0;  // Of them.
  // Of AttentionWithKvCache: base.seq_lens are rows of the cache before num_new are appended.
  bool counts_rows = false;
  int32_t cache_seqlen = -1;  // Where base.seq_lens is null.
  int64_t num_new = 0;
  const int32_t* leftpad = nullptr;
  const int32_t* batch_blocks = nullptr;  // Where base.block_table is null; null: block s.
  Rotation rotation;
  bool queries_advance = false;  // Each is rotated by a position of its own.
};

inline void SetCaches(const CachePlane& k, const CachePlane& v, Problem& problem) {
  problem.k = StridedPlaneOf(k, CacheRole::kKey);
  problem.v = StridedPlaneOf(v, CacheRole::kValue);
  problem.num_kv_heads = k.num_heads;
  problem.k_dim = k.dim;
  problem.v_dim = v.dim;
}

inline void SetScale(Problem& problem) {
  float& scale = problem.base.scores.scale;
  if (scale == 0) scale = 1.0f / std::sqrt(static_cast<float>(problem.k_dim));
}

inline Problem ProblemOf(const VarlenAttentionArgs& args) {
  Problem problem;
  problem.base = args;
  if (args.dense.cu_seqlens_k == nullptr) {
    SetCaches(args.k_cache, args.v_cache, problem);
  } else {
    problem.num_kv_heads = args.dense.num_heads;
    problem.k_dim = args.dense.k_dim;
    problem.v_dim = args.dense.v_dim;
  }
  SetScale(problem);
  return problem;
}

// What the operators over a cache share.
template <typename Args>
Problem ProblemOverCache(const Args& args) {
  Problem problem;
  VarlenAttentionArgs& base = problem.base;
  base.q = args.q;
  base.num_heads = args.num_heads;
  base.num_seqs = args.num_seqs;
  base.max_blocks = args.max_blocks;
  base.scores = args.scores;
  base.scales = args.scales;
  base.round_to = args.round_to;
  base.out = args.out;
  base.lse = args.lse;
  SetCaches(args.k_cache, args.v_cache, problem);
  SetScale(problem);
  return problem;
}

// What those with rows of strides share.
template <typename Args>
void SetStrides(const Args& args, VarlenAttentionArgs& base) {
  base.q_stride = args.q_stride;
  base.out_stride = args.out_stride;
  base.lse_stride = args.lse_stride;
  base.seq_lens = args.seq_lens;
}

inline void SetSparsity(const BlockSparsity& sparsity, Problem& problem) {
  problem.sparsity = sparsity;
  if (sparsity.vert_stride <= 1) return;
  const int64_t step = sparsity.head_sliding_step, stride = sparsity.vert_stride;
  problem.slides_by_kv_head = step < 0;
  const int64_t heads = step < 0 ? problem.num_kv_heads : problem.base.num_heads;
  problem.slide_step = static_cast<uint32_t>(std::abs(step) % stride);
  problem.slide_begin =
      static_cast<uint32_t>((sparsity.tp_rank * heads * std::abs(step) + 1) % stride);
}

inline Problem ProblemOf(const PagedAttentionArgs& args) {
  Problem problem = ProblemOverCache(args);
  SetStrides(args, problem.base);
  problem.base.num_tokens = args.num_seqs;
  problem.base.block_table = args.block_tables;
  problem.base.table_starts = args.table_starts;
  problem.num_queries = 1;
  SetSparsity(args.sparsity, problem);
  if (!args.partials.given()) return problem;
  problem.partials = args.partials;
  problem.num_partitions = (int64_t{args.max_seq_len} + kPartitionKeys - 1) / kPartitionKeys;
  return problem;
}

inline Problem ProblemOf(const PrefixAttentionArgs& args) {
  Problem problem = ProblemOverCache(args);
  SetStrides(args, problem.base);
  problem.base.cu_seqlens_q = args.cu_seqlens_q;
  problem.base.num_tokens = args.num_tokens;
  problem.base.block_table = args.block_table;
  problem.base.dense = {.k = args.k,
                        .k_stride = args.k_stride,
                        .v = args.v,
                        .v_stride = args.v_stride,
                        .num_heads = args.k_cache.num_heads,
                        .k_dim = args.k_cache.dim,
                        .v_dim = args.v_cache.dim,
                        .cu_seqlens_k = args.cu_seqlens_q};
  problem.skip_decodes = args.skip_decodes;
  return problem;
}

inline Problem ProblemOf(const AttentionWithKvCacheArgs& args) {
  Problem problem = ProblemOverCache(args);
  VarlenAttentionArgs& base = problem.base;
  base.num_tokens = args.num_seqs * args.num_queries;
  base.q_stride = int64_t{args.num_heads} * args.k_cache.dim;
  base.out_stride = int64_t{args.num_heads} * args.v_cache.dim;
  base.lse_stride = base.num_tokens;
  base.block_table = args.block_table;
  base.seq_lens = args.cache_seqlens;
  problem.num_queries = args.num_queries;
  problem.counts_rows = true;
  problem.cache_seqlen = args.cache_seqlen;
  problem.num_new = args.num_new;
  problem.leftpad = args.cache_leftpad;
  problem.batch_blocks = args.cache_batch_idx;
  problem.rotation = RotationOf(args);
  const ScoreOptions& scores = args.scores;
  problem.queries_advance = scores.causal || scores.window_left >= 0 || scores.window_right >= 0;
  return problem;
}

}  // namespace baton::cuda::generic_attention
