#include "router/event_checks.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace baton {

absl::Status CheckReserved(const ReservedEvent& event, Incarnation decode, int32_t base) {
  if (event.decode != decode) {
    return absl::DataLossError(
        absl::StrFormat("reserved.decode_incarnation is %x; the worker asked is %x", event.decode,
                        decode));
  }
  // At least the last token is always sent.
  if (event.cached_tokens < 0 || event.cached_tokens >= base) {
    return absl::DataLossError(absl::StrFormat(
        "reserved.cached_tokens is %d; allowed: 0 to %d", event.cached_tokens, base - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckPrefilled(const PrefilledEvent& event, int32_t base) {
  if (event.cached_tokens >= 0 && event.cached_tokens < base) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("prefilled.cached_tokens is %d; allowed: 0 to %d",
                                             event.cached_tokens, base - 1));
}

absl::Status CheckOutput(const TokenOutput& output, const SamplingParams& params,
                         int32_t num_emitted) {
  const bool is_last = num_emitted >= params.max_tokens;
  const bool is_stop =
      std::ranges::find(params.stop_token_ids, output.token) != params.stop_token_ids.end();
  // Which tokens end an answer of its own accord is the model's to know.
  const bool is_wrong = is_stop   ? output.finish != FinishReason::kStop
                        : is_last ? output.finish == FinishReason::kNone
                                  : output.finish == FinishReason::kLength;
  if (is_wrong) {
    return absl::DataLossError(absl::StrFormat(
        "output.finish is %d for token %d of at most %d", static_cast<int>(output.finish),
        num_emitted, params.max_tokens));
  }
  const auto most = static_cast<size_t>(std::max(params.num_logprobs, 0));
  if (output.top.size() > most) {
    return absl::DataLossError(
        absl::StrFormat("output.top has %d tokens; asked for %d", output.top.size(), most));
  }
  return absl::OkStatus();
}

}  // namespace baton
