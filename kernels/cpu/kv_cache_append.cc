#include "kernels/cpu/kv_cache_append.h"

namespace baton {
namespace {

// Rotates `num_rows` tokens of x, dense, the first of them at `position`.
struct Rotation {
  const KernelSet* set;
  const AttentionWithKvCacheArgs& args;

  void Apply(float* x, int64_t num_heads, int64_t num_rows, int64_t position) const {
    const int64_t at = position * (args.rotary_dim / 2);
    const int64_t dim = args.k_cache.dim;
    set->rope({.x = x,
               .x_stride = num_heads * dim,
               .num_tokens = num_rows,
               .num_heads = num_heads,
               .head_dim = dim,
               .rotary_dim = args.rotary_dim,
               .cos = args.rotary_cos + at,
               .sin = args.rotary_sin + at,
               .interleaved = args.rotary_interleaved},
              0, num_rows);
  }
};

bool Rotates(const AttentionWithKvCacheArgs& args) {
  return args.rotary_cos != nullptr && args.rotary_dim > 0;
}

}  // namespace

int32_t CacheSeqlen(const AttentionWithKvCacheArgs& args, int64_t s) {
  return args.cache_seqlens == nullptr ? args.cache_seqlen : args.cache_seqlens[s];
}

int64_t SlotOf(const AttentionWithKvCacheArgs& args, int64_t s, int64_t row) {
  const int64_t size = args.k_cache.block_size;
  if (args.block_table != nullptr) {
    return args.block_table[s * args.max_blocks + row / size] * size + row % size;
  }
  return (args.cache_batch_idx == nullptr ? s : args.cache_batch_idx[s]) * size + row;
}

void KvCacheAppend::Append(const AttentionWithKvCacheArgs& args) {
  const int64_t heads = args.k_cache.num_heads;
  const int64_t k_width = heads * args.k_cache.dim;
  const int64_t num_tokens = args.num_seqs * args.num_new;
  ConstFloats k = args.k;
  if (Rotates(args)) {
    k_.assign(k.f32(), k.f32() + num_tokens * k_width);
    for (int64_t s = 0; s < args.num_seqs; ++s) {
      Rotation{set_, args}.Apply(k_.data() + s * args.num_new * k_width, heads, args.num_new,
                                 CacheSeqlen(args, s));
    }
    k = k_.data();
  }
  slots_.clear();
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    for (int64_t i = 0; i < args.num_new; ++i) {
      slots_.push_back(SlotOf(args, s, CacheSeqlen(args, s) + i));
    }
  }
  set_->reshape_and_cache({.key = k,
                           .key_stride = k_width,
                           .value = args.v,
                           .value_stride = heads * args.v_cache.dim,
                           .slot_mapping = slots_.data(),
                           .num_tokens = num_tokens,
                           .k_cache = args.k_cache,
                           .v_cache = args.v_cache},
                          0, num_tokens);
}

ConstFloats KvCacheAppend::RotatedQueries(const AttentionWithKvCacheArgs& args) {
  if (!Rotates(args)) return args.q;
  const int64_t width = int64_t{args.num_heads} * args.k_cache.dim;
  const ScoreOptions& scores = args.scores;
  const bool advances = scores.causal || scores.window_left >= 0 || scores.window_right >= 0;
  q_.assign(args.q.f32(), args.q.f32() + args.num_seqs * args.num_queries * width);
  float* row = q_.data();
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    for (int64_t i = 0; i < args.num_queries; ++i, row += width) {
      Rotation{set_, args}.Apply(row, args.num_heads, 1,
                                 CacheSeqlen(args, s) + (advances ? i : 0));
    }
  }
  return q_.data();
}

GenericAttentionArgs KvCacheAppend::Run(const AttentionWithKvCacheArgs& args) {
  if (args.num_new > 0) Append(args);
  cu_seqlens_q_.assign(1, 0);
  seq_lens_.clear();
  batch_blocks_.clear();
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    cu_seqlens_q_.push_back(static_cast<int32_t>((s + 1) * args.num_queries));
    const int64_t leftpad = args.cache_leftpad == nullptr ? 0 : args.cache_leftpad[s];
    seq_lens_.push_back(static_cast<int32_t>(CacheSeqlen(args, s) + args.num_new - leftpad));
    if (args.block_table != nullptr) continue;
    batch_blocks_.push_back(args.cache_batch_idx == nullptr ? static_cast<int32_t>(s)
                                                            : args.cache_batch_idx[s]);
  }
  const bool paged = args.block_table != nullptr;
  return {.base = {.q = RotatedQueries(args),
                   .q_stride = int64_t{args.num_heads} * args.k_cache.dim,
                   .num_heads = args.num_heads,
                   .num_seqs = args.num_seqs,
                   .cu_seqlens_q = cu_seqlens_q_.data(),
                   .seq_lens = seq_lens_.data(),
                   .block_table = paged ? args.block_table : batch_blocks_.data(),
                   .max_blocks = paged ? args.max_blocks : 1,
                   .k_cache = args.k_cache,
                   .v_cache = args.v_cache,
                   .scores = args.scores,
                   .scales = args.scales,
                   .round_to = args.round_to,
                   .out = args.out,
                   .out_stride = int64_t{args.num_heads} * args.v_cache.dim,
                   .lse = args.lse,
                   .lse_stride = args.num_seqs * args.num_queries},
          .leftpad = args.cache_leftpad};
}

}  // namespace baton
