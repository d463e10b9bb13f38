#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/base/status.h"
#include "kernels/api/check_shapes.h"
#include "kernels/cpu/check_contents.h"
#include "kernels/cpu/kv_cache_append.h"
#include "kernels/cpu/require_f32.h"
#include "kernels/cpu/visible_keys.h"

namespace baton {
namespace {

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

absl::Status CheckScoreArrays(const ScoreOptions& scores, int64_t num_heads, int64_t num_seqs) {
  for (int64_t h = 0; scores.sinks != nullptr && h < num_heads; ++h) {
    const float sink = scores.sinks[h];
    if (sink < INFINITY) continue;
    return RequireFloat(false, absl::StrCat("scores.sinks[", h, "]"), sink,
                        "a number below infinity");
  }
  if (scores.alibi_slopes == nullptr) return absl::OkStatus();
  const int64_t stride = scores.alibi_stride;
  for (int64_t row = 0; row < (stride == 0 ? 1 : num_seqs); ++row) {
    for (int64_t i = row * stride; i < row * stride + num_heads; ++i) {
      const float slope = scores.alibi_slopes[i];
      if (std::isfinite(slope)) continue;
      return RequireFloat(false, absl::StrCat("scores.alibi_slopes[", i, "]"), slope, "finite");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDescales(const AttentionScales& scales, int64_t num_kv_heads, int64_t num_seqs) {
  for (const auto& [descales, field] : {std::pair{scales.q_descale, "scales.q_descale["},
                                        {scales.k_descale, "scales.k_descale["},
                                        {scales.v_descale, "scales.v_descale["}}) {
    if (descales == nullptr) continue;
    for (int64_t s = 0; s < (scales.stride == 0 ? 1 : num_seqs); ++s) {
      for (int64_t h = 0; h < num_kv_heads; ++h) {
        const float x = descales[s * scales.stride + h];
        if (x > 0 && std::isfinite(x)) continue;
        return RequireFloat(false, absl::StrCat(field, s, "][", h, "]"), x,
                            "finite and greater than 0");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckArrays(const Caches& c) {
  RETURN_IF_ERROR(CheckScales(c.k, "k_cache"));
  RETURN_IF_ERROR(CheckScales(c.v, "v_cache"));
  return CheckScoreArrays(c.scores, c.num_heads, c.num_seqs);
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

absl::Status CheckToldTokens(int64_t told, int64_t num_tokens) {
  return Require(told == 0 || told == num_tokens, "num_tokens", told,
                 "0 or cu_seqlens_q[num_seqs] = ", num_tokens);
}

absl::Status CheckStarts(const int32_t* starts, int64_t num_seqs) {
  for (int64_t s = 0; starts != nullptr && s < num_seqs; ++s) {
    if (starts[s] >= 0) continue;
    return RequireAtLeast(starts[s], 0, absl::StrCat("table_starts[", s, "]"));
  }
  return absl::OkStatus();
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
  const int64_t rows = CacheSeqlen(args, s);
  const int64_t after = rows + args.num_new;
  if (args.num_new > capacity) {
    return Require(false, "num_new", args.num_new,
                   absl::StrCat("at most the capacity of ", capacity, " of a sequence"));
  }
  if (rows < 0 || after > capacity) {
    const bool one = args.cache_seqlens == nullptr;
    return Require(false, one ? "cache_seqlen" : absl::StrCat("cache_seqlens[", s, "]"), rows,
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

// The tables of rotations reach behind the last position.
absl::Status CheckRotaryRows(const AttentionWithKvCacheArgs& args) {
  if (args.rotary_cos == nullptr) return absl::OkStatus();
  const ScoreOptions& scores = args.scores;
  const bool advances = scores.causal || scores.window_left >= 0 || scores.window_right >= 0;
  const int64_t tokens = std::max(args.num_new, advances ? args.num_queries : 1);
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    const int64_t needed = CacheSeqlen(args, s) + tokens;
    if (needed <= args.num_rotary_positions) continue;
    return Require(false, "num_rotary_positions", args.num_rotary_positions,
                   absl::StrCat("at least ", needed, " for sequence ", s));
  }
  return absl::OkStatus();
}

// No two new tokens go to the same place.
absl::Status CheckNewSlots(const AttentionWithKvCacheArgs& args) {
  absl::flat_hash_set<int64_t> slots;
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    for (int64_t i = 0; i < args.num_new; ++i) {
      const int64_t row = CacheSeqlen(args, s) + i;
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

// Queries and keys of a sequence that begins with the common prefix. Of the two calls only that of
// the suffix sees them, shortened.
absl::Status CheckCascadeSequence(const CascadeLensArgs& args, const Caches& caches, int64_t s) {
  const VarlenAttentionArgs& a = args.attention;
  const int64_t size = a.k_cache.block_size;
  const int64_t queries = int64_t{a.cu_seqlens_q[s + 1]} - a.cu_seqlens_q[s];
  const int64_t keys = a.seq_lens[s];
  RETURN_IF_ERROR(CheckLength(queries, "query length ", s, a.max_seqlen_q,
                              a.max_seqlen_q == 0 ? nullptr : "max_seqlen_q"));
  RETURN_IF_ERROR(CheckLength(keys, "seq_lens", s, a.max_seqlen_k,
                              a.max_seqlen_k == 0 ? nullptr : "max_seqlen_k"));
  if (keys > a.max_blocks * size) {
    return Require(false, absl::StrCat("seq_lens[", s, "]"), keys,
                   absl::StrCat("at most max_blocks * block_size = ", a.max_blocks * size));
  }
  if (queries == 0) return absl::OkStatus();
  const int64_t least = args.common_prefix_len + queries;
  if (keys < least) {
    return Require(false, absl::StrCat("seq_lens[", s, "]"), keys,
                   absl::StrCat("at least common_prefix_len + query length = ", least));
  }
  for (int64_t i = args.common_prefix_len / size; i * size < keys; ++i) {
    RETURN_IF_ERROR(CheckBlock(caches, s, i));
  }
  return absl::OkStatus();
}

absl::Status CheckDenseRows(const VarlenAttentionArgs& args) {
  const DenseKeys& dense = args.dense;
  RETURN_IF_ERROR(CheckCumulative(dense.cu_seqlens_k, args.num_seqs, "dense.cu_seqlens_k"));
  if (dense.cu_seqlens_k[args.num_seqs] > 0) {
    RETURN_IF_ERROR(RequirePointer(dense.k.data, "dense.k"));
    RETURN_IF_ERROR(RequirePointer(dense.v.data, "dense.v"));
    const int64_t heads = dense.num_heads;
    RETURN_IF_ERROR(RequireStride(dense.k_stride, heads * dense.k_dim, "dense.k_stride"));
    RETURN_IF_ERROR(RequireStride(dense.v_stride, heads * dense.v_dim, "dense.v_stride"));
  }
  return CheckScoreArrays(args.scores, args.num_heads, args.num_seqs);
}

}  // namespace

absl::Status CheckContents(const VarlenAttentionArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.q, "q"));
  RETURN_IF_ERROR(RequireF32(args.dense.k, "dense.k"));
  RETURN_IF_ERROR(RequireF32(args.dense.v, "dense.v"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  if (args.num_seqs == 0) return absl::OkStatus();
  const Caches caches{args.k_cache,  args.v_cache,     args.scores,     args.num_heads,
                      args.num_seqs, args.block_table, args.max_blocks, "block_table",
                      args.table_starts};
  const bool dense = args.dense.cu_seqlens_k != nullptr;
  RETURN_IF_ERROR(dense ? CheckDenseRows(args) : CheckArrays(caches));
  RETURN_IF_ERROR(CheckCumulative(args.cu_seqlens_q, args.num_seqs, "cu_seqlens_q"));
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
  RETURN_IF_ERROR(CheckDescales(
      args.scales, dense ? args.dense.num_heads : args.k_cache.num_heads, args.num_seqs));
  const int64_t num_tokens = cu[args.num_seqs];
  RETURN_IF_ERROR(CheckToldTokens(args.num_tokens, num_tokens));
  return num_tokens == 0 ? absl::OkStatus() : CheckRows(args, num_tokens);
}

absl::Status CheckContents(const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.q, "q"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  if (args.num_seqs == 0) return absl::OkStatus();
  const Caches caches{args.k_cache,    args.v_cache,   args.scores,
                      args.num_heads,  args.num_seqs,  args.block_tables,
                      args.max_blocks, "block_tables", args.table_starts, args.sparsity};
  RETURN_IF_ERROR(CheckArrays(caches));
  RETURN_IF_ERROR(CheckDescales(args.scales, args.k_cache.num_heads, args.num_seqs));
  RETURN_IF_ERROR(CheckStarts(args.table_starts, args.num_seqs));
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    const int64_t keys = args.seq_lens[s];
    RETURN_IF_ERROR(CheckLength(keys, "seq_lens", s, args.max_seq_len, "max_seq_len"));
    RETURN_IF_ERROR(
        CheckKeys(caches, {.index = s, .queries = 1, .keys = keys, .cached = keys}, "seq_lens"));
  }
  return absl::OkStatus();
}

absl::Status CheckContents(const PrefixAttentionArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.q, "q"));
  RETURN_IF_ERROR(RequireF32(args.k, "k"));
  RETURN_IF_ERROR(RequireF32(args.v, "v"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  if (args.num_seqs == 0) return absl::OkStatus();
  const Caches caches{args.k_cache,  args.v_cache,     args.scores,     args.num_heads,
                      args.num_seqs, args.block_table, args.max_blocks, "block_table"};
  RETURN_IF_ERROR(CheckArrays(caches));
  RETURN_IF_ERROR(CheckDescales(args.scales, args.k_cache.num_heads, args.num_seqs));
  RETURN_IF_ERROR(CheckCumulative(args.cu_seqlens_q, args.num_seqs, "cu_seqlens_q"));
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
  RETURN_IF_ERROR(CheckToldTokens(args.num_tokens, num_tokens));
  return num_tokens == 0 ? absl::OkStatus() : CheckRows(args, num_tokens);
}

absl::Status CheckContents(const AttentionWithKvCacheArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.q, "q"));
  RETURN_IF_ERROR(RequireF32(args.k, "k"));
  RETURN_IF_ERROR(RequireF32(args.v, "v"));
  RETURN_IF_ERROR(RequireF32(args.out, "out"));
  if (args.num_seqs == 0) return absl::OkStatus();
  const Caches caches{args.k_cache,  args.v_cache,     args.scores,     args.num_heads,
                      args.num_seqs, args.block_table, args.max_blocks, "block_table"};
  RETURN_IF_ERROR(CheckArrays(caches));
  RETURN_IF_ERROR(CheckDescales(args.scales, args.k_cache.num_heads, args.num_seqs));
  for (int64_t s = 0; s < args.num_seqs; ++s) RETURN_IF_ERROR(CheckKvCacheRows(args, caches, s));
  RETURN_IF_ERROR(CheckRotaryRows(args));
  return CheckNewSlots(args);
}

absl::Status CheckContents(const MergeAttentionStatesArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.out_a, "out_a"));
  RETURN_IF_ERROR(RequireF32(args.out_b, "out_b"));
  return RequireF32(args.out, "out");
}

absl::Status CheckContents(const CascadeLensArgs& args) {
  const VarlenAttentionArgs& a = args.attention;
  RETURN_IF_ERROR(RequireF32(a.q, "q"));
  RETURN_IF_ERROR(RequireF32(a.out, "out"));
  if (a.num_seqs == 0) return absl::OkStatus();
  const Caches caches{a.k_cache,     a.v_cache,    a.scores,      a.num_heads,   a.num_seqs,
                      a.block_table, a.max_blocks, "block_table", a.table_starts};
  RETURN_IF_ERROR(CheckArrays(caches));
  RETURN_IF_ERROR(CheckCumulative(a.cu_seqlens_q, a.num_seqs, "cu_seqlens_q"));
  RETURN_IF_ERROR(CheckStarts(a.table_starts, a.num_seqs));
  for (int64_t s = 0; s < a.num_seqs; ++s) RETURN_IF_ERROR(CheckCascadeSequence(args, caches, s));
  for (int64_t i = 0; i < args.common_prefix_len / a.k_cache.block_size; ++i) {
    RETURN_IF_ERROR(CheckBlock(caches, 0, i));
  }
  return CheckToldTokens(a.num_tokens, a.cu_seqlens_q[a.num_seqs]);
}

}  // namespace baton
