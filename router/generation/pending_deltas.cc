#include "router/generation/pending_deltas.h"

#include <algorithm>
#include <utility>

namespace baton {
namespace {

template <typename T>
void AppendTo(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <typename T>
std::vector<T> TakeFirst(std::vector<T>& from, size_t count) {
  const auto end = from.begin() + static_cast<std::ptrdiff_t>(std::min(count, from.size()));
  std::vector<T> first(from.begin(), end);
  from.erase(from.begin(), end);
  return first;
}

}  // namespace

void PendingDeltas::Append(ChoiceDelta delta) {
  const auto index = static_cast<size_t>(delta.choice);
  Pending& pending = choices_[index];
  if (!std::exchange(pending.waits, true)) {
    order_.push_back(index);
    pending.text_ends.assign(delta.tokens.size(), 0);
    pending.delta = std::move(delta);
  } else {
    ChoiceDelta& to = pending.delta;
    pending.text_ends.resize(to.tokens.size() + delta.tokens.size(), to.text.size());
    to.text += delta.text;
    AppendTo(to.tokens, delta.tokens);
    to.logprobs.Append(delta.logprobs);
    AppendTo(to.logits_digests, delta.logits_digests);
    to.finish = delta.finish;
    to.stop_string = std::move(delta.stop_string);
    to.stop_token = delta.stop_token;
  }
  // Which of its tokens brought the text is not told: the last one.
  if (!pending.text_ends.empty()) {
    pending.text_ends.back() = pending.delta.text.size();
  }
}

size_t PendingDeltas::PieceTokens(const ChoiceDelta& delta) {
  size_t scores = 0;
  const size_t most = std::min(delta.tokens.size(), kMaxTokens);
  for (size_t i = 0; i < std::min(most, delta.logprobs.size()); ++i) {
    scores += 1 + delta.logprobs[i].top.size();
    if (scores > kMaxScores && i > 0) {
      return i;
    }
  }
  return most;
}

ChoiceDelta PendingDeltas::Split(Pending& pending, size_t num_tokens) {
  ChoiceDelta& rest = pending.delta;
  ChoiceDelta piece{.choice = rest.choice, .prompt = rest.prompt};
  const size_t text_end = pending.text_ends[num_tokens - 1];
  piece.text = rest.text.substr(0, text_end);
  rest.text.erase(0, text_end);
  piece.tokens = TakeFirst(rest.tokens, num_tokens);
  piece.logprobs = rest.logprobs.TakeFirst(num_tokens);
  piece.logits_digests = TakeFirst(rest.logits_digests, num_tokens);
  TakeFirst(pending.text_ends, num_tokens);
  for (size_t& end : pending.text_ends) {
    end -= text_end;
  }
  return piece;
}

ChoiceDelta PendingDeltas::Take() {
  const size_t index = order_.front();
  order_.pop_front();
  Pending& pending = choices_[index];
  const size_t num_tokens = PieceTokens(pending.delta);
  if (num_tokens < pending.delta.tokens.size()) {
    order_.push_back(index);
    return Split(pending, num_tokens);
  }
  pending.waits = false;
  pending.text_ends.clear();
  return std::exchange(pending.delta, {});
}

}  // namespace baton
