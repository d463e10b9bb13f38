#include <cmath>
#include <string>

#include "common/base/status.h"
#include "kernels/cpu/check_args.h"
#include "kernels/cpu/require.h"
#include "kernels/cpu/visible_keys.h"

namespace baton {
namespace {

constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kMaxHeads = 1 << 16;

// What prefill and decode share, by the names of one of them.
struct Caches {
  const CachePlane& k;
  const CachePlane& v;
  const ScoreOptions& scores;
  int32_t num_heads;
  const int32_t* block_table;
  int64_t max_blocks;
  const char* block_table_name;
};

absl::Status RequireFloat(bool ok, absl::string_view field, float value,
                          absl::string_view allowed) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ": must be ", allowed));
}

absl::Status CheckScores(const ScoreOptions& scores, int64_t num_heads) {
  RETURN_IF_ERROR(RequireFloat(std::isfinite(scores.scale) && scores.scale >= 0, "scores.scale",
                               scores.scale, "finite and at least 0"));
  RETURN_IF_ERROR(RequireFloat(std::isfinite(scores.softcap) && scores.softcap >= 0,
                               "scores.softcap", scores.softcap, "finite and at least 0"));
  RETURN_IF_ERROR(RequireAtLeast(scores.window_left, -1, "scores.window_left"));
  RETURN_IF_ERROR(RequireAtLeast(scores.window_right, -1, "scores.window_right"));
  return Require(scores.alibi_stride == 0 || scores.alibi_stride >= num_heads,
                 "scores.alibi_stride", scores.alibi_stride,
                 absl::StrCat("0 or at least num_heads = ", num_heads));
}

absl::Status CheckCaches(const Caches& c) {
  RETURN_IF_ERROR(CheckPlanes(c.k, c.v));
  for (const auto& [plane, field] : {std::pair{&c.k, "k_cache.dim"}, {&c.v, "v_cache.dim"}}) {
    RETURN_IF_ERROR(Require(plane->dim <= kMaxHeadDim, field, plane->dim,
                            absl::StrCat("at most ", kMaxHeadDim)));
  }
  RETURN_IF_ERROR(Require(c.num_heads >= 1 && c.num_heads <= kMaxHeads, "num_heads", c.num_heads,
                          absl::StrCat("in [1, ", kMaxHeads, "]")));
  RETURN_IF_ERROR(Require(c.num_heads % c.k.num_heads == 0, "num_heads", c.num_heads,
                          absl::StrCat("a multiple of k_cache.num_heads = ", c.k.num_heads)));
  RETURN_IF_ERROR(Require(c.max_blocks >= 0 && c.max_blocks <= INT32_MAX, "max_blocks",
                          c.max_blocks, absl::StrCat("in [0, ", INT32_MAX, "]")));
  return CheckScores(c.scores, c.num_heads);
}

// The keys of sequence s fit in its table, and the entries that its queries look at are blocks.
absl::Status CheckKeys(const Caches& c, int64_t s, int64_t queries, int64_t keys) {
  const int64_t size = c.k.block_size;
  if (keys < 0) return RequireAtLeast(keys, 0, absl::StrCat("seq_lens[", s, "]"));
  if (keys > c.max_blocks * size) {
    return Require(false, absl::StrCat("seq_lens[", s, "]"), keys,
                   absl::StrCat("at most max_blocks * block_size = ", c.max_blocks * size));
  }
  if (queries == 0) return absl::OkStatus();
  const int64_t begin = VisibleKeys(c.scores, keys - queries, keys).begin;
  const int64_t end = VisibleKeys(c.scores, keys - 1, keys).end;
  if (begin >= end) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(c.block_table, c.block_table_name));
  for (int64_t i = begin / size; i * size < end; ++i) {
    const int64_t block = c.block_table[s * c.max_blocks + i];
    if (block >= 0 && block < c.k.num_blocks) continue;
    return Require(false, absl::StrCat(c.block_table_name, "[", s, "][", i, "]"), block,
                   absl::StrCat("in [0, ", c.k.num_blocks, ")"));
  }
  return absl::OkStatus();
}

