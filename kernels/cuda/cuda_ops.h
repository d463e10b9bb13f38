#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "kernels/api/buffer.h"
#include "kernels/api/model_ops.h"
#include "kernels/api/row_args.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// The operators of a model on one stream.
class CudaOps : public ModelOps {
 public:
  // `scratch`: for products in segments; for attention over long sequences, which is faster with
  // it. May be empty. `counters`: zeros, for AttentionRoom. `shared_bytes`: that a block may have.
  CudaOps(cudaStream_t stream, Buffer scratch, Buffer counters, size_t shared_bytes)
      : stream_(stream),
        scratch_(std::move(scratch)),
        counters_(std::move(counters)),
        shared_bytes_(shared_bytes) {}

  absl::Status Embedding(const EmbeddingArgs& args) override;
  absl::Status RmsNorm(const RmsNormArgs& args) override;
  absl::Status LayerNorm(const LayerNormArgs& args) override;
  absl::Status Gemm(const GemmArgs& args) override;
  absl::Status FoldPartials(const FoldPartialsArgs& args) override;
  absl::Status RotaryTable(const RotaryTableArgs& args) override;
  absl::Status Rope(const RopeArgs& args) override;
  absl::Status ReshapeAndCache(const ReshapeAndCacheArgs& args) override;
  absl::Status VarlenAttention(const VarlenAttentionArgs& args) override;
  absl::Status Activation(const ActivationArgs& args) override;
  absl::Status ActivationAndMul(const ActivationAndMulArgs& args) override;
  absl::Status Softcap(const SoftcapArgs& args) override;
  absl::Status SelectRows(const SelectRowsArgs& args) override;
  absl::Status Sample(const SampleArgs& args) override;
  absl::Status Score(const ScoreArgs& args) override;
  absl::Status TakeTokens(const TakeTokensArgs& args) override;
  absl::Status MoeRouting(const MoeRoutingArgs& args) override;
  absl::Status MoeAlign(const MoeAlignArgs& args) override;
  absl::Status ExpertGemm(const ExpertGemmArgs& args) override;
  absl::Status MoeCombine(const MoeCombineArgs& args) override;
  absl::Status RopeAndCache(const RopeAndCacheArgs& args) override;
  absl::Status GatedGemm(const GatedGemmArgs& args) override;
  absl::Status GemmAndNorm(const GemmAndNormArgs& args) override;

 private:
  std::span<float> Scratch() const {
    return {reinterpret_cast<float*>(scratch_.data()), scratch_.size_bytes() / sizeof(float)};
  }

  const cudaStream_t stream_;
  const Buffer scratch_;
  const Buffer counters_;
  const size_t shared_bytes_;
};

}  // namespace baton::cuda
