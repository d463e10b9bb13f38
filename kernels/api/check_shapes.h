#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/api/attention_args.h"
#include "kernels/api/cache_args.h"
#include "kernels/api/fused_args.h"
#include "kernels/api/model_args.h"
#include "kernels/api/moe_args.h"
#include "kernels/api/row_args.h"
#include "kernels/api/sample_args.h"
#include "kernels/api/step_args.h"

namespace baton {

// What can be said of a call on every device: counts, strides, types, null pointers.
// INVALID_ARGUMENT with the field, its value and what is allowed. Of memory only what the host has
// is looked at: planes, packed matrices, parts of weights; never an array that may lie in a device.
absl::Status CheckShapes(const ReshapeAndCacheArgs& args);
absl::Status CheckShapes(const UpdateKvCacheArgs& args);
absl::Status CheckShapes(const CopyBlocksArgs& args);
absl::Status CheckShapes(const SwapBlocksArgs& args);
absl::Status CheckShapes(const GatherBlocksArgs& args);
absl::Status CheckShapes(const ScatterBlocksArgs& args);
absl::Status CheckShapes(const AdvanceStepArgs& args);
absl::Status CheckShapes(const VarlenAttentionArgs& args);
absl::Status CheckShapes(const PagedAttentionArgs& args);
absl::Status CheckShapes(const PrefixAttentionArgs& args);
absl::Status CheckShapes(const AttentionWithKvCacheArgs& args);
absl::Status CheckShapes(const MergeAttentionStatesArgs& args);
absl::Status CheckShapes(const CascadeLensArgs& args);
absl::Status CheckShapes(const RmsNormArgs& args);
absl::Status CheckShapes(const LayerNormArgs& args);
absl::Status CheckShapes(const RotaryTableArgs& args);
absl::Status CheckShapes(const RopeArgs& args);
absl::Status CheckShapes(const ActivationArgs& args);
absl::Status CheckShapes(const ActivationAndMulArgs& args);
absl::Status CheckShapes(const SoftcapArgs& args);
absl::Status CheckShapes(const SelectRowsArgs& args);
absl::Status CheckShapes(const EmbeddingArgs& args);
absl::Status CheckShapes(const GemmArgs& args);
absl::Status CheckShapes(const FoldPartialsArgs& args);
absl::Status CheckShapes(const RopeAndCacheArgs& args);
absl::Status CheckShapes(const GatedGemmArgs& args);
absl::Status CheckShapes(const GemmAndNormArgs& args);
absl::Status CheckShapes(const PackWeightsArgs& args);
absl::Status CheckShapes(const SampleArgs& args);
absl::Status CheckShapes(const ScoreArgs& args);
absl::Status CheckShapes(const TakeTokensArgs& args);
absl::Status CheckShapes(const MoeRoutingArgs& args);
absl::Status CheckShapes(const MoeAlignArgs& args);
absl::Status CheckShapes(const ExpertGemmArgs& args);
absl::Status CheckShapes(const MoeCombineArgs& args);

// Queries, output and LSE of attention over so many tokens, which CheckShapes does where num_tokens
// is told.
absl::Status CheckRows(const VarlenAttentionArgs& args, int64_t num_tokens);
absl::Status CheckRows(const PrefixAttentionArgs& args, int64_t num_tokens);

// What a cascade asks of the attention that it is to replace.
absl::Status CheckCascade(const VarlenAttentionArgs& args, int32_t common_prefix_len);

// Whatever table an embedding is given, it is in weights of that format.
absl::Status RequirePackedShards(const EmbeddingArgs& args, WeightFormat format);

// A matrix to multiply with: not empty, of a type that the products know.
absl::Status CheckWeights(const PackedMatrix& weights, absl::string_view field);
// In how many its k is cut: GemmArgs, ExpertGemmArgs.
absl::Status RequireSegments(int64_t segments, int64_t k);

// Of a plane alone, and of the K and V planes of one layer.
absl::Status CheckPlane(const CachePlane& cache, absl::string_view field);
absl::Status CheckPlanes(const CachePlane& k_cache, const CachePlane& v_cache);

}  // namespace baton
