#include <cmath>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "kernels/api/check_shapes.h"
#include "kernels/api/require.h"

namespace baton {
namespace {

constexpr int64_t kMaxHeads = 1 << 16;

absl::Status RequireNull(const void* p, absl::string_view field, absl::string_view why) {
  if (p == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is given: must be null ", why));
}

absl::Status CheckScores(const ScoreOptions& scores, int64_t num_heads) {
  RETURN_IF_ERROR(RequireFiniteAtLeast0(scores.scale, "scores.scale"));
  RETURN_IF_ERROR(RequireFiniteAtLeast0(scores.softcap, "scores.softcap"));
  RETURN_IF_ERROR(RequireAtLeast(scores.window_left, -1, "scores.window_left"));
  RETURN_IF_ERROR(RequireAtLeast(scores.window_right, -1, "scores.window_right"));
  RETURN_IF_ERROR(RequireAtLeast(scores.local_chunk, 0, "scores.local_chunk"));
  RETURN_IF_ERROR(Require(scores.local_chunk == 0 || scores.causal, "scores.local_chunk",
                          scores.local_chunk, "0 without scores.causal"));
  const int64_t stride = scores.alibi_stride;
  if (stride == 0 || (stride >= num_heads && stride <= kMaxStride)) return absl::OkStatus();
  return Require(false, "scores.alibi_stride", stride,
                 absl::StrCat("0 or at least num_heads = ", num_heads, ", at most ", kMaxStride));
}

absl::Status CheckScaling(const AttentionScales& scales, int64_t num_kv_heads) {
  const float out = scales.output_scale;
  RETURN_IF_ERROR(RequireFloat(std::isfinite(out) && out > 0, "scales.output_scale", out,
                               "finite and greater than 0"));
  const int64_t stride = scales.stride;
  if (stride == 0 || (stride >= num_kv_heads && stride <= kMaxStride)) return absl::OkStatus();
  return Require(false, "scales.stride", stride,
                 absl::StrCat("0 or at least the heads of K and V, ", num_kv_heads, ", at most ",
                              kMaxStride));
}

absl::Status CheckHeads(int64_t num_heads, int64_t num_kv_heads, absl::string_view allowed) {
  RETURN_IF_ERROR(RequireIn(num_heads, 1, kMaxHeads, "num_heads"));
  return Require(num_heads % num_kv_heads == 0, "num_heads", num_heads, allowed, num_kv_heads);
}

absl::Status CheckSparsity(const BlockSparsity& sparsity, int64_t cache_block_size) {
  if (sparsity.vert_stride <= 1) return absl::OkStatus();
  RETURN_IF_ERROR(Require(sparsity.block_size >= 1 && sparsity.block_size % cache_block_size == 0,
                          "sparsity.block_size", sparsity.block_size,
                          absl::StrCat("a multiple of k_cache.block_size = ", cache_block_size)));
  RETURN_IF_ERROR(RequireAtLeast(sparsity.local_blocks, 0, "sparsity.local_blocks"));
  const int64_t step = sparsity.head_sliding_step;
  RETURN_IF_ERROR(RequireIn(step, -kMaxHeads, kMaxHeads, "sparsity.head_sliding_step"));
  return RequireIn(sparsity.tp_rank, 0, kMaxHeads, "sparsity.tp_rank");
}

// What the operators over a cache share.
template <typename Args>
absl::Status CheckCaches(const Args& args, const BlockSparsity& sparsity = {}) {
  const CachePlane& k = args.k_cache;
  RETURN_IF_ERROR(CheckPlanes(k, args.v_cache));
  for (const auto& [plane, field] :
       {std::pair{&k, "k_cache.dim"}, {&args.v_cache, "v_cache.dim"}}) {
    RETURN_IF_ERROR(Require(plane->dim <= kMaxAttentionDim, field, plane->dim, "at most ",
                            kMaxAttentionDim));
  }
  RETURN_IF_ERROR(CheckHeads(args.num_heads, k.num_heads, "a multiple of k_cache.num_heads = "));
  RETURN_IF_ERROR(RequireIn(args.max_blocks, 0, INT32_MAX, "max_blocks"));
  RETURN_IF_ERROR(CheckSparsity(sparsity, k.block_size));
  return CheckScores(args.scores, args.num_heads);
}

template <typename Args>
absl::Status CheckQueries(const Args& args, int64_t num_tokens, int64_t k_dim, int64_t v_dim) {
  RETURN_IF_ERROR(RequirePointer(args.q.data, "q"));
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  const int64_t heads = args.num_heads;
  RETURN_IF_ERROR(RequireStride(args.q_stride, heads * k_dim, "q_stride"));
  RETURN_IF_ERROR(RequireStride(args.out_stride, heads * v_dim, "out_stride"));
  if (args.lse == nullptr) return absl::OkStatus();
  return RequireStride(args.lse_stride, num_tokens, "lse_stride");
}

absl::Status CheckPartials(const PagedAttentionArgs& args) {
  const AttentionPartials& partials = args.partials;
  if (!partials.given()) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(partials.exp_sums, "partials.exp_sums"));
  RETURN_IF_ERROR(RequirePointer(partials.max_logits, "partials.max_logits"));
  RETURN_IF_ERROR(RequirePointer(partials.tmp_out, "partials.tmp_out"));
  const int64_t needed = (int64_t{args.max_seq_len} + kPartitionKeys - 1) / kPartitionKeys;
  RETURN_IF_ERROR(Require(
      partials.max_num_partitions >= needed && partials.max_num_partitions <= INT32_MAX,
      "partials.max_num_partitions", partials.max_num_partitions,
      absl::StrCat("in [", needed, ", ", INT32_MAX, "]: partitions of ", kPartitionKeys,
                   " keys with max_seq_len = ", args.max_seq_len)));
  return Require(args.split != AttentionSplit::kSinglePass, "split", static_cast<int>(args.split),
                 "AUTO, SPLIT or REFERENCE with partials");
}

absl::Status CheckDense(const VarlenAttentionArgs& args) {
  const DenseKeys& dense = args.dense;
  RETURN_IF_ERROR(RequireNull(args.k_cache.data, "k_cache.data", "with dense.cu_seqlens_k"));
  RETURN_IF_ERROR(RequireNull(args.v_cache.data, "v_cache.data", "with dense.cu_seqlens_k"));
  RETURN_IF_ERROR(Require(dense.num_heads >= 1 && dense.num_heads <= kMaxHeads, "dense.num_heads",
                          dense.num_heads, absl::StrCat("in [1, ", kMaxHeads, "]")));
  for (const auto& [dim, field] :
       {std::pair{dense.k_dim, "dense.k_dim"}, {dense.v_dim, "dense.v_dim"}}) {
    RETURN_IF_ERROR(RequireIn(dim, 1, kMaxAttentionDim, field));
  }
  RETURN_IF_ERROR(CheckHeads(args.num_heads, dense.num_heads, "a multiple of dense.num_heads = "));
  return CheckScores(args.scores, args.num_heads);
}

// Of an output that may be an input, whose rows are dense.
absl::Status CheckMergedStride(int64_t stride, int64_t width, bool is_input, FieldName field) {
  RETURN_IF_ERROR(RequireStrideOrDense(stride, width, field));
  return Require(!is_input || stride == 0 || stride == width, field, stride, "dense, ",
                 absl::StrCat(width, ", over an input"));
}

absl::Status CheckRotary(const AttentionWithKvCacheArgs& args) {
  if (args.rotary_cos == nullptr && args.rotary_sin == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.rotary_cos, "rotary_cos"));
  RETURN_IF_ERROR(RequirePointer(args.rotary_sin, "rotary_sin"));
  RETURN_IF_ERROR(Require(args.num_new > 0, "num_new", args.num_new, "above 0 with rotary_cos"));
  return Require(
      args.rotary_dim >= 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= args.k_cache.dim,
      "rotary_dim", args.rotary_dim,
      absl::StrCat("even and at most k_cache.dim = ", args.k_cache.dim));
}

absl::Status CheckKvCacheShape(const AttentionWithKvCacheArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_queries, 0, "num_queries"));
  RETURN_IF_ERROR(Require(
      args.num_queries <= INT32_MAX / args.num_seqs, "num_queries", args.num_queries,
      absl::StrCat("at most ", INT32_MAX / args.num_seqs, " for ", args.num_seqs, " sequences")));
  RETURN_IF_ERROR(Require(args.num_new >= 0 && args.num_new <= INT32_MAX / args.num_seqs, "num_new",
                          args.num_new, absl::StrCat("in [0, ", INT32_MAX / args.num_seqs, "]")));
  RETURN_IF_ERROR(RequireAtLeast(args.num_splits, 0, "num_splits"));
  if (args.cache_seqlen == -1) {
    RETURN_IF_ERROR(RequirePointer(args.cache_seqlens, "cache_seqlens"));
  } else {
    RETURN_IF_ERROR(RequireNull(args.cache_seqlens, "cache_seqlens", "with cache_seqlen"));
    RETURN_IF_ERROR(RequireAtLeast(args.cache_seqlen, 0, "cache_seqlen"));
  }
  if (args.num_new > 0) {
    RETURN_IF_ERROR(RequirePointer(args.k.data, "k"));
    RETURN_IF_ERROR(RequirePointer(args.v.data, "v"));
  } else {
    RETURN_IF_ERROR(RequireNull(args.k.data, "k", "with num_new = 0"));
    RETURN_IF_ERROR(RequireNull(args.v.data, "v", "with num_new = 0"));
  }
  if (args.num_queries > 0) {
    RETURN_IF_ERROR(RequirePointer(args.q.data, "q"));
    RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  }
  if (args.block_table != nullptr) {
    RETURN_IF_ERROR(RequireNull(args.cache_batch_idx, "cache_batch_idx", "with a block_table"));
  } else if (args.cache_batch_idx == nullptr) {
    const int64_t blocks = args.k_cache.num_blocks;
    RETURN_IF_ERROR(
        Require(args.num_seqs <= blocks, "num_seqs", args.num_seqs,
                absl::StrCat("at most k_cache.num_blocks = ", blocks, " without cache_batch_idx")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRows(const VarlenAttentionArgs& args, int64_t num_tokens) {
  const bool dense = args.dense.cu_seqlens_k != nullptr;
  return CheckQueries(args, num_tokens, dense ? args.dense.k_dim : args.k_cache.dim,
                      dense ? args.dense.v_dim : args.v_cache.dim);
}

absl::Status CheckRows(const PrefixAttentionArgs& args, int64_t num_tokens) {
  const int64_t heads = args.k_cache.num_heads;
  RETURN_IF_ERROR(RequirePointer(args.k.data, "k"));
  RETURN_IF_ERROR(RequirePointer(args.v.data, "v"));
  RETURN_IF_ERROR(RequireStride(args.k_stride, heads * args.k_cache.dim, "k_stride"));
  RETURN_IF_ERROR(RequireStride(args.v_stride, heads * args.v_cache.dim, "v_stride"));
  return CheckQueries(args, num_tokens, args.k_cache.dim, args.v_cache.dim);
}

absl::Status CheckShapes(const VarlenAttentionArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.q, "q"));
  RETURN_IF_ERROR(RequireOperand(args.dense.k, "dense.k"));
  RETURN_IF_ERROR(RequireOperand(args.dense.v, "dense.v"));
  RETURN_IF_ERROR(RequireRounded(args.out, args.round_to));
  RETURN_IF_ERROR(RequireAtLeast(args.num_seqs, 0, "num_seqs"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireAtLeast(args.max_seqlen_q, 0, "max_seqlen_q"));
  RETURN_IF_ERROR(RequireAtLeast(args.max_seqlen_k, 0, "max_seqlen_k"));
  if (args.num_seqs == 0) return absl::OkStatus();
  const bool dense = args.dense.cu_seqlens_k != nullptr;
  if (!dense) {
    RETURN_IF_ERROR(RequireNull(args.dense.k.data, "dense.k", "without dense.cu_seqlens_k"));
  }
  RETURN_IF_ERROR(dense ? CheckDense(args) : CheckCaches(args));
  RETURN_IF_ERROR(
      CheckScaling(args.scales, dense ? args.dense.num_heads : args.k_cache.num_heads));
  RETURN_IF_ERROR(RequirePointer(args.cu_seqlens_q, "cu_seqlens_q"));
  if (!dense) RETURN_IF_ERROR(RequirePointer(args.seq_lens, "seq_lens"));
  return args.num_tokens == 0 ? absl::OkStatus() : CheckRows(args, args.num_tokens);
}

absl::Status CheckShapes(const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.q, "q"));
  RETURN_IF_ERROR(RequireRounded(args.out, args.round_to));
  RETURN_IF_ERROR(RequireIn(args.num_seqs, 0, INT32_MAX - 1, "num_seqs"));
  if (args.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequireAtLeast(args.max_seq_len, 0, "max_seq_len"));
  RETURN_IF_ERROR(CheckCaches(args, args.sparsity));
  RETURN_IF_ERROR(CheckScaling(args.scales, args.k_cache.num_heads));
  RETURN_IF_ERROR(Require(args.split <= AttentionSplit::kReference, "split",
                          static_cast<int>(args.split), "AUTO, SINGLE_PASS, SPLIT or REFERENCE"));
  RETURN_IF_ERROR(CheckPartials(args));
  RETURN_IF_ERROR(RequirePointer(args.seq_lens, "seq_lens"));
  return CheckQueries(args, args.num_seqs, args.k_cache.dim, args.v_cache.dim);
}

