#pragma once

#include "absl/status/status.h"
#include "kernels/api/attention_args.h"
#include "kernels/api/cache_args.h"
#include "kernels/api/fused_args.h"
#include "kernels/api/model_args.h"
#include "kernels/api/moe_args.h"
#include "kernels/api/row_args.h"
#include "kernels/api/sample_args.h"

namespace baton {

// What a model's steps call of a device, on its lane kCompute. INVALID_ARGUMENT names the field,
// its value and what is allowed, and then nothing was enqueued.
class ModelOps {
 public:
  virtual ~ModelOps() = default;

  virtual absl::Status Embedding(const EmbeddingArgs& args) = 0;
  virtual absl::Status RmsNorm(const RmsNormArgs& args) = 0;
  virtual absl::Status LayerNorm(const LayerNormArgs& args) = 0;
  virtual absl::Status Gemm(const GemmArgs& args) = 0;
  virtual absl::Status FoldPartials(const FoldPartialsArgs& args) = 0;
  virtual absl::Status RotaryTable(const RotaryTableArgs& args) = 0;
  virtual absl::Status Rope(const RopeArgs& args) = 0;
  virtual absl::Status ReshapeAndCache(const ReshapeAndCacheArgs& args) = 0;
  virtual absl::Status VarlenAttention(const VarlenAttentionArgs& args) = 0;
  virtual absl::Status Activation(const ActivationArgs& args) = 0;
  virtual absl::Status ActivationAndMul(const ActivationAndMulArgs& args) = 0;
  virtual absl::Status Softcap(const SoftcapArgs& args) = 0;
  virtual absl::Status SelectRows(const SelectRowsArgs& args) = 0;
  virtual absl::Status Sample(const SampleArgs& args) = 0;
  virtual absl::Status Score(const ScoreArgs& args) = 0;
  virtual absl::Status TakeTokens(const TakeTokensArgs& args) = 0;
  virtual absl::Status MoeRouting(const MoeRoutingArgs& args) = 0;
  virtual absl::Status MoeAlign(const MoeAlignArgs& args) = 0;
  virtual absl::Status ExpertGemm(const ExpertGemmArgs& args) = 0;
  virtual absl::Status MoeCombine(const MoeCombineArgs& args) = 0;

  // Of operators above; a device that has one kernel for them says so.
  virtual absl::Status RopeAndCache(const RopeAndCacheArgs& args);
  virtual absl::Status GatedGemm(const GatedGemmArgs& args);
  virtual absl::Status GemmAndNorm(const GemmAndNormArgs& args);
};

}  // namespace baton
