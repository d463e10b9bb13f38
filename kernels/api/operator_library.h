#pragma once

#include "absl/status/status.h"
#include "kernels/api/attention_args.h"
#include "kernels/api/cache_args.h"
#include "kernels/api/model_args.h"
#include "kernels/api/step_args.h"

namespace baton {

// The operators that a device may have beside ModelOps: other forms of attention, whole blocks of a
// cache. They promise what ModelOps do.
class OperatorLibrary {
 public:
  virtual ~OperatorLibrary() = default;

  virtual absl::Status UpdateKvCache(const UpdateKvCacheArgs& args) = 0;
  virtual absl::Status CopyBlocks(const CopyBlocksArgs& args) = 0;
  virtual absl::Status SwapBlocks(const SwapBlocksArgs& args) = 0;
  virtual absl::Status GatherBlocks(const GatherBlocksArgs& args) = 0;
  virtual absl::Status ScatterBlocks(const ScatterBlocksArgs& args) = 0;
  virtual absl::Status AdvanceStep(const AdvanceStepArgs& args) = 0;
  virtual absl::Status PagedAttention(const PagedAttentionArgs& args) = 0;
  virtual absl::Status PrefixAttention(const PrefixAttentionArgs& args) = 0;
  virtual absl::Status AttentionWithKvCache(const AttentionWithKvCacheArgs& args) = 0;
  virtual absl::Status MergeAttentionStates(const MergeAttentionStatesArgs& args) = 0;
  virtual absl::Status CascadeLens(const CascadeLensArgs& args) = 0;
};

}  // namespace baton
