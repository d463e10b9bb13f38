#include "common/engine/sequence.h"

#include <algorithm>

namespace baton {

bool NeedsHistory(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.frequency_penalty != 0 ||
         params.presence_penalty != 0;
}

FinishReason FinishAfter(const SamplingParams& params, const std::vector<int32_t>& eos_token_ids,
                         int32_t token, int32_t num_emitted) {
  const bool is_eos = std::ranges::count(eos_token_ids, token) > 0;
  const bool is_stop = std::ranges::count(params.stop_token_ids, token) > 0;
  if (is_stop || (is_eos && !params.ignore_eos)) return FinishReason::kStop;
  return num_emitted >= params.max_tokens ? FinishReason::kLength : FinishReason::kNone;
}

}  // namespace baton
