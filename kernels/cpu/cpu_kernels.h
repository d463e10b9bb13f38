#pragma once

#include <string_view>
#include <vector>

#include "common/base/thread_pool.h"
#include "kernels/api/model_ops.h"
#include "kernels/api/operator_library.h"
#include "kernels/cpu/attention_dispatch.h"
#include "kernels/cpu/gemm_runner.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/sampling/sampler.h"

namespace baton {

// The operators on the CPU, one caller at a time; a call returns when its results are in memory.
// Checks the arguments, divides the work over a pool by output, and
// leaves the arithmetic to a kernel set. The bits do not depend on the number of threads.
class CpuKernels : public ModelOps, public OperatorLibrary {
 public:
  // num_threads >= 1, with the caller's. `nice` as in ThreadPool.
  CpuKernels(const KernelSet* set, int num_threads, int nice = 0);

  // For logs, e.g. "x86_64_v3".
  std::string_view name() const { return set_->name; }
  // Whether products of bf16 weights are faster with activations in bf16 than in f32.
  bool has_bf16_dot() const { return set_->bf16_tiling.bf16_group > 0; }
  // Device::Arithmetic. In f32 all kernel sets share one order of operations; an instruction for
  // bf16 products has its own. The version is raised when bits change.
  std::string_view numerics(DType compute) const {
    return compute == DType::kBF16 ? set_->bf16_numerics : "cpu-16lane.1";
  }
  absl::Status ReshapeAndCache(const ReshapeAndCacheArgs& args) override;
  absl::Status UpdateKvCache(const UpdateKvCacheArgs& args) override;
  absl::Status CopyBlocks(const CopyBlocksArgs& args) override;
  absl::Status SwapBlocks(const SwapBlocksArgs& args) override;
  absl::Status GatherBlocks(const GatherBlocksArgs& args) override;
  absl::Status ScatterBlocks(const ScatterBlocksArgs& args) override;
  absl::Status AdvanceStep(const AdvanceStepArgs& args) override;
  absl::Status VarlenAttention(const VarlenAttentionArgs& args) override;
  absl::Status PagedAttention(const PagedAttentionArgs& args) override;
  absl::Status PrefixAttention(const PrefixAttentionArgs& args) override;
  absl::Status AttentionWithKvCache(const AttentionWithKvCacheArgs& args) override;
  absl::Status MergeAttentionStates(const MergeAttentionStatesArgs& args) override;
  absl::Status CascadeLens(const CascadeLensArgs& args) override;
  absl::Status RmsNorm(const RmsNormArgs& args) override;
  absl::Status LayerNorm(const LayerNormArgs& args) override;
  absl::Status RotaryTable(const RotaryTableArgs& args) override;
  absl::Status Rope(const RopeArgs& args) override;
  absl::Status Activation(const ActivationArgs& args) override;
  absl::Status ActivationAndMul(const ActivationAndMulArgs& args) override;
  absl::Status Softcap(const SoftcapArgs& args) override;
  absl::Status SelectRows(const SelectRowsArgs& args) override;
  absl::Status Embedding(const EmbeddingArgs& args) override;
  absl::Status Gemm(const GemmArgs& args) override;
  absl::Status FoldPartials(const FoldPartialsArgs& args) override;
  absl::Status Sample(const SampleArgs& args) override;
  absl::Status Score(const ScoreArgs& args) override;
  absl::Status TakeTokens(const TakeTokensArgs& args) override;
  absl::Status MoeRouting(const MoeRoutingArgs& args) override;
  absl::Status MoeAlign(const MoeAlignArgs& args) override;
  absl::Status ExpertGemm(const ExpertGemmArgs& args) override;
  absl::Status MoeCombine(const MoeCombineArgs& args) override;
  // RESOURCE_EXHAUSTED when the memory cannot be had.
  absl::StatusOr<PackedMatrix> PackWeights(const PackWeightsArgs& args);
  const RowMath& row_math() const { return *set_->row_math(); }
  // body(task, thread) for each task; returns when all have ended. Calls no operator.
  virtual void ParallelFor(int64_t num_tasks, ThreadPool::Body body) {
    pool_.ParallelFor(num_tasks, body);
  }

 private:
  // Calls body(begin, end) over tokens (or rows), in the pool when `elements` is worth it.
  template <typename Body>
  void ForTokens(int64_t num_tokens, int64_t elements, const Body& body);

  const KernelSet* set_;
  ThreadPool pool_;
  AttentionDispatch attention_;
  GemmRunner gemm_;
  std::vector<Sampler> samplers_;  // One per thread.
};

}  // namespace baton
