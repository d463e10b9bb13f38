#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/sampling.h"
#include "router/generation/generation_request.h"
#include "router/generation/token_scores.h"
#include "router/generation/tokenizer.h"

namespace baton {

// Adds text and bytes to a token id. `tokenizer` may be null: both stay empty.
TokenText DescribeToken(const Tokenizer* tokenizer, int32_t id, float logprob);

// A token with its alternatives, as a client sees it.
TokenLogprobs DescribeScores(const Tokenizer* tokenizer, const TokenScores::Token& token);

// Collects the log probabilities of one prompt, piece by piece: one entry per token of it. Offsets
// count the text that the prompt's tokens decode to.
class PromptScorer {
 public:
  // `decoder` may be null: all offsets are 0. Has room for `num_top` alternatives of each token.
  PromptScorer(std::vector<int32_t> prompt, int32_t num_top,
               std::unique_ptr<StreamDecoder> decoder);

  // False if it does not go on where the piece before ended.
  bool Add(const std::vector<PromptLogprob>& piece);
  bool complete() const { return scores_.size() == prompt_.size(); }
  std::shared_ptr<const TokenScores> Finish();

 private:
  void AddToken(TokenScores::Token token);

  const std::vector<int32_t> prompt_;
  const std::unique_ptr<StreamDecoder> decoder_;
  TokenScores scores_;
  int64_t offset_ = 0;
};

}  // namespace baton
