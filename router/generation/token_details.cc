#include "router/generation/token_details.h"

#include <memory>
#include <utility>

#include "router/generation/utf8.h"

namespace baton {
namespace {

std::vector<TokenText> DescribeAll(const Tokenizer* tokenizer,
                                   const std::vector<TokenLogprob>& tokens) {
  std::vector<TokenText> result;
  result.reserve(tokens.size());
  for (const TokenLogprob& token : tokens) {
    result.push_back(DescribeToken(tokenizer, token.token, token.logprob));
  }
  return result;
}

}  // namespace

TokenText DescribeToken(const Tokenizer* tokenizer, int32_t id, float logprob) {
  TokenText token{.id = id, .logprob = logprob};
  if (tokenizer != nullptr) {
    token.bytes = tokenizer->TokenBytes(id);
    token.text = ToValidUtf8(token.bytes);
  }
  return token;
}

TokenLogprobs DescribeOutput(const Tokenizer* tokenizer, const TokenOutput& output,
                             int64_t text_offset) {
  return {.chosen = DescribeToken(tokenizer, output.token, output.logprob),
          .top = DescribeAll(tokenizer, output.top),
          .text_offset = text_offset};
}

PromptLogprobs DescribePrompt(const Tokenizer* tokenizer, const std::vector<int32_t>& prompt,
                              const std::vector<PromptLogprob>& logprobs,
                              bool skip_special_tokens) {
  PromptLogprobs result;
  result.tokens.reserve(prompt.size());
  const std::unique_ptr<StreamDecoder> decoder =
      tokenizer != nullptr ? tokenizer->NewStreamDecoder(skip_special_tokens) : nullptr;
  int64_t offset = 0;
  for (const int32_t id : prompt) {
    TokenLogprobs& token = result.tokens.emplace_back();
    token.chosen = DescribeToken(tokenizer, id, 0);
    token.has_logprob = false;
    token.text_offset = offset;
    if (decoder != nullptr) {
      // A token that the decoder cannot place only costs later offsets their exactness.
      offset += CodePoints(decoder->Push(id).value_or(""));
    }
  }
  for (const PromptLogprob& logprob : logprobs) {
    if (logprob.position < 1 || static_cast<size_t>(logprob.position) >= prompt.size()) {
      continue;
    }
    TokenLogprobs& token = result.tokens[logprob.position];
    token.chosen.logprob = logprob.logprob;
    token.has_logprob = true;
    token.rank = logprob.rank;
    token.top = DescribeAll(tokenizer, logprob.top);
  }
  return result;
}

}  // namespace baton