absl::Status CheckShapes(const PrefixAttentionArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.q, "q"));
  RETURN_IF_ERROR(RequireOperand(args.k, "k"));
  RETURN_IF_ERROR(RequireOperand(args.v, "v"));
  RETURN_IF_ERROR(RequireRounded(args.out, args.round_to));
  RETURN_IF_ERROR(RequireAtLeast(args.num_seqs, 0, "num_seqs"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  if (args.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckCaches(args));
  RETURN_IF_ERROR(CheckScaling(args.scales, args.k_cache.num_heads));
  RETURN_IF_ERROR(Require(args.scores.causal, "scores.causal", args.scores.causal, "true"));
  RETURN_IF_ERROR(RequirePointer(args.cu_seqlens_q, "cu_seqlens_q"));
  RETURN_IF_ERROR(RequirePointer(args.seq_lens, "seq_lens"));
  return args.num_tokens == 0 ? absl::OkStatus() : CheckRows(args, args.num_tokens);
}

absl::Status CheckShapes(const AttentionWithKvCacheArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.q, "q"));
  RETURN_IF_ERROR(RequireOperand(args.k, "k"));
  RETURN_IF_ERROR(RequireOperand(args.v, "v"));
  RETURN_IF_ERROR(RequireRounded(args.out, args.round_to));
  RETURN_IF_ERROR(RequireIn(args.num_seqs, 0, INT32_MAX - 1, "num_seqs"));
  if (args.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckCaches(args));
  RETURN_IF_ERROR(CheckScaling(args.scales, args.k_cache.num_heads));
  RETURN_IF_ERROR(CheckKvCacheShape(args));
  return CheckRotary(args);
}

