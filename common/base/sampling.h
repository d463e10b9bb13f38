#pragma once

#include <cstdint>
#include <vector>

namespace baton {

struct LogitBias {
  int32_t token = 0;
  float bias = 0;
  bool operator==(const LogitBias&) const = default;
};

// How one sequence is sampled. Already validated: every field is in its range, tokens are below
// the vocabulary size. A draw is a pure function of (seed, choice, absolute position, logits),
// the penalties of (prompt, emitted tokens).
struct SamplingParams {
  float temperature = 1;           // 0 = greedy.
  int32_t top_k = 0;               // 0 = off.
  float top_p = 1;                 // (0, 1]; 1 = off.
  float min_p = 0;                 // [0, 1]; 0 = off.
  float repetition_penalty = 1;    // > 0; 1 = off. Over prompt and emitted tokens.
  float frequency_penalty = 0;     // Per emitted occurrence.
  float presence_penalty = 0;      // Per distinct emitted token.
  std::vector<LogitBias> logit_bias;  // Ascending by token, each token once.
  uint64_t seed = 0;
  uint32_t choice = 0;             // Index of this choice among the request's n.
  int32_t max_tokens = 16;         // >= 1: emitted tokens.
  int32_t min_tokens = 0;          // End tokens have probability 0 before this many were emitted.
  bool ignore_eos = false;         // The model's own end tokens neither stop nor are masked.
  std::vector<int32_t> stop_token_ids;  // Further end tokens; emitted as the last token.
  int32_t num_logprobs = -1;       // -1 = none, 0 = the chosen token's only, k = and the top k.
  int32_t num_prompt_logprobs = -1;  // The same for the prompt's tokens.
  bool logits_digest = false;      // Hash of each produced token's fp32 logits row.
  bool operator==(const SamplingParams&) const = default;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  bool operator==(const TokenLogprob&) const = default;
};

enum class FinishReason : uint8_t { kNone, kStop, kLength };

// One produced token.
struct TokenOutput {
  int32_t position = 0;  // Absolute: the first produced token has position prompt_length.
  int32_t token = 0;
  float logprob = 0;     // Natural log, of the raw distribution; meaningful if asked for.
  std::vector<TokenLogprob> top;  // Descending logprob, ties to the lower id.
  uint64_t logits_digest = 0;     // XXH3 of the raw fp32 logits row; meaningful if asked for.
  FinishReason finish = FinishReason::kNone;
  bool operator==(const TokenOutput&) const = default;
};

// Log probability of the prompt token at `position` given those before it (position >= 1).
struct PromptLogprob {
  int32_t position = 0;
  int32_t token = 0;
  float logprob = 0;
  int32_t rank = 0;  // 1 = the most likely token at this position.
  std::vector<TokenLogprob> top;
  bool operator==(const PromptLogprob&) const = default;
};

// Log probabilities that it holds: the token's and its alternatives'.
inline int32_t NumScores(const PromptLogprob& p) { return 1 + static_cast<int32_t>(p.top.size()); }

}  // namespace baton
