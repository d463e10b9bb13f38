#include "router/charges.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton {

void Charges::Expect(SequenceState& sequence, int64_t prompt_tokens) {
  const int64_t tokens = std::max<int64_t>(1, prompt_tokens);
  queue_.Charge(sequence.request, tokens - std::exchange(sequence.charged, tokens));
}

void Charges::Settle(SequenceState& sequence, int32_t cached_tokens) {
  BATON_CHECK(cached_tokens >= 0 && cached_tokens < sequence.base);
  if (!std::exchange(sequence.paid, true)) Expect(sequence, sequence.base - cached_tokens);
}

void Charges::GiveBack(SequenceState& sequence) {
  if (sequence.paid || !sequence.lost.empty()) return;
  queue_.Charge(sequence.request, -std::exchange(sequence.charged, 0));
}

void Charges::Answered(const SequenceState& sequence, int64_t tokens) {
  queue_.Charge(sequence.request, kAnswerWeight * tokens);
}

}  // namespace baton
