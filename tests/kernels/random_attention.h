#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/random.h"
#include "tests/kernels/attention_problem.h"

namespace baton {

// What an engine might ask of attention over a paged cache: each sequence one query, or some.
inline AttentionShapes RandomAttention(Random& random, bool decode) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random.Below(n)); };
  const auto chance = [&](int percent) { return below(100) < percent; };
  AttentionShapes s;
  s.kv_heads = static_cast<int32_t>(1 + below(3));
  s.heads = s.kv_heads * static_cast<int32_t>(1 + below(14));
  s.dim = static_cast<int32_t>(chance(80) ? 8 * (1 + below(16)) : 1 + below(256));
  s.v_dim = chance(80) ? s.dim : static_cast<int32_t>(1 + below(256));
  s.block_size = static_cast<int32_t>(1 + below(chance(50) ? 16 : 256));
  s.kv = static_cast<DType>(below(5));
  s.compute = static_cast<DType>(below(3));
  s.kv_scale = chance(50) ? 0.25f : 0;
  s.scale_per_head = chance(50);
  s.alibi = chance(20);
  s.scores.causal = chance(70);
  if (chance(40)) s.scores.window_left = static_cast<int32_t>(below(600));
  if (chance(20)) s.scores.window_right = static_cast<int32_t>(below(40));
  if (chance(20)) s.scores.softcap = 20;
  for (int64_t n = 1 + below(4); n > 0; --n) {
    const auto keys = static_cast<int32_t>(below(chance(20) ? 1200 : 90));
    s.sequences.push_back({decode ? 1 : static_cast<int32_t>(below(30)), keys});
  }
  return s;
}

enum class AttentionForm { kVarlen, kPaged, kDense, kPrefix };

// What only some forms and layouts have.
inline void AddOptions(Random& random, AttentionForm form, AttentionShapes& s) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random.Below(n)); };
  const auto chance = [&](int percent) { return below(100) < percent; };
  s.layout = static_cast<CacheLayout>(below(3));
  if (s.layout == CacheLayout::kPacked) {
    s.dim = (s.dim + 15) / 16 * 16;
    s.v_dim = (s.v_dim + 15) / 16 * 16;
  } else if (chance(30)) {
    s.row_gap = static_cast<int32_t>(1 + below(9));
  }
  s.sinks = chance(20);
  s.alibi_per_sequence = s.alibi && chance(50);
  if (form == AttentionForm::kPrefix) {
    s.context_only = s.scores.causal = true;
    for (auto& [queries, keys] : s.sequences) queries = std::min(queries, keys);
  }
  if (s.scores.causal && chance(20)) s.scores.local_chunk = static_cast<int32_t>(1 + below(300));
  if (form == AttentionForm::kPaged && chance(30)) {
    s.sparsity = {.vert_stride = static_cast<int32_t>(2 + below(5)),
                  .local_blocks = static_cast<int32_t>(below(4)),
                  .block_size = s.block_size * static_cast<int32_t>(1 + below(4)),
                  .head_sliding_step = static_cast<int32_t>(below(7) - 3),
                  .tp_rank = static_cast<int32_t>(below(4))};
  }
}

inline absl::Status RunForm(CpuKernels& kernels, AttentionForm form, AttentionSplit split,
                            AttentionProblem& p, float* out, float* lse) {
  switch (form) {
    case AttentionForm::kVarlen:
      return kernels.VarlenAttention(p.Args(out, lse));
    case AttentionForm::kPaged:
      return kernels.PagedAttention(p.PagedArgs(out, split, lse));
    case AttentionForm::kDense:
      return kernels.VarlenAttention(p.DenseArgs(out, lse));
    case AttentionForm::kPrefix:
      return kernels.PrefixAttention(p.PrefixArgs(out, lse));
  }
  return absl::InternalError("no such form");
}

// With as few keys, queries and heads of a group as an emulated GPU has time for.
inline AttentionShapes Fewer(AttentionShapes s, int32_t queries, int32_t keys) {
  s.heads = s.kv_heads * std::min(s.heads / s.kv_heads, 3);
  for (auto& [q, k] : s.sequences) {
    q = std::min(q, queries);
    k = std::min(k, keys);
    if (s.context_only) q = std::min(q, k);
  }
  return s;
}

}  // namespace baton