absl::Status CheckShapes(const MergeAttentionStatesArgs& args) {
  RETURN_IF_ERROR(RequireOperand(args.out_a, "out_a"));
  RETURN_IF_ERROR(RequireOperand(args.out_b, "out_b"));
  RETURN_IF_ERROR(RequireRounded(args.out, args.round_to));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequireIn(args.num_heads, 1, kMaxHeads, "num_heads"));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  RETURN_IF_ERROR(RequirePointer(args.out_a.data, "out_a"));
  RETURN_IF_ERROR(RequirePointer(args.lse_a, "lse_a"));
  RETURN_IF_ERROR(RequirePointer(args.out_b.data, "out_b"));
  RETURN_IF_ERROR(RequirePointer(args.lse_b, "lse_b"));
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  for (const ConstFloats& in : {args.out_a, args.out_b}) {
    const bool overlaps = in.data == args.out.data && in.dtype != args.out.dtype;
    RETURN_IF_ERROR(Require(!overlaps, "out.dtype", static_cast<int>(args.out.dtype),
                            "that of the input over which it lies"));
    RETURN_IF_ERROR(CheckMergedStride(args.out_stride, int64_t{args.num_heads} * args.dim,
                                      in.data == args.out.data, "out_stride"));
  }
  for (const float* in : {args.lse_a, args.lse_b}) {
    RETURN_IF_ERROR(
        CheckMergedStride(args.lse_stride, args.num_tokens, in == args.lse, "lse_stride"));
  }
  return absl::OkStatus();
}

