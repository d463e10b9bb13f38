#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/sampling.h"

namespace baton {

// Log probabilities of tokens in a row, as numbers: their text is made when they are written, so
// that an answer that waits for its reader is small.
class TokenScores {
 public:
  struct Token {
    TokenLogprob chosen;
    bool has_logprob = true;  // The first token of a prompt has none.
    int32_t rank = 0;         // Prompt tokens only; 1 = the most likely.
    int64_t text_offset = 0;  // Code points before it: of the echo (if any) and the answer.
    std::span<const TokenLogprob> top;  // Descending; may hold the chosen one too.
  };

  // Room for so many tokens with so many alternatives each.
  void Reserve(size_t num_tokens, size_t num_top);
  void Add(const Token& token);
  void Append(const TokenScores& from);
  // A copy of the tokens [begin, end), as far as there are so many.
  TokenScores Slice(size_t begin, size_t end) const;

  Token operator[](size_t i) const;  // Valid until the next change.
  size_t size() const { return rows_.size(); }
  bool empty() const { return rows_.empty(); }

  // What a token with so many alternatives takes.
  static constexpr int64_t BytesPerToken(int64_t num_top) {
    return static_cast<int64_t>(sizeof(Row)) +
           num_top * static_cast<int64_t>(sizeof(TokenLogprob));
  }

 private:
  struct Row {
    TokenLogprob chosen;
    int32_t rank = 0;  // -1: no log probability.
    int32_t text_offset = 0;
    int32_t num_top = 0;
    uint32_t top_begin = 0;
  };
  std::vector<Row> rows_;
  std::vector<TokenLogprob> top_;
};

}  // namespace baton
