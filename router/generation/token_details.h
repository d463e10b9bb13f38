#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/generation.h"
#include "router/generation/generation_request.h"
#include "router/generation/tokenizer.h"

namespace baton {

// Adds text and bytes to a token id. `tokenizer` may be null: both stay empty.
TokenText DescribeToken(const Tokenizer* tokenizer, int32_t id, float logprob);

// A produced token with its alternatives, as a client sees it.
TokenLogprobs DescribeOutput(const Tokenizer* tokenizer, const TokenOutput& output,
                             int64_t text_offset);

// One entry per token of `prompt`; `logprobs` has positions 1 .. prompt.size() - 1. The offsets
// count the text that the prompt's tokens decode to.
PromptLogprobs DescribePrompt(const Tokenizer* tokenizer, const std::vector<int32_t>& prompt,
                              const std::vector<PromptLogprob>& logprobs, bool skip_special_tokens);

}  // namespace baton
