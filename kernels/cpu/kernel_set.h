#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/api/attention_args.h"
#include "kernels/api/cache_args.h"
#include "kernels/api/model_args.h"

namespace baton {

// Part of a matrix product: rows [0, m) of `a` with panels [0, num_panels) of 16 columns.
struct GemmBlock {
  const float* a = nullptr;  // [m, k]
  int64_t a_stride = 0;
  int64_t m = 0;
  int64_t k = 0;
  const std::byte* panels = nullptr;  // [num_panels][k][16]
  DType dtype = DType::kF32;          // Of `panels`.
  int64_t panel_stride = 0;           // Elements from panel to panel; >= k * 16.
  int64_t num_panels = 0;
  const float* bias = nullptr;  // [n], or null.
  float* out = nullptr;         // [m, n]
  int64_t out_stride = 0;
  int64_t n = 0;            // Columns to write: in (16 * (num_panels - 1), 16 * num_panels].
  bool accumulate = false;  // Continue the sums that `out` holds.
};

// Queries [q_begin, q_end) of one sequence for all query heads of one KV head. Indexes into the
// flattened tokens.
struct AttentionTask {
  int64_t sequence = 0;
  int64_t kv_head = 0;
  int64_t q_begin = 0;
  int64_t q_end = 0;
};

// How many floats of scratch RunAttention needs for `num_queries` tokens.
struct AttentionShape {
  int64_t num_queries = 0;
  int64_t group = 0;  // Query heads per KV head.
  int64_t k_dim = 0;
  int64_t v_dim = 0;
};

// One build of the kernels: single-threaded, on checked arguments. Token ranges are [begin, end).
struct KernelSet {
  const char* name;
  void (*gemm)(const GemmBlock& block);
  void (*rms_norm)(const RmsNormArgs& args, int64_t begin, int64_t end);
  void (*rope)(const RopeArgs& args, int64_t begin, int64_t end);
  void (*activation_and_mul)(const ActivationAndMulArgs& args, int64_t begin, int64_t end);
  void (*reshape_and_cache)(const ReshapeAndCacheArgs& args, int64_t begin, int64_t end);
  int64_t (*attention_scratch)(const AttentionShape& shape);
  void (*attention)(const VarlenAttentionArgs& args, const AttentionTask& task, float* scratch);
};

}  // namespace baton
