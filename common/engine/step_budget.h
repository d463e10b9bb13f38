#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/time.h"

namespace baton {

// How many tokens the next step may compute so that it is predicted to stay within a time budget.
// The prediction is a moving rate: tokens of the last telling step scaled by how its time compared
// with the budget, at most doubled per step. Never below kLeastTokens: a step reads all weights,
// however few its tokens, so that shorter ones would hardly take less time. Bits do not depend on
// it.
class StepBudget {
 public:
  StepBudget(Duration budget, int32_t max_tokens)
      : budget_(budget), max_tokens_(max_tokens), tokens_(std::min(max_tokens, kFirstTokens)) {}

  // >= min(kLeastTokens, max_tokens) and <= max_tokens.
  int32_t tokens() const { return tokens_; }

  // A step of `num_tokens` took `elapsed`.
  void Record(int32_t num_tokens, Duration elapsed) {
    if (elapsed.count() <= 0 || num_tokens <= 0) return;
    const double rate = num_tokens / ToSeconds(elapsed);
    // A small step says little about a large one, unless it was too slow already. Then it may have
    // been so for what it computed beside them: that is no slower rate.
    const bool is_small = num_tokens * 2 < tokens_;
    if (is_small) small_rate_ = std::max(small_rate_, rate);
    if (is_small && elapsed <= budget_) return;
    if (!is_small) rate_ += (rate_ == 0 ? 1 : kNewRate) * (rate - rate_);
    const double scale = ToSeconds(budget_) / ToSeconds(elapsed);
    const double predicted = std::min(num_tokens * scale, 2.0 * tokens_);
    const int32_t least = std::min(kLeastTokens, max_tokens_);
    tokens_ = std::clamp(static_cast<int32_t>(predicted), least, max_tokens_);
  }

  // Tokens a second that steps which are not small computed of late; 0 before the first.
  double rate() const { return rate_; }
  // The same; before the first, that of the fastest small one, which is less than what they will
  // reach.
  double least_rate() const { return rate_ > 0 ? rate_ : small_rate_; }

  static constexpr int32_t kLeastTokens = 32;

 private:
  static constexpr double kNewRate = 0.25;     // Share of the last step in the rate.
  static constexpr int32_t kFirstTokens = 64;  // Before anything was measured.
  Duration budget_;
  int32_t max_tokens_;
  int32_t tokens_;
  double rate_ = 0;
  double small_rate_ = 0;
};

}  // namespace baton