absl::Status CheckCascade(const VarlenAttentionArgs& args, int32_t common_prefix_len) {
  RETURN_IF_ERROR(RequireIn(args.num_seqs, 0, INT32_MAX, "num_seqs"));
  if (args.num_seqs == 0) return absl::OkStatus();
  constexpr absl::string_view kCure = "; use VarlenAttention";
  RETURN_IF_ERROR(RequireNull(args.dense.k.data, "dense.k", kCure));
  RETURN_IF_ERROR(RequireNull(args.dense.cu_seqlens_k, "dense.cu_seqlens_k", kCure));
  RETURN_IF_ERROR(RequireNull(args.scores.alibi_slopes, "scores.alibi_slopes", kCure));
  if (args.scales.any()) {
    return absl::InvalidArgumentError("scales are given: must be none; use VarlenAttention");
  }
  const ScoreOptions& scores = args.scores;
  RETURN_IF_ERROR(
      Require(scores.window_left == -1, "scores.window_left", scores.window_left, "-1"));
  RETURN_IF_ERROR(
      Require(scores.window_right == -1, "scores.window_right", scores.window_right, "-1"));
  RETURN_IF_ERROR(Require(scores.local_chunk == 0, "scores.local_chunk", scores.local_chunk, "0"));
  RETURN_IF_ERROR(RequireIn(args.num_tokens, 1, INT32_MAX, "num_tokens"));
  RETURN_IF_ERROR(CheckShapes(args));
  RETURN_IF_ERROR(RequirePointer(args.block_table, "block_table"));
  const int64_t size = args.k_cache.block_size;
  RETURN_IF_ERROR(Require(common_prefix_len >= 1 && common_prefix_len % size == 0,
                          "common_prefix_len", common_prefix_len,
                          absl::StrCat("a multiple of k_cache.block_size = ", size, " above 0")));
  RETURN_IF_ERROR(Require(common_prefix_len / size <= args.max_blocks, "max_blocks",
                          args.max_blocks, "at least the blocks of the prefix, ",
                          common_prefix_len / size));
  return Require(args.max_seqlen_k == 0 || args.max_seqlen_k > common_prefix_len, "max_seqlen_k",
                 args.max_seqlen_k, "above common_prefix_len = ", common_prefix_len);
}

absl::Status CheckShapes(const CascadeLensArgs& args) {
  RETURN_IF_ERROR(CheckCascade(args.attention, args.common_prefix_len));
  if (args.attention.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.prefix_queries, "prefix_queries"));
  RETURN_IF_ERROR(RequirePointer(args.prefix_len, "prefix_len"));
  return RequirePointer(args.suffix_lens, "suffix_lens");
}

}  // namespace baton
