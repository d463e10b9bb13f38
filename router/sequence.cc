#include "router/sequence.h"

namespace baton {

// The prefill worker while its call is open, which computes and sends; then, and in all other
// states, the decode worker.
const SequenceState::Side& SequenceState::OwingSide() const {
  return state == State::kPrefilling && prefill.call != 0 ? prefill : decode;
}

RouteNeed SequenceState::Need() const {
  const int32_t answer = body->score_only ? 0 : body->sampling.max_tokens;
  const int32_t total = PromptLength() + answer;
  const int32_t to_prefill = Holds() ? base : NextPosition();
  // One token is sampled from the prefill itself, a scored prompt needs none.
  // What the client has seen of an answer binds the rest of it to the same bits.
  const bool is_bound = Holds() || !emitted.empty();
  return {.prompt_tokens = to_prefill,
          .total_tokens = total,
          .needs_decode = !finished && total - to_prefill > 1,
          .wants_scores = owes_score || body->score_only,
          .group = is_bound ? group : 0};
}

std::vector<int32_t> SequenceState::BaseTokens() const {
  std::vector<int32_t> tokens = body->prompts[prompt];
  tokens.insert(tokens.end(), emitted.begin(), emitted.begin() + (base - PromptLength()));
  return tokens;
}

SamplingParams SequenceState::Sampling() const {
  SamplingParams params = body->sampling;
  params.choice = static_cast<uint32_t>(choice % body->num_choices);
  if (!owes_score) params.num_prompt_logprobs = -1;
  return params;
}

}  // namespace baton
