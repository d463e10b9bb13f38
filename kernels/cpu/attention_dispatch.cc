#include "kernels/cpu/attention_dispatch.h"

#include <numeric>

#include "kernels/api/attention_split.h"
#include "kernels/api/cache_strides.h"

namespace baton {

bool FastAttentionServes(const GenericAttentionArgs& args) {
  const VarlenAttentionArgs& base = args.base;
  const auto fits = [](const CachePlane& plane) {
    return plane.data != nullptr && plane.layout == CacheLayout::kHnd && IsDenseBlock(plane);
  };
  return fits(base.k_cache) && fits(base.v_cache) && base.dense.cu_seqlens_k == nullptr &&
         base.scores.sinks == nullptr && !base.scales.any() && args.sparsity.vert_stride <= 1 &&
         args.leftpad == nullptr && !args.skip_decodes && !args.partials.given();
}

AttentionDispatch::AttentionDispatch(const KernelSet* set, ThreadPool* pool)
    : fast_(set, pool), generic_(set, pool), append_(set) {}

void AttentionDispatch::Run(const GenericAttentionArgs& args, AttentionSplit split) {
  if (FastAttentionServes(args)) return fast_.Run(args.base, split);
  generic_.Run(args);
}

void AttentionDispatch::Run(const VarlenAttentionArgs& args) {
  Run(GenericAttentionArgs{.base = args}, AttentionSplit::kAuto);
}

void AttentionDispatch::Run(const PagedAttentionArgs& args) {
  const auto have = static_cast<int64_t>(cu_seqlens_q_.size());
  if (have < args.num_seqs + 1) {
    cu_seqlens_q_.resize(args.num_seqs + 1);
    std::iota(cu_seqlens_q_.begin() + have, cu_seqlens_q_.end(), static_cast<int32_t>(have));
  }
  AttentionSplit split = args.split;
  if (split == AttentionSplit::kReference) {
    split = ReferenceSplit(args.max_seq_len, args.num_seqs, args.num_heads);
  }
  // The sizes choose passes, not the kernel: who gives partials stays with the one that has them.
  const bool single = split == AttentionSplit::kSinglePass;
  const GenericAttentionArgs call{.base = {.q = args.q,
                                           .q_stride = args.q_stride,
                                           .num_heads = args.num_heads,
                                           .num_seqs = args.num_seqs,
                                           .cu_seqlens_q = cu_seqlens_q_.data(),
                                           .seq_lens = args.seq_lens,
                                           .block_table = args.block_tables,
                                           .max_blocks = args.max_blocks,
                                           .table_starts = args.table_starts,
                                           .k_cache = args.k_cache,
                                           .v_cache = args.v_cache,
                                           .scores = args.scores,
                                           .scales = args.scales,
                                           .round_to = args.round_to,
                                           .out = args.out,
                                           .out_stride = args.out_stride,
                                           .lse = args.lse,
                                           .lse_stride = args.lse_stride},
                                  .sparsity = args.sparsity,
                                  .partials = single ? AttentionPartials{} : args.partials};
  args.partials.given() ? generic_.Run(call) : Run(call, split);
}

void AttentionDispatch::Run(const PrefixAttentionArgs& args) {
  const DenseKeys fresh{.k = args.k,
                        .k_stride = args.k_stride,
                        .v = args.v,
                        .v_stride = args.v_stride,
                        .num_heads = args.k_cache.num_heads,
                        .k_dim = args.k_cache.dim,
                        .v_dim = args.v_cache.dim,
                        .cu_seqlens_k = args.cu_seqlens_q};
  generic_.Run({.base = {.q = args.q,
                         .q_stride = args.q_stride,
                         .num_heads = args.num_heads,
                         .num_seqs = args.num_seqs,
                         .cu_seqlens_q = args.cu_seqlens_q,
                         .seq_lens = args.seq_lens,
                         .block_table = args.block_table,
                         .max_blocks = args.max_blocks,
                         .k_cache = args.k_cache,
                         .v_cache = args.v_cache,
                         .dense = fresh,
                         .scores = args.scores,
                         .scales = args.scales,
                         .round_to = args.round_to,
                         .out = args.out,
                         .out_stride = args.out_stride,
                         .lse = args.lse,
                         .lse_stride = args.lse_stride},
                .skip_decodes = args.skip_decodes});
}

void AttentionDispatch::Run(const AttentionWithKvCacheArgs& args) {
  if (args.num_seqs == 0) return;
  const GenericAttentionArgs call = append_.Run(args);
  if (args.num_queries == 0) return;
  Run(call, args.num_splits == 0   ? AttentionSplit::kAuto
            : args.num_splits == 1 ? AttentionSplit::kSinglePass
                                   : AttentionSplit::kSplit);
}

}  // namespace baton
