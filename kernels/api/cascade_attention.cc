#include "kernels/api/cascade_attention.h"

#include "common/base/status.h"
#include "kernels/api/check_shapes.h"
#include "kernels/api/require.h"

namespace baton {
namespace {

constexpr int64_t kAlignment = 16;

bool SeesWholePrefix(const ScoreOptions& scores) {
  return scores.alibi_slopes == nullptr && scores.window_left < 0 && scores.window_right < 0 &&
         scores.local_chunk == 0;
}

// The result of one of the two calls.
struct State {
  float* out = nullptr;  // [num_tokens, num_heads, v_cache.dim]
  float* lse = nullptr;  // [num_heads, num_tokens]

  VarlenAttentionArgs CallOf(const VarlenAttentionArgs& a) const {
    VarlenAttentionArgs call = a;
    call.round_to = DType::kF32;
    call.out = out;
    call.out_stride = int64_t{a.num_heads} * a.v_cache.dim;
    call.lse = lse;
    call.lse_stride = a.num_tokens;
    return call;
  }
};

struct Workspace {
  State prefix, suffix;
  int32_t* prefix_queries = nullptr;
  int32_t* prefix_len = nullptr;
  int32_t* suffix_lens = nullptr;
};

// Returns its size.
int64_t LayOut(const VarlenAttentionArgs& a, std::byte* base, Workspace* w) {
  int64_t used = 0;
  const auto take = [&]<typename T>(T** field, int64_t count) {
    *field = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += (count * int64_t{sizeof(T)} + kAlignment - 1) / kAlignment * kAlignment;
  };
  for (State* state : {&w->prefix, &w->suffix}) {
    take(&state->out, a.num_tokens * a.num_heads * a.v_cache.dim);
    take(&state->lse, a.num_tokens * a.num_heads);
  }
  take(&w->prefix_queries, 2);
  take(&w->prefix_len, 1);
  take(&w->suffix_lens, a.num_seqs);
  return used;
}

absl::Status CheckWorkspace(const CascadeAttentionArgs& args) {
  RETURN_IF_ERROR(RequirePointer(args.workspace, "workspace"));
  const auto behind =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(args.workspace) % kAlignment);
  RETURN_IF_ERROR(
      Require(behind == 0, "workspace", behind, "0 bytes behind a multiple of ", kAlignment));
  return RequireAtLeast(args.workspace_bytes, CascadeWorkspaceBytes(args), "workspace_bytes");
}

}  // namespace

bool CascadeAttentionPays(const CascadeAttentionArgs& args) {
  return args.common_prefix_len >= 256 && args.attention.num_seqs >= 8 &&
         SeesWholePrefix(args.attention.scores);
}

int64_t CascadeWorkspaceBytes(const CascadeAttentionArgs& args) {
  Workspace w;
  return LayOut(args.attention, nullptr, &w);
}

absl::Status CascadeAttention(ModelOps& ops, OperatorLibrary& library,
                              const CascadeAttentionArgs& args) {
  const VarlenAttentionArgs& a = args.attention;
  RETURN_IF_ERROR(CheckCascade(a, args.common_prefix_len));
  if (a.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckWorkspace(args));
  Workspace w;
  LayOut(a, args.workspace, &w);
  RETURN_IF_ERROR(library.CascadeLens({.attention = a,
                                       .common_prefix_len = args.common_prefix_len,
                                       .prefix_queries = w.prefix_queries,
                                       .prefix_len = w.prefix_len,
                                       .suffix_lens = w.suffix_lens}));

  // One sequence of all queries over the prefix, which each of them sees whole.
  VarlenAttentionArgs call = w.prefix.CallOf(a);
  call.num_seqs = 1;
  call.cu_seqlens_q = w.prefix_queries;
  call.max_seqlen_q = static_cast<int32_t>(a.num_tokens);
  call.seq_lens = w.prefix_len;
  call.max_seqlen_k = args.common_prefix_len;
  call.scores.causal = false;
  call.scores.sinks = nullptr;  // They count once, in the suffix.
  RETURN_IF_ERROR(ops.VarlenAttention(call));

  call = w.suffix.CallOf(a);
  call.seq_lens = w.suffix_lens;
  if (a.max_seqlen_k > 0) call.max_seqlen_k = a.max_seqlen_k - args.common_prefix_len;
  call.block_table += args.common_prefix_len / a.k_cache.block_size;
  RETURN_IF_ERROR(ops.VarlenAttention(call));

  return library.MergeAttentionStates({.out_a = w.prefix.out,
                                       .lse_a = w.prefix.lse,
                                       .out_b = w.suffix.out,
                                       .lse_b = w.suffix.lse,
                                       .num_tokens = a.num_tokens,
                                       .num_heads = a.num_heads,
                                       .dim = a.v_cache.dim,
                                       .round_to = a.round_to,
                                       .out = a.out,
                                       .out_stride = a.out_stride,
                                       .lse = a.lse,
                                       .lse_stride = a.lse_stride});
}

}  // namespace baton
