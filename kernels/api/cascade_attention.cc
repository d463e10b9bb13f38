#include "kernels/api/cascade_attention.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr int64_t kMaxHeads = 1 << 16;
constexpr int64_t kMaxBlockSize = 1 << 20;
constexpr int64_t kMaxStride = int64_t{1} << 42;

bool SeesWholePrefix(const ScoreOptions& scores) {
  return scores.alibi_slopes == nullptr && scores.window_left < 0 && scores.window_right < 0 &&
         scores.local_chunk == 0;
}

absl::Status Require(bool ok, absl::string_view field, int64_t value,
                     const absl::AlphaNum& allowed) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ": must be ", allowed));
}

absl::Status RequireIn(int64_t value, int64_t least, int64_t greatest, absl::string_view field) {
  return Require(value >= least && value <= greatest, field, value,
                 absl::StrCat("in [", least, ", ", greatest, "]"));
}

absl::Status RequirePointer(const void* p, absl::string_view field) {
  if (p != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " = null: must point to data"));
}

absl::Status RequireNull(const void* p, absl::string_view field) {
  if (p == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is given: must be null; use VarlenAttention"));
}

// Of what decides how much memory the call takes, and what the prefix needs.
absl::Status CheckShape(const CascadeAttentionArgs& args) {
  const VarlenAttentionArgs& a = args.attention;
  RETURN_IF_ERROR(RequireNull(a.dense.k.data, "dense.k"));
  RETURN_IF_ERROR(RequireNull(a.dense.cu_seqlens_k, "dense.cu_seqlens_k"));
  RETURN_IF_ERROR(RequireNull(a.scores.alibi_slopes, "scores.alibi_slopes"));
  if (a.scales.any()) {
    return absl::InvalidArgumentError("scales are given: must be none; use VarlenAttention");
  }
  const ScoreOptions& scores = a.scores;
  RETURN_IF_ERROR(
      Require(scores.window_left == -1, "scores.window_left", scores.window_left, "-1"));
  RETURN_IF_ERROR(
      Require(scores.window_right == -1, "scores.window_right", scores.window_right, "-1"));
  RETURN_IF_ERROR(Require(scores.local_chunk == 0, "scores.local_chunk", scores.local_chunk, "0"));
  RETURN_IF_ERROR(RequirePointer(a.cu_seqlens_q, "cu_seqlens_q"));
  RETURN_IF_ERROR(RequirePointer(a.seq_lens, "seq_lens"));
  RETURN_IF_ERROR(RequirePointer(a.block_table, "block_table"));
  RETURN_IF_ERROR(RequireIn(a.max_seqlen_q, 0, INT32_MAX, "max_seqlen_q"));
  RETURN_IF_ERROR(RequireIn(a.max_seqlen_k, 0, INT32_MAX, "max_seqlen_k"));
  RETURN_IF_ERROR(RequireIn(a.max_blocks, 0, INT32_MAX, "max_blocks"));
  RETURN_IF_ERROR(RequireIn(a.num_heads, 1, kMaxHeads, "num_heads"));
  RETURN_IF_ERROR(RequireIn(a.v_cache.dim, 1, kMaxAttentionDim, "v_cache.dim"));
  RETURN_IF_ERROR(RequireIn(a.k_cache.num_blocks, 1, INT32_MAX, "k_cache.num_blocks"));
  const int64_t size = a.k_cache.block_size;
  RETURN_IF_ERROR(RequireIn(size, 1, kMaxBlockSize, "k_cache.block_size"));
  return Require(args.common_prefix_len >= 1 && args.common_prefix_len % size == 0,
                 "common_prefix_len", args.common_prefix_len,
                 absl::StrCat("a multiple of k_cache.block_size = ", size, " above 0"));
}

// Entries [begin, end) of a row of the block table are blocks.
absl::Status CheckBlocks(const VarlenAttentionArgs& a, int64_t s, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t block = a.block_table[s * a.max_blocks + i];
    if (block >= 0 && block < a.k_cache.num_blocks) continue;
    return Require(false, absl::StrCat("block_table[", s, "][", i, "]"), block,
                   absl::StrCat("in [0, ", a.k_cache.num_blocks, ")"));
  }
  return absl::OkStatus();
}

// Queries and keys of sequence s; of the two calls only the suffix would see them, shortened.
absl::Status CheckSequence(const CascadeAttentionArgs& args, int64_t s) {
  const VarlenAttentionArgs& a = args.attention;
  const int64_t size = a.k_cache.block_size;
  const int64_t queries = int64_t{a.cu_seqlens_q[s + 1]} - a.cu_seqlens_q[s];
  const int64_t keys = a.seq_lens[s];
  const std::string field = absl::StrCat("seq_lens[", s, "]");
  RETURN_IF_ERROR(Require(queries >= 0, absl::StrCat("cu_seqlens_q[", s + 1, "]"),
                          a.cu_seqlens_q[s + 1], "not less than the entry before"));
  RETURN_IF_ERROR(Require(keys >= 0, field, keys, "at least 0"));
  RETURN_IF_ERROR(Require(a.max_seqlen_q == 0 || queries <= a.max_seqlen_q, "max_seqlen_q",
                          a.max_seqlen_q,
                          absl::StrCat("at least query length [", s, "] = ", queries)));
  RETURN_IF_ERROR(Require(a.max_seqlen_k == 0 || keys <= a.max_seqlen_k, "max_seqlen_k",
                          a.max_seqlen_k, absl::StrCat("at least ", field, " = ", keys)));
  RETURN_IF_ERROR(Require(keys <= a.max_blocks * size, field, keys,
                          absl::StrCat("at most max_blocks * block_size = ", a.max_blocks * size)));
  if (queries == 0) return absl::OkStatus();
  const int64_t least = args.common_prefix_len + queries;
  RETURN_IF_ERROR(Require(keys >= least, field, keys,
                          absl::StrCat("at least common_prefix_len + query length = ", least)));
  return CheckBlocks(a, s, args.common_prefix_len / size, (keys + size - 1) / size);
}

