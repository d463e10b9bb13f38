#pragma once

#include <string>

#include "router/generation/generation_request.h"
#include "router/openai/json.h"

namespace baton {

struct LogprobsFormat {
  int64_t top = 0;      // Alternatives to show.
  bool as_ids = false;  // Tokens are named "token_id:N"; also where there is no tokenizer.
  bool has_text = true;
};

// A log probability as it is written: JSON has no infinity.
std::string LogprobText(float logprob);

std::string TokenName(const TokenText& token, const LogprobsFormat& format);

// What /v1/completions says of one token in top_logprobs, which always has the chosen token. No two
// ids are merged: the chosen token and then the likelier one keeps its text as key, another with
// equal text is "token_id:N". Null for a token without log probability.
Json CompletionTop(const TokenLogprobs& token, const LogprobsFormat& format);

// One item of `content` in /v1/chat/completions.
Json ChatItem(const TokenLogprobs& token, const LogprobsFormat& format);

// One item of prompt_logprobs: an object by token id; null for the first token.
Json PromptItem(const TokenLogprobs& token, const LogprobsFormat& format);

}  // namespace baton
