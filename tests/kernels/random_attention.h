#pragma once

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

}  // namespace baton
