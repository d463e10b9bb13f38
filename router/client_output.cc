#include "router/client_output.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"
#include "router/event_checks.h"

namespace baton {

absl::Status ClientOutput::Tokens(SequenceState& sequence, std::span<TokenOutput> outputs) {
  ChoiceTokens fresh{.choice = sequence.choice, .outputs = {}};
  absl::Status bad;
  for (TokenOutput& output : outputs) {
    if (sequence.finished || output.position < sequence.NextPosition()) {
      ++counters_.stale_tokens;
      continue;
    }
    if (bad = CheckNext(output, sequence); !bad.ok()) break;
    sequence.emitted.push_back(output.token);
    sequence.finished = output.finish != FinishReason::kNone;
    fresh.outputs.push_back(std::move(output));  // Its numbers stay.
  }
  if (fresh.outputs.empty()) return bad;
  sequence.back.times = 0;
  charges_.Answered(sequence, std::ssize(fresh.outputs));
  outbox_.Emit(sequence.request, std::move(fresh));
  return bad;
}

absl::Status ClientOutput::Scores(SequenceState& sequence, std::span<PromptLogprob> scores) {
  BATON_CHECK(sequence.owes_score);
  PromptScored fresh{.prompt = sequence.prompt, .logprobs = {}};
  absl::Status bad;
  for (PromptLogprob& score : scores) {
    if (bad = CheckScore(score, sequence); !bad.ok()) break;
    sequence.call_score = std::max(sequence.call_score, score.position + 1);
    if (score.position < sequence.next_score) continue;
    BATON_CHECK(score.position == sequence.next_score);
    sequence.next_score = score.position + 1;
    fresh.logprobs.push_back(std::move(score));
  }
  if (!fresh.logprobs.empty()) outbox_.Emit(sequence.request, std::move(fresh));
  sequence.owes_score = sequence.next_score < sequence.PromptLength();
  return bad;
}

}  // namespace baton
