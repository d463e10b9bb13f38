#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/sampling.h"
#include "kernels/api/sample_args.h"

namespace baton {

// What devices leave to the host of the results of Sample and Score: logarithms, and words.
// `top` holds the alternatives of row `index`, as many as were asked for and the vocabulary has.

// The error of a row whose logits are no distribution.
absl::Status BadLogits(int32_t position);

// Without logits_digest; `finish` is left kNone.
TokenOutput ReadSample(const SampleResult& result, const TopTokens& top, int64_t index,
                       int32_t num_top, int32_t position);

PromptLogprob ReadScore(const ScoreResult& result, const TopTokens& top, int64_t index,
                        int32_t num_top, int32_t position, int32_t token);

}  // namespace baton
