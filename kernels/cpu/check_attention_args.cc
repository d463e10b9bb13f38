#include <algorithm>
#include <cmath>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "common/base/status.h"
#include "kernels/cpu/check_args.h"
#include "kernels/cpu/kv_cache_append.h"
#include "kernels/cpu/require.h"
#include "kernels/cpu/visible_keys.h"

namespace baton {
namespace {

constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kMaxHeads = 1 << 16;

// What the operators over a cache share, by the names of one of them.
struct Caches {
  const CachePlane& k;
  const CachePlane& v;
  const ScoreOptions& scores;
  int32_t num_heads;
  int64_t num_seqs;
  const int32_t* block_table;
  int64_t max_blocks;
  const char* block_table_name;
  const int32_t* table_starts = nullptr;
  BlockSparsity sparsity = {};
};

// The queries and keys of one sequence.
struct Sequence {
  int64_t index = 0;
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t cached = 0;     // Keys before this are in the cache.
  int64_t first_row = 0;  // Of the first key in the cache.
};

absl::Status RequireNull(const void* p, absl::string_view field, absl::string_view why) {
  if (p == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is given: must be null ", why));
}

absl::Status CheckAlibi(const ScoreOptions& scores, int64_t num_heads, int64_t num_seqs) {
  const int64_t stride = scores.alibi_stride;
  if (stride != 0 && (stride < num_heads || stride > kMaxStride)) {
    return Require(false, "scores.alibi_stride", stride,
                   absl::StrCat("0 or at least num_heads = ", num_heads, ", at most ", kMaxStride));
  }
  if (scores.alibi_slopes == nullptr) return absl::OkStatus();
  for (int64_t row = 0; row < (stride == 0 ? 1 : num_seqs); ++row) {
    for (int64_t i = row * stride; i < row * stride + num_heads; ++i) {
      const float slope = scores.alibi_slopes[i];
      if (std::isfinite(slope)) continue;
      return RequireFloat(false, absl::StrCat("scores.alibi_slopes[", i, "]"), slope, "finite");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckScores(const ScoreOptions& scores, int64_t num_heads, int64_t num_seqs) {
  RETURN_IF_ERROR(RequireFiniteAtLeast0(scores.scale, "scores.scale"));
  RETURN_IF_ERROR(RequireFiniteAtLeast0(scores.softcap, "scores.softcap"));
  RETURN_IF_ERROR(RequireAtLeast(scores.window_left, -1, "scores.window_left"));
  RETURN_IF_ERROR(RequireAtLeast(scores.window_right, -1, "scores.window_right"));
  RETURN_IF_ERROR(RequireAtLeast(scores.local_chunk, 0, "scores.local_chunk"));
  RETURN_IF_ERROR(Require(scores.local_chunk == 0 || scores.causal, "scores.local_chunk",
                          scores.local_chunk, "0 without scores.causal"));
  for (int64_t h = 0; scores.sinks != nullptr && h < num_heads; ++h) {
    const float sink = scores.sinks[h];
    if (sink < INFINITY) continue;
    return RequireFloat(false, absl::StrCat("scores.sinks[", h, "]"), sink,
                        "a number below infinity");
  }
  return CheckAlibi(scores, num_heads, num_seqs);
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

absl::Status CheckCaches(const Caches& c) {
  RETURN_IF_ERROR(CheckPlanes(c.k, c.v));
  for (const auto& [plane, field] : {std::pair{&c.k, "k_cache.dim"}, {&c.v, "v_cache.dim"}}) {
    RETURN_IF_ERROR(Require(plane->dim <= kMaxHeadDim, field, plane->dim, "at most ", kMaxHeadDim));
  }
  RETURN_IF_ERROR(CheckHeads(c.num_heads, c.k.num_heads, "a multiple of k_cache.num_heads = "));
  RETURN_IF_ERROR(RequireIn(c.max_blocks, 0, INT32_MAX, "max_blocks"));
  RETURN_IF_ERROR(CheckSparsity(c.sparsity, c.k.block_size));
  return CheckScores(c.scores, c.num_heads, c.num_seqs);
}

// Whether some head looks at the sparse block of `key`.
bool SomeHeadSees(const Caches& c, int64_t num_keys, int64_t key) {
  const HeadCounts heads{c.num_heads, c.k.num_heads};
  for (int64_t h = 0; h < c.num_heads; ++h) {
    if (SparseBlocksOf(c.sparsity, heads, h, num_keys).Sees(key)) return true;
  }
  return false;
}

absl::Status CheckBlock(const Caches& c, int64_t s, int64_t i) {
  RETURN_IF_ERROR(RequirePointer(c.block_table, c.block_table_name));
  const int64_t start = c.table_starts == nullptr ? s * c.max_blocks : c.table_starts[s];
  const int64_t block = c.block_table[start + i];
  if (block >= 0 && block < c.k.num_blocks) return absl::OkStatus();
  return Require(false, absl::StrCat(c.block_table_name, "[", s, "][", i, "]"), block,
                 absl::StrCat("in [0, ", c.k.num_blocks, ")"));
}

// The keys of a sequence fit in its table, and the entries that its queries look at are blocks.
absl::Status CheckKeys(const Caches& c, const Sequence& seq, const char* lengths) {
  const int64_t size = c.k.block_size;
  const int64_t rows = seq.first_row + seq.cached;
  if (rows > c.max_blocks * size) {
    return Require(false, absl::StrCat(lengths, "[", seq.index, "]"), rows,
                   absl::StrCat("at most max_blocks * block_size = ", c.max_blocks * size));
  }
  if (seq.queries == 0) return absl::OkStatus();
  const int64_t first = seq.keys - seq.queries;
  const int64_t begin = VisibleKeys(c.scores, first, seq.keys).begin;
  const int64_t end = std::min(VisibleKeys(c.scores, seq.keys - 1, seq.keys).end, seq.cached);
  if (begin >= end) return absl::OkStatus();
  for (int64_t i = (seq.first_row + begin) / size; i * size < seq.first_row + end; ++i) {
    if (c.sparsity.vert_stride > 1 && !SomeHeadSees(c, seq.keys, i * size)) continue;
    RETURN_IF_ERROR(CheckBlock(c, seq.index, i));
  }
  return absl::OkStatus();
}

// Non-negative, and at most `max` when that was told.
absl::Status CheckLength(int64_t length, const char* field, int64_t s, int64_t max,
                         const char* max_field) {
  if (length < 0) return RequireAtLeast(length, 0, absl::StrCat(field, "[", s, "]"));
  if (length <= max || max_field == nullptr) return absl::OkStatus();
  return Require(false, max_field, max, absl::StrCat("at least ", field, "[", s, "] = ", length));
}

absl::Status CheckCumulative(const int32_t* cu, int64_t num_seqs, const char* field) {
  RETURN_IF_ERROR(RequirePointer(cu, field));
  RETURN_IF_ERROR(Require(cu[0] == 0, absl::StrCat(field, "[0]"), cu[0], "0"));
  for (int64_t s = 0; s < num_seqs; ++s) {
    if (cu[s + 1] >= cu[s]) continue;
    return Require(false, absl::StrCat(field, "[", s + 1, "]"), cu[s + 1],
                   "not less than the entry before");
  }
  return absl::OkStatus();
}

absl::Status CheckStarts(const int32_t* starts, int64_t num_seqs) {
  for (int64_t s = 0; starts != nullptr && s < num_seqs; ++s) {
    if (starts[s] >= 0) continue;
    return RequireAtLeast(starts[s], 0, absl::StrCat("table_starts[", s, "]"));
  }
  return absl::OkStatus();
}

template <typename Args>
absl::Status CheckRows(const Args& args, int64_t num_tokens, int64_t k_dim, int64_t v_dim) {
  RETURN_IF_ERROR(RequirePointer(args.q.data, "q"));
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  const int64_t heads = args.num_heads;
  RETURN_IF_ERROR(RequireStride(args.q_stride, heads * k_dim, "q_stride"));
  RETURN_IF_ERROR(RequireStride(args.out_stride, heads * v_dim, "out_stride"));
  if (args.lse != nullptr) {
    RETURN_IF_ERROR(RequireStride(args.lse_stride, num_tokens, "lse_stride"));
  }
  return RequireComputeType(args.round_to, "round_to");
}

absl::Status CheckDense(const VarlenAttentionArgs& args) {
  const DenseKeys& dense = args.dense;
  RETURN_IF_ERROR(RequireNull(args.k_cache.data, "k_cache.data", "with dense.cu_seqlens_k"));
  RETURN_IF_ERROR(RequireNull(args.v_cache.data, "v_cache.data", "with dense.cu_seqlens_k"));
  RETURN_IF_ERROR(Require(dense.num_heads >= 1 && dense.num_heads <= kMaxHeads, "dense.num_heads",
                          dense.num_heads, absl::StrCat("in [1, ", kMaxHeads, "]")));
  for (const auto& [dim, field] :
       {std::pair{dense.k_dim, "dense.k_dim"}, {dense.v_dim, "dense.v_dim"}}) {
    RETURN_IF_ERROR(RequireIn(dim, 1, kMaxHeadDim, field));
  }
  const int64_t heads = dense.num_heads;
  RETURN_IF_ERROR(CheckHeads(args.num_heads, heads, "a multiple of dense.num_heads = "));
  RETURN_IF_ERROR(CheckCumulative(dense.cu_seqlens_k, args.num_seqs, "dense.cu_seqlens_k"));
  if (dense.cu_seqlens_k[args.num_seqs] > 0) {
    RETURN_IF_ERROR(RequirePointer(dense.k.data, "dense.k"));
    RETURN_IF_ERROR(RequirePointer(dense.v.data, "dense.v"));
    RETURN_IF_ERROR(RequireStride(dense.k_stride, heads * dense.k_dim, "dense.k_stride"));
    RETURN_IF_ERROR(RequireStride(dense.v_stride, heads * dense.v_dim, "dense.v_stride"));
  }
  return CheckScores(args.scores, args.num_heads, args.num_seqs);
}

// The number of keys of sequence s; its length is checked here.
absl::Status CheckDenseKeys(const VarlenAttentionArgs& args, int64_t s, int64_t& keys) {
  const int64_t all = int64_t{args.dense.cu_seqlens_k[s + 1]} - args.dense.cu_seqlens_k[s];
  keys = args.seq_lens == nullptr ? all : args.seq_lens[s];
  if (keys >= 0 && keys <= all) return absl::OkStatus();
  return Require(false, absl::StrCat("seq_lens[", s, "]"), keys,
                 absl::StrCat("in [0, ", all, "], the keys that dense.cu_seqlens_k gives"));
}

// The rows that sequence s has, and will have, fit in the cache; and their places are known.
absl::Status CheckKvCacheRows(const AttentionWithKvCacheArgs& args, const Caches& caches,
                              int64_t s) {
  const bool paged = args.block_table != nullptr;
  const int64_t size = args.k_cache.block_size;
  const int64_t capacity = std::min<int64_t>(paged ? args.max_blocks * size : size, INT32_MAX);
  const int64_t rows = args.cache_seqlens[s];
  const int64_t after = rows + args.num_new;
  if (args.num_new > capacity) {
    return Require(false, "num_new", args.num_new,
                   absl::StrCat("at most the capacity of ", capacity, " of a sequence"));
  }
  if (rows < 0 || after > capacity) {
    return Require(false, absl::StrCat("cache_seqlens[", s, "]"), rows,
                   absl::StrCat("in [0, ", capacity - args.num_new, "]: a capacity of ", capacity,
                                " with num_new = ", args.num_new));
  }
  const int64_t leftpad = args.cache_leftpad == nullptr ? 0 : args.cache_leftpad[s];
  RETURN_IF_ERROR(Require(leftpad >= 0 && leftpad <= rows, absl::StrCat("cache_leftpad[", s, "]"),
                          leftpad, absl::StrCat("in [0, ", rows, "]")));
  if (!paged) {
    if (args.cache_batch_idx == nullptr) return absl::OkStatus();
    const int64_t block = args.cache_batch_idx[s];
    return Require(block >= 0 && block < args.k_cache.num_blocks,
                   absl::StrCat("cache_batch_idx[", s, "]"), block,
                   absl::StrCat("in [0, ", args.k_cache.num_blocks, ")"));
  }
  for (int64_t i = rows / size; args.num_new > 0 && i * size < after; ++i) {
    RETURN_IF_ERROR(CheckBlock(caches, s, i));
  }
  const int64_t keys = after - leftpad;
  return CheckKeys(
      caches,
      {.index = s, .queries = args.num_queries, .keys = keys, .cached = keys, .first_row = leftpad},
      "cache_seqlens");
}

absl::Status CheckRotary(const AttentionWithKvCacheArgs& args) {
  if (args.rotary_cos == nullptr && args.rotary_sin == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.rotary_cos, "rotary_cos"));
  RETURN_IF_ERROR(RequirePointer(args.rotary_sin, "rotary_sin"));
  RETURN_IF_ERROR(Require(args.num_new > 0, "num_new", args.num_new, "above 0 with rotary_cos"));
  RETURN_IF_ERROR(Require(
      args.rotary_dim >= 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= args.k_cache.dim,
      "rotary_dim", args.rotary_dim,
      absl::StrCat("even and at most k_cache.dim = ", args.k_cache.dim)));
  const ScoreOptions& scores = args.scores;
  const bool advances = scores.causal || scores.window_left >= 0 || scores.window_right >= 0;
  const int64_t tokens = std::max(args.num_new, advances ? args.num_queries : 1);
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    const int64_t needed = args.cache_seqlens[s] + tokens;
    if (needed <= args.num_rotary_positions) continue;
    return Require(false, "num_rotary_positions", args.num_rotary_positions,
                   absl::StrCat("at least ", needed, " for sequence ", s));
  }
  return absl::OkStatus();
}

absl::Status CheckKvCacheShape(const AttentionWithKvCacheArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_queries, 0, "num_queries"));
  RETURN_IF_ERROR(Require(
      args.num_queries <= INT32_MAX / args.num_seqs, "num_queries", args.num_queries,
      absl::StrCat("at most ", INT32_MAX / args.num_seqs, " for ", args.num_seqs, " sequences")));
  RETURN_IF_ERROR(Require(args.num_new >= 0 && args.num_new <= INT32_MAX / args.num_seqs, "num_new",
                          args.num_new, absl::StrCat("in [0, ", INT32_MAX / args.num_seqs, "]")));
  RETURN_IF_ERROR(RequireAtLeast(args.num_splits, 0, "num_splits"));
  RETURN_IF_ERROR(RequirePointer(args.cache_seqlens, "cache_seqlens"));
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
  return RequireComputeType(args.round_to, "round_to");
}

// No two new tokens go to the same place.
absl::Status CheckNewSlots(const AttentionWithKvCacheArgs& args) {
  absl::flat_hash_set<int64_t> slots;
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    for (int64_t i = 0; i < args.num_new; ++i) {
      const int64_t row = args.cache_seqlens[s] + i;
      const int64_t slot = SlotOf(args, s, row);
      if (slots.insert(slot).second) continue;
      // Without either table each sequence has a block of its own.
      const int64_t size = args.k_cache.block_size;
      const std::string field = args.block_table == nullptr
                                    ? absl::StrCat("cache_batch_idx[", s, "]")
                                    : absl::StrCat("block_table[", s, "][", row / size, "]");
      return Require(false, field, slot / size,
                     absl::StrCat("a block whose row ", row % size, " no other new token takes"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckArgs(const VarlenAttentionArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.q, "q"));
  RETURN_IF_ERROR(RequireF32(args.dense.k, "dense.k"));
  RETURN_IF_ERROR(RequireF32(args.dense.v, "dense.v"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_seqs, 0, "num_seqs"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireAtLeast(args.max_seqlen_q, 0, "max_seqlen_q"));
  RETURN_IF_ERROR(RequireAtLeast(args.max_seqlen_k, 0, "max_seqlen_k"));
  if (args.num_seqs == 0) return absl::OkStatus();
  const Caches caches{args.k_cache,  args.v_cache,     args.scores,     args.num_heads,
                      args.num_seqs, args.block_table, args.max_blocks, "block_table",
                      args.table_starts};
  const bool dense = args.dense.cu_seqlens_k != nullptr;
  if (!dense) {
    RETURN_IF_ERROR(RequireNull(args.dense.k.data, "dense.k", "without dense.cu_seqlens_k"));
  }
  RETURN_IF_ERROR(dense ? CheckDense(args) : CheckCaches(caches));
  RETURN_IF_ERROR(CheckCumulative(args.cu_seqlens_q, args.num_seqs, "cu_seqlens_q"));
  if (!dense) RETURN_IF_ERROR(RequirePointer(args.seq_lens, "seq_lens"));
  const int32_t* cu = args.cu_seqlens_q;
  RETURN_IF_ERROR(CheckStarts(args.table_starts, args.num_seqs));
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    const int64_t queries = cu[s + 1] - cu[s];
    RETURN_IF_ERROR(CheckLength(queries, "query length ", s, args.max_seqlen_q,
                                args.max_seqlen_q == 0 ? nullptr : "max_seqlen_q"));
    int64_t keys = 0;
    if (dense) {
      RETURN_IF_ERROR(CheckDenseKeys(args, s, keys));
    } else {
      keys = args.seq_lens[s];
    }
    RETURN_IF_ERROR(CheckLength(keys, "seq_lens", s, args.max_seqlen_k,
                                args.max_seqlen_k == 0 ? nullptr : "max_seqlen_k"));
    if (dense) continue;
    RETURN_IF_ERROR(CheckKeys(
        caches, {.index = s, .queries = queries, .keys = keys, .cached = keys}, "seq_lens"));
  }
  const int64_t num_tokens = cu[args.num_seqs];
  RETURN_IF_ERROR(Require(args.num_tokens == 0 || args.num_tokens == num_tokens, "num_tokens",
                          args.num_tokens, "0 or cu_seqlens_q[num_seqs] = ", num_tokens));
  if (num_tokens == 0) return absl::OkStatus();
  return CheckRows(args, num_tokens, dense ? args.dense.k_dim : args.k_cache.dim,
                   dense ? args.dense.v_dim : args.v_cache.dim);
}

absl::Status CheckArgs(const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.q, "q"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  RETURN_IF_ERROR(RequireIn(args.num_seqs, 0, INT32_MAX - 1, "num_seqs"));
  if (args.num_seqs == 0) return absl::OkStatus();
  const Caches caches{args.k_cache,    args.v_cache,   args.scores,
                      args.num_heads,  args.num_seqs,  args.block_tables,
                      args.max_blocks, "block_tables", args.table_starts, args.sparsity};
  RETURN_IF_ERROR(CheckCaches(caches));
  RETURN_IF_ERROR(Require(args.split <= AttentionSplit::kReference, "split",
                          static_cast<int>(args.split), "AUTO, SINGLE_PASS, SPLIT or REFERENCE"));
  RETURN_IF_ERROR(RequirePointer(args.seq_lens, "seq_lens"));
  RETURN_IF_ERROR(CheckStarts(args.table_starts, args.num_seqs));
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    const int64_t keys = args.seq_lens[s];
    RETURN_IF_ERROR(CheckLength(keys, "seq_lens", s, args.max_seq_len, "max_seq_len"));
    RETURN_IF_ERROR(
        CheckKeys(caches, {.index = s, .queries = 1, .keys = keys, .cached = keys}, "seq_lens"));
  }
  return CheckRows(args, args.num_seqs, args.k_cache.dim, args.v_cache.dim);
}

absl::Status CheckArgs(const PrefixAttentionArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.q, "q"));
  RETURN_IF_ERROR(RequireF32(args.k, "k"));
  RETURN_IF_ERROR(RequireF32(args.v, "v"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_seqs, 0, "num_seqs"));
  if (args.num_seqs == 0) return absl::OkStatus();
  const Caches caches{args.k_cache,  args.v_cache,     args.scores,     args.num_heads,
                      args.num_seqs, args.block_table, args.max_blocks, "block_table"};
  RETURN_IF_ERROR(CheckCaches(caches));
  RETURN_IF_ERROR(Require(args.scores.causal, "scores.causal", args.scores.causal, "true"));
  RETURN_IF_ERROR(CheckCumulative(args.cu_seqlens_q, args.num_seqs, "cu_seqlens_q"));
  RETURN_IF_ERROR(RequirePointer(args.seq_lens, "seq_lens"));
  const int32_t* cu = args.cu_seqlens_q;
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    const int64_t queries = cu[s + 1] - cu[s];
    const int64_t keys = args.seq_lens[s];
    RETURN_IF_ERROR(Require(keys >= queries, absl::StrCat("seq_lens[", s, "]"), keys,
                            absl::StrCat("at least the query length ", queries)));
    if (args.skip_decodes && queries == 1) continue;
    const Sequence seq{.index = s, .queries = queries, .keys = keys, .cached = keys - queries};
    RETURN_IF_ERROR(CheckKeys(caches, seq, "context of seq_lens"));
  }
  const int64_t num_tokens = cu[args.num_seqs];
  if (num_tokens == 0) return absl::OkStatus();
  const int64_t heads = args.k_cache.num_heads;
  RETURN_IF_ERROR(RequirePointer(args.k.data, "k"));
  RETURN_IF_ERROR(RequirePointer(args.v.data, "v"));
  RETURN_IF_ERROR(RequireStride(args.k_stride, heads * args.k_cache.dim, "k_stride"));
  RETURN_IF_ERROR(RequireStride(args.v_stride, heads * args.v_cache.dim, "v_stride"));
  return CheckRows(args, num_tokens, args.k_cache.dim, args.v_cache.dim);
}

absl::Status CheckArgs(const AttentionWithKvCacheArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.q, "q"));
  RETURN_IF_ERROR(RequireF32(args.k, "k"));
  RETURN_IF_ERROR(RequireF32(args.v, "v"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  RETURN_IF_ERROR(RequireIn(args.num_seqs, 0, INT32_MAX - 1, "num_seqs"));
  if (args.num_seqs == 0) return absl::OkStatus();
  const Caches caches{args.k_cache,  args.v_cache,     args.scores,     args.num_heads,
                      args.num_seqs, args.block_table, args.max_blocks, "block_table"};
  RETURN_IF_ERROR(CheckCaches(caches));
  RETURN_IF_ERROR(CheckKvCacheShape(args));
  for (int64_t s = 0; s < args.num_seqs; ++s) RETURN_IF_ERROR(CheckKvCacheRows(args, caches, s));
  RETURN_IF_ERROR(CheckRotary(args));
  return CheckNewSlots(args);
}

absl::Status CheckArgs(const MergeAttentionStatesArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.out_a, "out_a"));
  RETURN_IF_ERROR(RequireF32(args.out_b, "out_b"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequireIn(args.num_heads, 1, kMaxHeads, "num_heads"));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  RETURN_IF_ERROR(RequirePointer(args.out_a.data, "out_a"));
  RETURN_IF_ERROR(RequirePointer(args.lse_a, "lse_a"));
  RETURN_IF_ERROR(RequirePointer(args.out_b.data, "out_b"));
  RETURN_IF_ERROR(RequirePointer(args.lse_b, "lse_b"));
  RETURN_IF_ERROR(RequireComputeType(args.round_to, "round_to"));
  return RequirePointer(args.out.data, "out");
}

}  // namespace baton