template <typename Args>
absl::Status CheckRows(const Args& args, int64_t num_tokens) {
  RETURN_IF_ERROR(RequirePointer(args.q, "q"));
  RETURN_IF_ERROR(RequirePointer(args.out, "out"));
  const int64_t heads = args.num_heads;
  RETURN_IF_ERROR(RequireAtLeast(args.q_stride, heads * args.k_cache.dim, "q_stride"));
  RETURN_IF_ERROR(RequireAtLeast(args.out_stride, heads * args.v_cache.dim, "out_stride"));
  if (args.lse != nullptr)
    RETURN_IF_ERROR(RequireAtLeast(args.lse_stride, num_tokens, "lse_stride"));
  return Require(!IsFp8(args.round_to), "round_to", static_cast<int>(args.round_to),
                 "f32, f16 or bf16");
}

}  // namespace

absl::Status CheckArgs(const VarlenAttentionArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_seqs, 0, "num_seqs"));
  if (args.num_seqs == 0) return absl::OkStatus();
  const Caches caches{args.k_cache,     args.v_cache,    args.scores,  args.num_heads,
                      args.block_table, args.max_blocks, "block_table"};
  RETURN_IF_ERROR(CheckCaches(caches));
  RETURN_IF_ERROR(RequirePointer(args.cu_seqlens_q, "cu_seqlens_q"));
  RETURN_IF_ERROR(RequirePointer(args.seq_lens, "seq_lens"));
  const int32_t* cu = args.cu_seqlens_q;
  RETURN_IF_ERROR(Require(cu[0] == 0, "cu_seqlens_q[0]", cu[0], "0"));
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    const int64_t queries = int64_t{cu[s + 1]} - cu[s];
    if (queries < 0) {
      return Require(false, absl::StrCat("cu_seqlens_q[", s + 1, "]"), cu[s + 1],
                     "not less than the entry before");
    }
    RETURN_IF_ERROR(CheckKeys(caches, s, queries, args.seq_lens[s]));
  }
  const int64_t num_tokens = cu[args.num_seqs];
  return num_tokens == 0 ? absl::OkStatus() : CheckRows(args, num_tokens);
}

absl::Status CheckArgs(const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(Require(args.num_seqs >= 0 && args.num_seqs < INT32_MAX, "num_seqs",
                          args.num_seqs, absl::StrCat("in [0, ", INT32_MAX, ")")));
  if (args.num_seqs == 0) return absl::OkStatus();
  const Caches caches{args.k_cache,      args.v_cache,    args.scores,   args.num_heads,
                      args.block_tables, args.max_blocks, "block_tables"};
  RETURN_IF_ERROR(CheckCaches(caches));
  RETURN_IF_ERROR(RequirePointer(args.seq_lens, "seq_lens"));
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    if (args.seq_lens[s] > args.max_seq_len) {
      return Require(false, "max_seq_len", args.max_seq_len,
                     absl::StrCat("at least seq_lens[", s, "] = ", args.seq_lens[s]));
    }
    RETURN_IF_ERROR(CheckKeys(caches, s, 1, args.seq_lens[s]));
  }
  return CheckRows(args, args.num_seqs);
}

absl::Status CheckArgs(const MergeAttentionStatesArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(Require(args.num_heads >= 1 && args.num_heads <= kMaxHeads, "num_heads",
                          args.num_heads, absl::StrCat("in [1, ", kMaxHeads, "]")));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  RETURN_IF_ERROR(RequirePointer(args.out_a, "out_a"));
  RETURN_IF_ERROR(RequirePointer(args.lse_a, "lse_a"));
  RETURN_IF_ERROR(RequirePointer(args.out_b, "out_b"));
  RETURN_IF_ERROR(RequirePointer(args.lse_b, "lse_b"));
  return RequirePointer(args.out, "out");
}

}  // namespace baton
