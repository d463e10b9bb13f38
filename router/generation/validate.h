#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/generation_config.h"
#include "common/node/message.h"
#include "router/generation/generation_request.h"
#include "router/generation/generation_service.h"

namespace baton {

// Checks of `request` that need no tokens: counts, lengths of strings, ranges. Cheap, so that a
// hostile request is refused before it is tokenized.
absl::Status CheckRequest(const GenerationRequest& request, const GenerationLimits& limits,
                          bool has_tokenizer);

// Whether a prompt of it may have so many tokens, of which it may have more: what is certain before
// a text is tokenized. The error is that of BuildValidRequest.
absl::Status CheckLeastTokens(const GenerationRequest& request, const GenerationLimits& limits,
                              int64_t least);

// The scheduler's form of a request that passed CheckRequest. `prompts` are its prompts' tokens;
// `seed` is used if the request has none. INVALID_ARGUMENT names the field, its value and, for
// the model's length, the largest value that fits.
absl::StatusOr<ValidRequest> BuildValidRequest(const GenerationRequest& request,
                                               std::vector<std::vector<int32_t>> prompts,
                                               const GenerationLimits& limits,
                                               const GenerationConfig& defaults, uint64_t seed);

}  // namespace baton