// What VarlenAttention does not check of its two calls, or not by the caller's names, or too late:
// the calls need memory.
absl::Status CheckArgs(const CascadeAttentionArgs& args) {
  const VarlenAttentionArgs& a = args.attention;
  RETURN_IF_ERROR(CheckShape(args));
  RETURN_IF_ERROR(Require(a.cu_seqlens_q[0] == 0, "cu_seqlens_q[0]", a.cu_seqlens_q[0], "0"));
  for (int64_t s = 0; s < a.num_seqs; ++s) RETURN_IF_ERROR(CheckSequence(args, s));
  const int64_t num_tokens = a.cu_seqlens_q[a.num_seqs];
  if (num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckBlocks(a, 0, 0, args.common_prefix_len / a.k_cache.block_size));
  RETURN_IF_ERROR(RequirePointer(a.out.data, "out"));
  RETURN_IF_ERROR(Require(a.out.dtype == DType::kF32, "out.dtype",
                          static_cast<int>(a.out.dtype), "0, f32"));
  const int64_t width = int64_t{a.num_heads} * a.v_cache.dim;
  RETURN_IF_ERROR(RequireIn(a.out_stride, width, kMaxStride, "out_stride"));
  if (a.lse == nullptr) return absl::OkStatus();
  return RequireIn(a.lse_stride, num_tokens, kMaxStride, "lse_stride");
}

// The result of one of the two calls.
struct State {
  explicit State(const VarlenAttentionArgs& a)
      : num_tokens(a.cu_seqlens_q[a.num_seqs]),
        out(num_tokens * a.num_heads * a.v_cache.dim),
        lse(num_tokens * a.num_heads) {}

  VarlenAttentionArgs CallOf(const VarlenAttentionArgs& a) {
    VarlenAttentionArgs call = a;
    call.max_seqlen_q = call.max_seqlen_k = 0;
    call.round_to = DType::kF32;
    call.out = out.data();
    call.out_stride = int64_t{a.num_heads} * a.v_cache.dim;
    call.lse = lse.data();
    call.lse_stride = num_tokens;
    return call;
  }

  int64_t num_tokens;
  std::vector<float> out;  // [num_tokens, num_heads, v_cache.dim]
  std::vector<float> lse;  // [num_heads, num_tokens]
};

}  // namespace

bool CascadeAttentionPays(const CascadeAttentionArgs& args) {
  return args.common_prefix_len >= 256 && args.attention.num_seqs >= 8 &&
         SeesWholePrefix(args.attention.scores);
}

absl::Status CascadeAttention(ModelOps& ops, OperatorLibrary& library,
                              const CascadeAttentionArgs& args) {
  const VarlenAttentionArgs& a = args.attention;
  RETURN_IF_ERROR(RequireIn(a.num_seqs, 0, INT32_MAX, "num_seqs"));
  if (a.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckArgs(args));
  const int32_t num_tokens = a.cu_seqlens_q[a.num_seqs];
  if (num_tokens == 0) return absl::OkStatus();
  State prefix(a), suffix(a);

  // One sequence of all queries over the prefix, which each of them sees whole.
  const int32_t all_queries[] = {0, num_tokens};
  VarlenAttentionArgs call = prefix.CallOf(a);
  call.num_seqs = 1;
  call.cu_seqlens_q = all_queries;
  call.seq_lens = &args.common_prefix_len;
  call.scores.causal = false;
  call.scores.sinks = nullptr;  // They count once, in the suffix.
  RETURN_IF_ERROR(ops.VarlenAttention(call));

  std::vector<int32_t> suffix_lens(a.num_seqs);
  for (int64_t s = 0; s < a.num_seqs; ++s) {
    suffix_lens[s] = std::max(0, a.seq_lens[s] - args.common_prefix_len);
  }
  call = suffix.CallOf(a);
  call.seq_lens = suffix_lens.data();
  call.block_table += args.common_prefix_len / a.k_cache.block_size;
  RETURN_IF_ERROR(ops.VarlenAttention(call));

  RETURN_IF_ERROR(library.MergeAttentionStates({.out_a = prefix.out.data(),
                                                .lse_a = prefix.lse.data(),
                                                .out_b = suffix.out.data(),
                                                .lse_b = suffix.lse.data(),
                                                .num_tokens = num_tokens,
                                                .num_heads = a.num_heads,
                                                .dim = a.v_cache.dim,
                                                .round_to = a.round_to,
                                                .out = prefix.out.data(),
                                                .lse = prefix.lse.data()}));
  const int64_t width = int64_t{a.num_heads} * a.v_cache.dim;
  float* out = a.out.f32();
  for (int64_t t = 0; t < num_tokens; ++t) {
    std::memcpy(out + t * a.out_stride, prefix.out.data() + t * width, width * sizeof(float));
  }
  for (int64_t h = 0; a.lse != nullptr && h < a.num_heads; ++h) {
    std::memcpy(a.lse + h * a.lse_stride, prefix.lse.data() + h * num_tokens,
                num_tokens * sizeof(float));
  }
  return absl::OkStatus();
}

}  // namespace baton
