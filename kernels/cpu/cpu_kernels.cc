#include "kernels/cpu/cpu_kernels.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cpu/advance_step.h"
#include "kernels/cpu/cache_blocks.h"
#include "kernels/cpu/check_args.h"
#include "kernels/cpu/moe_align.h"
#include "kernels/cpu/pack_weights.h"
#include "kernels/cpu/rotary_table.h"
#include "kernels/cpu/tasks.h"

namespace baton {

CpuKernels::CpuKernels(const KernelSet* set, int num_threads, int nice)
    : set_(set),
      pool_(num_threads, nice),
      attention_(set, &pool_),
      gemm_(set, &pool_),
      samplers_(num_threads, Sampler(set->row_math())) {}

template <typename Body>
void CpuKernels::ForTokens(int64_t num_tokens, int64_t elements, const Body& body) {
  if (elements < kInlineElements) return body(0, num_tokens);
  const int64_t tasks = std::min<int64_t>(num_tokens, pool_.num_threads() * 4);
  const int64_t each = CeilDiv(num_tokens, std::max<int64_t>(tasks, 1));
  pool_.ParallelFor(CeilDiv(num_tokens, each), [&](int64_t task, int) {
    body(task * each, std::min(num_tokens, (task + 1) * each));
  });
}

absl::Status CpuKernels::ReshapeAndCache(const ReshapeAndCacheArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  const int64_t elements = int64_t{args.k_cache.num_heads} * args.k_cache.dim * args.num_tokens;
  ForTokens(args.num_tokens, elements,
            [&](int64_t begin, int64_t end) { set_->reshape_and_cache(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::UpdateKvCache(const UpdateKvCacheArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  RETURN_IF_ERROR(ReshapeAndCache(args.append));
  const CachePlane& k = args.append.k_cache;
  const int64_t tokens = args.num_seqs == 0 ? 0 : args.cu_seqlens_k[args.num_seqs];
  ForTokens(args.num_seqs, tokens * k.num_heads * k.dim,
            [&](int64_t begin, int64_t end) { set_->gather_kv(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::CopyBlocks(const CopyBlocksArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  baton::CopyBlocks(args, pool_);
  return absl::OkStatus();
}

absl::Status CpuKernels::SwapBlocks(const SwapBlocksArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  baton::SwapBlocks(args, pool_);
  return absl::OkStatus();
}

absl::Status CpuKernels::GatherBlocks(const GatherBlocksArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  baton::GatherBlocks(args, pool_);
  return absl::OkStatus();
}

absl::Status CpuKernels::ScatterBlocks(const ScatterBlocksArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  baton::ScatterBlocks(args, pool_);
  return absl::OkStatus();
}

absl::Status CpuKernels::AdvanceStep(const AdvanceStepArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  baton::AdvanceStep(args);
  return absl::OkStatus();
}

absl::Status CpuKernels::VarlenAttention(const VarlenAttentionArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  attention_.Run(args);
  return absl::OkStatus();
}

absl::Status CpuKernels::PagedAttention(const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  attention_.Run(args);
  return absl::OkStatus();
}

absl::Status CpuKernels::PrefixAttention(const PrefixAttentionArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  attention_.Run(args);
  return absl::OkStatus();
}

absl::Status CpuKernels::AttentionWithKvCache(const AttentionWithKvCacheArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  attention_.Run(args);
  return absl::OkStatus();
}

absl::Status CpuKernels::MergeAttentionStates(const MergeAttentionStatesArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.num_heads * args.dim,
            [&](int64_t begin, int64_t end) { set_->merge_attention_states(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::CascadeLens(const CascadeLensArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  if (args.attention.num_seqs == 0) return absl::OkStatus();
  args.prefix_queries[0] = 0;
  args.prefix_queries[1] = static_cast<int32_t>(args.attention.num_tokens);
  *args.prefix_len = args.common_prefix_len;
  for (int64_t s = 0; s < args.attention.num_seqs; ++s) {
    args.suffix_lens[s] = std::max(args.attention.seq_lens[s] - args.common_prefix_len, 0);
  }
  return absl::OkStatus();
}

absl::Status CpuKernels::RmsNorm(const RmsNormArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.rows_per_token * args.dim,
            [&](int64_t begin, int64_t end) { set_->rms_norm(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::LayerNorm(const LayerNormArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.dim,
            [&](int64_t begin, int64_t end) { set_->layer_norm(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::RotaryTable(const RotaryTableArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  // A sine costs as much as tens of other elements.
  ForTokens(args.num_tokens, args.num_tokens * args.half * 32,
            [&](int64_t begin, int64_t end) { FillRotaryTable(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::Rope(const RopeArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.num_heads * args.rotary_dim,
            [&](int64_t begin, int64_t end) { set_->rope(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::Activation(const ActivationArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.dim,
            [&](int64_t begin, int64_t end) { set_->activation(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::ActivationAndMul(const ActivationAndMulArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.dim,
            [&](int64_t begin, int64_t end) { set_->activation_and_mul(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::Softcap(const SoftcapArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.dim,
            [&](int64_t begin, int64_t end) { set_->softcap(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::SelectRows(const SelectRowsArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  const size_t bytes = args.dim * SizeOf(args.from.dtype);
  ForTokens(args.num_rows, args.num_rows * args.dim, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(args.to.At(i * args.to_stride).data,
                  args.from.At(args.rows[i] * args.from_stride).data, bytes);
    }
  });
  return absl::OkStatus();
}

absl::Status CpuKernels::Embedding(const EmbeddingArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  if (args.num_tokens == 0) return absl::OkStatus();
  const int64_t rows_each = args.num_shards == 1 ? args.num_rows() : args.rows_each;
  const int64_t dim = args.shards[0]->k();
  float* out = args.out.f32();
  const int64_t stride = args.out_stride == 0 ? dim : args.out_stride;
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Panels shard(*args.shards[args.tokens[t] / rows_each]);
      float* const row = out + t * stride;
      UnpackRow(shard, args.tokens[t] % rows_each, row);
      if (args.scale == 1) continue;
      for (int64_t i = 0; i < dim; ++i) row[i] *= args.scale;
    }
  };
  ForTokens(args.num_tokens, args.num_tokens * dim, body);
  return absl::OkStatus();
}

absl::Status CpuKernels::Gemm(const GemmArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  gemm_.Run(args);
  return absl::OkStatus();
}

absl::Status CpuKernels::FoldPartials(const FoldPartialsArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.num_parts * args.dim,
            [&](int64_t begin, int64_t end) { set_->fold_partials(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::Sample(const SampleArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ParallelFor(args.num_rows, [&](int64_t row, int thread) {
    args.results[row] = samplers_[thread].Sample(args, row);
  });
  return absl::OkStatus();
}

absl::Status CpuKernels::Score(const ScoreArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ParallelFor(args.num_rows, [&](int64_t row, int thread) {
    args.results[row] = samplers_[thread].Score(args, row);
  });
  return absl::OkStatus();
}

absl::Status CpuKernels::TakeTokens(const TakeTokensArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  for (const TakenToken& taken : std::span(args.taken, args.count)) {
    args.tokens[taken.to] = std::max(0, args.results[taken.row].token);
  }
  return absl::OkStatus();
}

absl::Status CpuKernels::MoeRouting(const MoeRoutingArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.num_experts,
            [&](int64_t begin, int64_t end) { set_->moe_routing(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::MoeAlign(const MoeAlignArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  baton::MoeAlign(args);
  return absl::OkStatus();
}

absl::Status CpuKernels::ExpertGemm(const ExpertGemmArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  gemm_.Run(args);
  return absl::OkStatus();
}

absl::Status CpuKernels::MoeCombine(const MoeCombineArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.top_k * args.segments * args.dim,
            [&](int64_t begin, int64_t end) { set_->moe_combine(args, begin, end); });
  return absl::OkStatus();
}

absl::StatusOr<PackedMatrix> CpuKernels::PackWeights(const PackWeightsArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  int64_t n = 0;
  DType dtype = args.parts[0].dtype;
  for (int64_t i = 0; i < args.num_parts; ++i) {
    n += args.parts[i].num_rows;
    if (args.parts[i].dtype != dtype) dtype = DType::kF32;
  }
  absl::StatusOr<PackedMatrix> packed = AllocatePanels(n, args.k, dtype);
  if (!packed.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a weight matrix of ", Panels(n, args.k, dtype).size_bytes(),
                     " bytes: use a smaller model or a machine with more memory"));
  }
  const Panels panels(*packed);
  int64_t row = 0;
  for (int64_t i = 0; i < args.num_parts; ++i) {
    const WeightRows& part = args.parts[i];
    ForTokens(part.num_rows, part.num_rows * args.k,
              [&](int64_t begin, int64_t end) { PackRows(part, begin, end, row, panels); });
    row += part.num_rows;
  }
  PackZeroRows(row, panels);
  return packed;
}

}  // namespace baton
