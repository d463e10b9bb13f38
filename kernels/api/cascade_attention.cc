#include "kernels/api/cascade_attention.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {
namespace {

bool SeesWholePrefix(const ScoreOptions& scores) {
  return scores.alibi_slopes == nullptr && scores.window_left < 0 && scores.window_right < 0 &&
         scores.local_chunk == 0;
}

absl::Status Refuse(absl::string_view field, int64_t value, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ": must be ", allowed));
}

// What VarlenAttention does not check of its two calls.
absl::Status CheckArgs(const CascadeAttentionArgs& args) {
  const VarlenAttentionArgs& a = args.attention;
  const int64_t size = a.k_cache.block_size;
  if (a.num_seqs < 0) return Refuse("num_seqs", a.num_seqs, "at least 0");
  if (a.dense.k != nullptr || a.cu_seqlens_q == nullptr || a.seq_lens == nullptr ||
      a.block_table == nullptr || size < 1) {
    return absl::InvalidArgumentError(
        "attention: must have cu_seqlens_q, seq_lens, block_table and caches, no dense keys");
  }
  if (!SeesWholePrefix(a.scores)) {
    return absl::InvalidArgumentError(
        "attention.scores: must be without ALiBi, window and local_chunk; use VarlenAttention");
  }
  if (a.max_blocks < 0 || a.max_blocks > INT32_MAX) {
    return Refuse("max_blocks", a.max_blocks, absl::StrCat("in [0, ", INT32_MAX, "]"));
  }
  if (args.common_prefix_len < 1 || args.common_prefix_len % size != 0) {
    return Refuse("common_prefix_len", args.common_prefix_len,
                  absl::StrCat("a multiple of k_cache.block_size = ", size, " above 0"));
  }
  for (int64_t s = 0; s < a.num_seqs; ++s) {
    const int64_t queries = int64_t{a.cu_seqlens_q[s + 1]} - a.cu_seqlens_q[s];
    if (queries < 0) return Refuse("cu_seqlens_q", a.cu_seqlens_q[s + 1], "ascending");
    const int64_t keys = a.seq_lens[s];
    if (queries > 0 && keys < args.common_prefix_len + queries) {
      return Refuse(absl::StrCat("seq_lens[", s, "]"), keys,
                    absl::StrCat("at least common_prefix_len + query length = ",
                                 args.common_prefix_len + queries));
    }
    if (keys > a.max_blocks * size) {
      return Refuse(absl::StrCat("seq_lens[", s, "]"), keys,
                    absl::StrCat("at most max_blocks * block_size = ", a.max_blocks * size));
    }
  }
  const int64_t width = int64_t{a.num_heads} * a.v_cache.dim;
  if (a.num_heads < 1) return Refuse("num_heads", a.num_heads, "at least 1");
  if (a.v_cache.dim < 1) return Refuse("v_cache.dim", a.v_cache.dim, "at least 1");
  if (a.out == nullptr) return absl::InvalidArgumentError("out = null: must point to data");
  if (a.out_stride < width) {
    return Refuse("out_stride", a.out_stride, absl::StrCat("at least ", width));
  }
  const int64_t num_tokens = a.cu_seqlens_q[a.num_seqs];
  if (a.lse == nullptr || a.lse_stride >= num_tokens) return absl::OkStatus();
  return Refuse("lse_stride", a.lse_stride, absl::StrCat("at least ", num_tokens));
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

absl::Status CascadeAttention(Kernels& kernels, const CascadeAttentionArgs& args) {
  const VarlenAttentionArgs& a = args.attention;
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
  RETURN_IF_ERROR(kernels.VarlenAttention(call));

  std::vector<int32_t> suffix_lens(a.num_seqs);
  for (int64_t s = 0; s < a.num_seqs; ++s) {
    suffix_lens[s] = std::max(0, a.seq_lens[s] - args.common_prefix_len);
  }
  call = suffix.CallOf(a);
  call.seq_lens = suffix_lens.data();
  call.block_table += args.common_prefix_len / a.k_cache.block_size;
  RETURN_IF_ERROR(kernels.VarlenAttention(call));

  RETURN_IF_ERROR(kernels.MergeAttentionStates({.out_a = prefix.out.data(),
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
  for (int64_t t = 0; t < num_tokens; ++t) {
    std::memcpy(a.out + t * a.out_stride, prefix.out.data() + t * width, width * sizeof(float));
  }
  for (int64_t h = 0; a.lse != nullptr && h < a.num_heads; ++h) {
    std::memcpy(a.lse + h * a.lse_stride, prefix.lse.data() + h * num_tokens,
                num_tokens * sizeof(float));
  }
  return absl::OkStatus();
}

}  // namespace baton
