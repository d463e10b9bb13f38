#pragma once

// Which keys a query sees. Internal linkage: also included by files compiled per kernel set.

#include <cstdint>

#include "kernels/api/attention_args.h"

namespace baton {
namespace {

struct KeySpan {
  int64_t begin = 0;
  int64_t end = 0;  // <= begin: none.
};

// Of the query at `position` in a sequence of `num_keys`. Neither end ever falls as position grows.
inline KeySpan VisibleKeys(const ScoreOptions& scores, int64_t position, int64_t num_keys) {
  KeySpan span{0, num_keys};
  if (scores.window_left >= 0 && position - scores.window_left > 0) {
    span.begin = position - scores.window_left;
  }
  if (scores.local_chunk > 0 && position >= 0) {
    const int64_t chunk = position / scores.local_chunk * scores.local_chunk;
    if (chunk > span.begin) span.begin = chunk;
  }
  int64_t right = scores.window_right;
  if (scores.causal) right = 0;
  if (right >= 0 && position + right + 1 < num_keys) span.end = position + right + 1;
  return span;
}

// The entries of the block table that sequence s has.
inline const int32_t* TableOf(const VarlenAttentionArgs& args, int64_t s) {
  return args.block_table +
         (args.table_starts == nullptr ? s * args.max_blocks : args.table_starts[s]);
}

// Which blocks of keys a head of a block-sparse decode row sees.
struct SparseBlocks {
  int64_t block_size = 0;  // 0: all.
  int64_t vert_stride = 1;
  int64_t first_local = 0;  // The first block of those that are near the query.
  int64_t offset = 0;

  bool Sees(int64_t key) const {
    if (block_size == 0) return true;
    const int64_t block = key / block_size;
    return (block + offset) % vert_stride == 0 || block >= first_local;
  }
};

struct HeadCounts {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;

  int64_t group() const { return num_heads / num_kv_heads; }
};

inline SparseBlocks SparseBlocksOf(const BlockSparsity& sparsity, const HeadCounts& counts,
                                   int64_t head, int64_t num_keys) {
  if (sparsity.vert_stride <= 1) return {};
  const int64_t rank = sparsity.tp_rank;
  const int64_t step = sparsity.head_sliding_step;
  const int64_t kv_head = head / counts.group();
  return {.block_size = sparsity.block_size,
          .vert_stride = sparsity.vert_stride,
          .first_local = (num_keys - 1) / sparsity.block_size - sparsity.local_blocks + 1,
          .offset = step >= 0 ? (rank * counts.num_heads + head) * step + 1
                              : (rank * counts.num_kv_heads + kv_head) * -step + 1};
}

}  // namespace
}  // namespace baton
