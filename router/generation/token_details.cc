#include "router/generation/token_details.h"

#include <memory>
#include <span>
#include <utility>

#include "router/generation/utf8.h"

namespace baton {
namespace {

std::vector<TokenText> DescribeAll(const Tokenizer* tokenizer,
                                   std::span<const TokenLogprob> tokens) {
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

TokenLogprobs DescribeScores(const Tokenizer* tokenizer, const TokenScores::Token& token) {
  return {.chosen = DescribeToken(tokenizer, token.chosen.token, token.chosen.logprob),
          .has_logprob = token.has_logprob,
          .rank = token.rank,
          .top = DescribeAll(tokenizer, token.top),
          .text_offset = token.text_offset};
}

PromptScorer::PromptScorer(std::vector<int32_t> prompt, int32_t num_top,
                           std::unique_ptr<StreamDecoder> decoder)
    : prompt_(std::move(prompt)), decoder_(std::move(decoder)) {
  scores_.Reserve(prompt_.size(), static_cast<size_t>(num_top));
  AddToken({.has_logprob = false});
}

void PromptScorer::AddToken(TokenScores::Token token) {
  token.chosen.token = prompt_[scores_.size()];
  token.text_offset = offset_;
  scores_.Add(token);
  if (decoder_ != nullptr) {
    // A token that the decoder cannot place only costs later offsets their exactness.
    offset_ += CodePoints(decoder_->Push(token.chosen.token).value_or(""));
  }
}

bool PromptScorer::Add(const std::vector<PromptLogprob>& piece) {
  for (const PromptLogprob& one : piece) {
    if (complete() || one.position != static_cast<int32_t>(scores_.size())) return false;
    AddToken({.chosen = {.logprob = one.logprob}, .rank = one.rank, .top = one.top});
  }
  return true;
}

std::shared_ptr<const TokenScores> PromptScorer::Finish() {
  return std::make_shared<const TokenScores>(std::move(scores_));
}

}  // namespace baton
