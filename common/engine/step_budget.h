#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/time.h"

namespace baton {

// How many tokens the next step may compute so that it is predicted to stay within a time budget.
// The prediction is a moving rate: tokens of the last telling step scaled by how its time compared
// with the budget, at most doubled per step. Bits do not depend on it.
class StepBudget {
 public:
  StepBudget(Duration budget, int32_t max_tokens)
      : budget_(budget), max_tokens_(max_tokens), tokens_(std::min(max_tokens, kFirstTokens)) {}

  // >= 1 and <= max_tokens.
  int32_t tokens() const { return tokens_; }

  // A step of `num_tokens` took `elapsed`.
  void Record(int32_t num_tokens, Duration elapsed) {
    if (elapsed.count() <= 0 || num_tokens <= 0) return;
    // A small step says little about a large one, unless it was too slow already.
    if (num_tokens * 2 < tokens_ && elapsed <= budget_) return;
    const double scale = ToSeconds(budget_) / ToSeconds(elapsed);
    const double predicted = std::min(num_tokens * scale, 2.0 * tokens_);
    tokens_ = static_cast<int32_t>(std::clamp(predicted, 1.0, static_cast<double>(max_tokens_)));
  }

 private:
  static constexpr int32_t kFirstTokens = 64;  // Before anything was measured.
  Duration budget_;
  int32_t max_tokens_;
  int32_t tokens_;
};

}  // namespace baton
