#pragma once

// What the attention kernels take of either operator's arguments, and which of them they serve.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/api/attention_args.h"
#include "kernels/cuda/operands.h"

namespace baton::cuda::attention {

constexpr int kPartialKeys = 512;
constexpr int kMaxPartials = 65535;  // Of a split: the grid's y.
constexpr float kLog2E = 1.44269504088896341f;

struct Problem {
  ConstFloats q;
  int64_t q_stride = 0;
  int32_t num_heads = 0;
  int64_t num_seqs = 0;
  const int32_t* cu_seqlens_q = nullptr;  // Null: one query for each sequence.
  int64_t num_tokens = 0;
  int32_t max_query_len = 0;
  const int32_t* seq_lens = nullptr;
  int32_t max_seq_len = 0;
  const int32_t* block_table = nullptr;
  int64_t max_blocks = 0;
  const int32_t* table_starts = nullptr;
  CachePlane k_cache;
  CachePlane v_cache;
  ScoreOptions scores;
  Floats out;
  int64_t out_stride = 0;
  float* lse = nullptr;
  int64_t lse_stride = 0;
  float* scratch = nullptr;
};

// Elements from token to token of a head, and from head to head.
__host__ BATON_DEVICE int64_t TokenStride(const CachePlane& cache) {
  return cache.token_stride == 0 ? cache.dim : cache.token_stride;
}
__host__ BATON_DEVICE int64_t HeadStride(const CachePlane& cache) {
  return cache.head_stride == 0 ? cache.block_size * TokenStride(cache) : cache.head_stride;
}

// What both operators have.
template <typename Args>
inline Problem Common(const Args& args) {
  Problem problem;
  problem.q = args.q;
  problem.q_stride = args.q_stride;
  problem.num_heads = args.num_heads;
  problem.num_seqs = args.num_seqs;
  problem.seq_lens = args.seq_lens;
  problem.max_blocks = args.max_blocks;
  problem.table_starts = args.table_starts;
  problem.k_cache = args.k_cache;
  problem.v_cache = args.v_cache;
  problem.scores = args.scores;
  problem.out = args.out;
  problem.out_stride = args.out_stride;
  problem.lse = args.lse;
  problem.lse_stride = args.lse_stride;
  return problem;
}

inline Problem ProblemOf(const VarlenAttentionArgs& args) {
  Problem problem = Common(args);
  problem.cu_seqlens_q = args.cu_seqlens_q;
  problem.num_tokens = args.num_tokens;
  // A caller may tell more than there are, for which a grid may have no room.
  problem.max_query_len =
      static_cast<int32_t>(std::min<int64_t>(args.max_seqlen_q, args.num_tokens));
  problem.max_seq_len = args.max_seqlen_k;
  problem.block_table = args.block_table;
  return problem;
}

inline Problem ProblemOf(const PagedAttentionArgs& args) {
  Problem problem = Common(args);
  problem.num_tokens = args.num_seqs;
  problem.max_query_len = 1;
  problem.max_seq_len = args.max_seq_len;
  problem.block_table = args.block_tables;
  return problem;
}

inline bool IsAllowed(const CachePlane& cache, DType q, int64_t dim) {
  return cache.layout == CacheLayout::kHnd && cache.dim == dim &&
         (cache.dtype == q || IsFp8(cache.dtype)) && cache.block_stride % 8 == 0 &&
         cache.head_stride % 8 == 0 && cache.token_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(cache.data) % (8 * SizeOf(cache.dtype)) == 0;
}

// By what products q . k are multiplied: scores are powers of two, unless a softcap comes first.
inline float ScaleOfScores(const Problem& args) {
  const auto dim = static_cast<float>(args.k_cache.dim);
  const float scale = args.scores.scale == 0 ? 1.0f / std::sqrt(dim) : args.scores.scale;
  return args.scores.softcap <= 0 ? scale * kLog2E : scale;
}

// But for where q lies.
inline bool IsServed(const Problem& args) {
  const int64_t dim = args.k_cache.dim;
  return (args.q.dtype == DType::kBF16 || args.q.dtype == DType::kF16) && dim > 0 && dim % 8 == 0 &&
         dim <= 256 && (args.out.dtype == DType::kF32 || args.out.dtype == args.q.dtype) &&
         args.k_cache.num_heads > 0 && args.num_heads % args.k_cache.num_heads == 0 &&
         args.k_cache.dtype == args.v_cache.dtype && IsAllowed(args.k_cache, args.q.dtype, dim) &&
         IsAllowed(args.v_cache, args.q.dtype, dim);
}

inline bool IsAllowed(const Problem& args) {
  return IsServed(args) && args.q_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(args.q.data) % 16 == 0;
}

inline int NumPartials(const Problem& args) {
  return args.max_seq_len / kPartialKeys + (args.max_seq_len % kPartialKeys > 0 ? 1 : 0);
}

inline int64_t PartialBytesOf(int64_t num_tokens, int64_t num_heads, int64_t dim) {
  return num_tokens * num_heads * (2 + dim) * int64_t{sizeof(float)};
}

inline int64_t ScratchBytesOf(const Problem& args) {
  return PartialBytesOf(args.num_tokens, args.num_heads, args.k_cache.dim) * NumPartials(args);
}

}  // namespace baton::cuda::attention
