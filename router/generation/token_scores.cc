#include "router/generation/token_scores.h"

#include <algorithm>

namespace baton {

void TokenScores::Reserve(size_t num_tokens, size_t num_top) {
  rows_.reserve(num_tokens);
  top_.reserve(num_tokens * num_top);
}

void TokenScores::Add(const Token& token) {
  rows_.push_back({.chosen = token.chosen,
                   .rank = token.has_logprob ? token.rank : -1,
                   .text_offset = static_cast<int32_t>(token.text_offset),
                   .num_top = static_cast<int32_t>(token.top.size()),
                   .top_begin = static_cast<uint32_t>(top_.size())});
  top_.insert(top_.end(), token.top.begin(), token.top.end());
}

void TokenScores::Append(const TokenScores& from) {
  for (size_t i = 0; i < from.size(); ++i) Add(from[i]);
}

TokenScores TokenScores::Slice(size_t begin, size_t end) const {
  TokenScores slice;
  for (size_t i = begin; i < std::min(end, size()); ++i) slice.Add((*this)[i]);
  return slice;
}

TokenScores::Token TokenScores::operator[](size_t i) const {
  const Row& row = rows_[i];
  return {.chosen = row.chosen,
          .has_logprob = row.rank >= 0,
          .rank = row.rank >= 0 ? row.rank : 0,
          .text_offset = row.text_offset,
          .top = std::span(top_).subspan(row.top_begin, static_cast<size_t>(row.num_top))};
}

}  // namespace baton
