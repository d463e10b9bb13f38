#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/api/attention_args.h"
#include "kernels/api/cache_args.h"
#include "kernels/api/model_args.h"
#include "kernels/api/moe_args.h"
#include "kernels/api/row_args.h"
#include "kernels/api/step_args.h"

namespace baton {

// INVALID_ARGUMENT with the field, its value and what is allowed. Device-independent: shapes,
// null pointers and, where the indexes are in host memory, every index.
absl::Status CheckArgs(const ReshapeAndCacheArgs& args);
absl::Status CheckArgs(const CopyBlocksArgs& args);
absl::Status CheckArgs(const SwapBlocksArgs& args);
absl::Status CheckArgs(const GatherBlocksArgs& args);
absl::Status CheckArgs(const ScatterBlocksArgs& args);
absl::Status CheckArgs(const AdvanceStepArgs& args);
absl::Status CheckArgs(const VarlenAttentionArgs& args);
absl::Status CheckArgs(const PagedAttentionArgs& args);
absl::Status CheckArgs(const PrefixAttentionArgs& args);
absl::Status CheckArgs(const AttentionWithKvCacheArgs& args);
absl::Status CheckArgs(const MergeAttentionStatesArgs& args);
absl::Status CheckArgs(const RmsNormArgs& args);
absl::Status CheckArgs(const LayerNormArgs& args);
absl::Status CheckArgs(const RotaryTableArgs& args);
absl::Status CheckArgs(const RopeArgs& args);
absl::Status CheckArgs(const ActivationArgs& args);
absl::Status CheckArgs(const ActivationAndMulArgs& args);
absl::Status CheckArgs(const SoftcapArgs& args);
absl::Status CheckArgs(const SelectRowsArgs& args);
absl::Status CheckArgs(const EmbeddingArgs& args);
absl::Status CheckArgs(const GemmArgs& args);
absl::Status CheckArgs(const PackWeightsArgs& args);
absl::Status CheckArgs(const MoeRoutingArgs& args);
absl::Status CheckArgs(const MoeAlignArgs& args);
absl::Status CheckArgs(const ExpertGemmArgs& args);
absl::Status CheckArgs(const MoeCombineArgs& args);

// A matrix to multiply with: not empty, of a type that the products know.
absl::Status CheckWeights(const PackedMatrix& weights, absl::string_view field);

// Of a plane alone, and of the K and V planes of one layer.
absl::Status CheckPlane(const CachePlane& cache, absl::string_view field);
absl::Status CheckPlanes(const CachePlane& k_cache, const CachePlane& v_cache);

}  // namespace baton
