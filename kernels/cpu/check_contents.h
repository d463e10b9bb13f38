#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/api/attention_args.h"
#include "kernels/api/cache_args.h"
#include "kernels/api/model_args.h"
#include "kernels/api/moe_args.h"
#include "kernels/api/row_args.h"
#include "kernels/api/sample_args.h"
#include "kernels/api/step_args.h"

namespace baton {

// What the CPU says of a call whose shapes are right: its operands are f32, and whatever is in
// arrays of indexes, lengths and scales can be followed. INVALID_ARGUMENT as of CheckShapes.
absl::Status CheckContents(const ReshapeAndCacheArgs& args);
absl::Status CheckContents(const UpdateKvCacheArgs& args);
absl::Status CheckContents(const CopyBlocksArgs& args);
absl::Status CheckContents(const SwapBlocksArgs& args);
absl::Status CheckContents(const GatherBlocksArgs& args);
absl::Status CheckContents(const ScatterBlocksArgs& args);
absl::Status CheckContents(const AdvanceStepArgs& args);
absl::Status CheckContents(const VarlenAttentionArgs& args);
absl::Status CheckContents(const PagedAttentionArgs& args);
absl::Status CheckContents(const PrefixAttentionArgs& args);
absl::Status CheckContents(const AttentionWithKvCacheArgs& args);
absl::Status CheckContents(const MergeAttentionStatesArgs& args);
absl::Status CheckContents(const CascadeLensArgs& args);
absl::Status CheckContents(const RmsNormArgs& args);
absl::Status CheckContents(const LayerNormArgs& args);
absl::Status CheckContents(const RotaryTableArgs& args);
absl::Status CheckContents(const RopeArgs& args);
absl::Status CheckContents(const ActivationArgs& args);
absl::Status CheckContents(const ActivationAndMulArgs& args);
absl::Status CheckContents(const SoftcapArgs& args);
absl::Status CheckContents(const SelectRowsArgs& args);
absl::Status CheckContents(const EmbeddingArgs& args);
absl::Status CheckContents(const GemmArgs& args);
absl::Status CheckContents(const FoldPartialsArgs& args);
absl::Status CheckContents(const PackWeightsArgs& args);
absl::Status CheckContents(const SampleArgs& args);
absl::Status CheckContents(const ScoreArgs& args);
absl::Status CheckContents(const TakeTokensArgs& args);
absl::Status CheckContents(const MoeRoutingArgs& args);
absl::Status CheckContents(const MoeAlignArgs& args);
absl::Status CheckContents(const ExpertGemmArgs& args);
absl::Status CheckContents(const MoeCombineArgs& args);

// Of a plane whose shape is right.
absl::Status CheckScales(const CachePlane& cache, absl::string_view field);


// Where sequences begin, [num_seqs + 1]: 0 first, not descending.
absl::Status CheckCumulative(const int32_t* cu, int64_t num_seqs, const char* field);

}  // namespace baton
