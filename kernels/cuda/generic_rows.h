#pragma once

// What a row of generic attention is: its sequence, which keys it sees, and where they lie.

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/generic_problem.h"

namespace baton::cuda::generic_attention {

using attention::KeyRange;

// Which blocks of keys a head of a block-sparse decode row sees.
struct SparseBlocks {
  uint32_t block_size;  // 0: all.
  uint32_t vert_stride;
  uint32_t offset;  // Below vert_stride.
  int32_t first_local;

  BATON_DEVICE bool Sees(int32_t key) const {
    if (block_size == 0) return true;
    const uint32_t block = static_cast<uint32_t>(key) / block_size;
    return (block + offset) % vert_stride == 0 || static_cast<int32_t>(block) >= first_local;
  }
};

BATON_DEVICE SparseBlocks SparseBlocksOf(const Problem& args, int head, int kv_head,
                                         int32_t num_keys) {
  const BlockSparsity& sparsity = args.sparsity;
  if (sparsity.vert_stride <= 1) return {0, 1, 0, 0};
  const auto vert_stride = static_cast<uint32_t>(sparsity.vert_stride);
  const uint32_t slides = args.slides_by_kv_head ? kv_head : head;
  const uint32_t offset = (slides * args.slide_step % vert_stride + args.slide_begin) % vert_stride;
  const int32_t last = (num_keys - 1) / sparsity.block_size;
  return {static_cast<uint32_t>(sparsity.block_size), vert_stride, offset,
          last - sparsity.local_blocks + 1};
}

// What a block works on.
struct Row {
  int32_t s;
  int32_t token;
  int32_t query;  // Of its sequence.
  int32_t head;
  int32_t kv_head;
  int32_t num_keys;
  int32_t num_cached;  // Of them; the others are dense.
  int32_t first_row;   // Of the keys in the cache.
  int32_t position;
  KeyRange keys;
  SparseBlocks sparse;
};

struct Queries {
  int32_t s;
  int32_t first;
  int32_t count;
};

// Those of the token's sequence.
BATON_DEVICE Queries QueriesOf(const Problem& args, int32_t token) {
  const int32_t* starts = args.base.cu_seqlens_q;
  if (starts == nullptr) {
    const auto count = static_cast<int32_t>(args.num_queries);
    return {token / count, token / count * count, count};
  }
  int32_t low = 0, high = static_cast<int32_t>(args.base.num_seqs) - 1;
  while (low < high) {  // To the first that ends behind it.
    const int32_t middle = low + (high - low) / 2;
    if (starts[middle + 1] > token) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return {low, starts[low], starts[low + 1] - starts[low]};
}

// Sets what says which keys the row's sequence has, and where.
BATON_DEVICE void SetKeys(const Problem& args, Row& row) {
  const VarlenAttentionArgs& base = args.base;
  int64_t num_dense = 0;
  if (base.dense.cu_seqlens_k != nullptr) {
    num_dense = base.dense.cu_seqlens_k[row.s + 1] - base.dense.cu_seqlens_k[row.s];
  }
  row.first_row = args.leftpad == nullptr ? 0 : args.leftpad[row.s];
  int64_t keys = num_dense;
  // A cache without a table is one block of each sequence where rows are counted, else empty.
  const bool has_table = base.block_table != nullptr;
  if (args.counts_rows) {
    const int64_t capacity = (has_table ? base.max_blocks : 1) * args.k.plane.block_size;
    const int64_t rows = CacheSeqlenOf(base.seq_lens, args.cache_seqlen, row.s) + args.num_new;
    keys = min(rows, capacity) - row.first_row;
  } else if (base.seq_lens != nullptr && (has_table || args.k.plane.data == nullptr)) {
    keys = base.seq_lens[row.s];
  }
  row.num_keys = static_cast<int32_t>(keys);
  row.num_cached = args.k.plane.data == nullptr ? 0 : static_cast<int32_t>(keys - num_dense);
}

// Row `index` of [tokens, heads].
BATON_DEVICE Row RowAt(const Problem& args, uint32_t index) {
  Row row;
  row.token = static_cast<int32_t>(index / args.base.num_heads);
  row.head = static_cast<int32_t>(index % args.base.num_heads);
  row.kv_head = row.head / (args.base.num_heads / args.num_kv_heads);
  const Queries queries = QueriesOf(args, row.token);
  row.s = queries.s;
  row.query = row.token - queries.first;
  SetKeys(args, row);
  row.position = row.num_keys - queries.count + row.query;
  row.keys = attention::VisibleKeys(args.base.scores, row.position, row.num_keys);
  if (args.skip_decodes && queries.count == 1) row.token = -1;
  row.sparse = SparseBlocksOf(args, row.head, row.kv_head, row.num_keys);
  return row;
}

BATON_DEVICE float DescaleOf(const Problem& args, const float* descales, const Row& row) {
  if (descales == nullptr) return 1.0f;
  return descales[row.s * args.base.scales.stride + row.kv_head];
}

BATON_DEVICE float SlopeOf(const ScoreOptions& scores, const Row& row) {
  if (scores.alibi_slopes == nullptr) return 0.0f;
  return scores.alibi_slopes[row.s * scores.alibi_stride + row.head];
}

// Where a plane has a key that is cached.
BATON_DEVICE int64_t CachedAt(const Problem& args, const StridedPlane& to, const Row& row,
                              int32_t key) {
  const VarlenAttentionArgs& base = args.base;
  const int32_t at = row.first_row + key, size = to.plane.block_size;
  int32_t block = row.s;
  if (base.block_table != nullptr) {
    const int64_t start =
        base.table_starts == nullptr ? row.s * base.max_blocks : base.table_starts[row.s];
    block = base.block_table[start + at / size];
  } else if (args.batch_blocks != nullptr) {
    block = args.batch_blocks[row.s];
  }
  return RowOf(to.strides, block, row.kv_head, at % size);
}

// Where a dense key is, in rows of `dim`.
BATON_DEVICE int64_t DenseAt(const Problem& args, const Row& row, int32_t key, int64_t stride,
                             int32_t dim) {
  const int64_t at = args.base.dense.cu_seqlens_k[row.s] + (key - row.num_cached);
  return at * stride + int64_t{row.kv_head} * dim;
}

}  // namespace baton::cuda::generic_attention
