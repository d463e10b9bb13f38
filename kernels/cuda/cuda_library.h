#pragma once

#include <cstddef>
#include <utility>

#include "kernels/api/buffer.h"
#include "kernels/api/operator_library.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// The operators beside those of a model on one stream. Arrays are the device's, so what they hold
// is the caller's to check; where the host has to know how many tokens there are it is told.
// INVALID_ARGUMENT names the field, and then nothing was enqueued.
class CudaLibrary : public OperatorLibrary {
 public:
  // `scratch`: for PagedAttention over long sequences, which is faster with it; may be empty.
  // `counters`: zeros, for AttentionRoom. `shared_bytes`: that a block may have.
  CudaLibrary(cudaStream_t stream, Buffer scratch, Buffer counters, size_t shared_bytes)
      : stream_(stream),
        scratch_(std::move(scratch)),
        counters_(std::move(counters)),
        shared_bytes_(shared_bytes) {}

  absl::Status UpdateKvCache(const UpdateKvCacheArgs& args) override;
  absl::Status CopyBlocks(const CopyBlocksArgs& args) override;
  absl::Status SwapBlocks(const SwapBlocksArgs& args) override;
  absl::Status GatherBlocks(const GatherBlocksArgs& args) override;
  absl::Status ScatterBlocks(const ScatterBlocksArgs& args) override;
  absl::Status AdvanceStep(const AdvanceStepArgs& args) override;
  absl::Status PagedAttention(const PagedAttentionArgs& args) override;
  absl::Status PrefixAttention(const PrefixAttentionArgs& args) override;
  absl::Status AttentionWithKvCache(const AttentionWithKvCacheArgs& args) override;
  absl::Status MergeAttentionStates(const MergeAttentionStatesArgs& args) override;
  absl::Status CascadeLens(const CascadeLensArgs& args) override;

 private:
  const cudaStream_t stream_;
  const Buffer scratch_;
  const Buffer counters_;
  const size_t shared_bytes_;
};

}  // namespace baton::cuda
