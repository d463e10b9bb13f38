#include "router/event_checks.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace baton {
namespace {

// The next token of an answer; `num_emitted` counts it.
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

}  // namespace

absl::Status CheckReserved(const ReservedEvent& event, Incarnation decode, int32_t base) {
  if (event.decode != decode) {
    return absl::DataLossError(
        absl::StrFormat("reserved.decode_incarnation is %x; the worker asked is %x", event.decode,
                        decode));
  }
  return CheckCached("reserved", event.cached_tokens, base);
}

absl::Status CheckCached(const char* event, int32_t cached, int32_t base) {
  if (cached >= 0 && cached < base) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("%s.cached_tokens is %d; allowed: 0 to %d", event, cached, base - 1));
}

absl::Status SkippedError(int32_t next, int32_t position) {
  return absl::DataLossError(
      absl::StrFormat("a worker skipped from position %d to %d", next, position));
}

absl::Status CheckScore(const PromptLogprob& score, const SequenceState& sequence) {
  const std::vector<int32_t>& prompt = sequence.body->prompts[sequence.prompt];
  if (score.position > sequence.call_score) {
    return SkippedError(sequence.call_score, score.position);
  }
  if (score.position < 1 || score.position >= static_cast<int32_t>(prompt.size()) ||
      score.token != prompt[score.position] ||
      static_cast<int64_t>(score.top.size()) > sequence.body->sampling.num_prompt_logprobs) {
    return absl::DataLossError(absl::StrFormat(
        "a worker's score at position %d is not what it was asked for", score.position));
  }
  return absl::OkStatus();
}

absl::Status CheckAlone(const TokensEvent& event, const SequenceState& sequence) {
  if (!sequence.IsAlone() || event.outputs.empty()) return absl::OkStatus();
  if (sequence.owes_score) return SkippedError(sequence.call_score, sequence.PromptLength());
  if (!sequence.body->score_only) return absl::OkStatus();
  return absl::DataLossError("a worker sampled a token of a prompt to be scored only");
}

absl::Status CheckFirst(const PrefilledEvent& event, const SequenceState& sequence) {
  if (absl::Status bad = CheckCached("prefilled", event.cached_tokens, sequence.base); !bad.ok()) {
    return bad;
  }
  if (event.first.has_value() == sequence.body->score_only) {
    return absl::DataLossError(event.first
                                   ? "a worker sampled a token of a prompt to be scored only"
                                   : "a worker computed a prompt and sampled no token");
  }
  return event.first ? CheckNext(*event.first, sequence) : absl::OkStatus();
}

absl::Status CheckNext(const TokenOutput& output, const SequenceState& sequence) {
  const int32_t next = sequence.NextPosition();
  if (sequence.finished || output.position < next) return absl::OkStatus();
  if (output.position > next) return SkippedError(next, output.position);
  return CheckOutput(output, sequence.body->sampling,
                     static_cast<int32_t>(sequence.emitted.size()) + 1);
}

}  // namespace baton
