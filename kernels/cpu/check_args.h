#pragma once

#include "absl/status/status.h"
#include "kernels/api/attention_args.h"
#include "kernels/api/cache_args.h"
#include "kernels/api/model_args.h"

namespace baton {

// INVALID_ARGUMENT with the field, its value and what is allowed. Device-independent: shapes,
// null pointers and, where the indexes are in host memory, every index.
absl::Status CheckArgs(const ReshapeAndCacheArgs& args);
absl::Status CheckArgs(const CopyBlocksArgs& args);
absl::Status CheckArgs(const SwapBlocksArgs& args);
absl::Status CheckArgs(const VarlenAttentionArgs& args);
absl::Status CheckArgs(const RmsNormArgs& args);
absl::Status CheckArgs(const RopeArgs& args);
absl::Status CheckArgs(const ActivationAndMulArgs& args);
absl::Status CheckArgs(const EmbeddingArgs& args);
absl::Status CheckArgs(const GemmArgs& args);
absl::Status CheckArgs(const PackWeightsArgs& args);

}  // namespace baton
