#pragma once

#include <vector>

#include "router/generation/generation_request.h"
#include "router/openai/json.h"

namespace baton {

struct LogprobsFormat {
  int64_t top = 0;      // Alternatives to show.
  bool as_ids = false;  // Tokens are named "token_id:N"; also where there is no tokenizer.
  bool has_text = true;
};

// The legacy object of /v1/completions: tokens, token_logprobs, top_logprobs, text_offset. In
// top_logprobs, which always has the chosen token, no two ids are merged: the chosen token and
// then the likelier one keeps its text as key, another with equal text is "token_id:N".
Json CompletionLogprobs(const std::vector<TokenLogprobs>& tokens, const LogprobsFormat& format);

// {"content": [...]} of /v1/chat/completions.
Json ChatLogprobs(const std::vector<TokenLogprobs>& tokens, const LogprobsFormat& format);

// The `prompt_logprobs` extension: null, then {"<id>": {logprob, rank, decoded_token}} per token.
Json PromptLogprobsById(const std::vector<TokenLogprobs>& tokens, const LogprobsFormat& format);

}  // namespace baton
