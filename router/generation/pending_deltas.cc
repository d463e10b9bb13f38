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
std::vector<T> SliceOf(const std::vector<T>& from, size_t begin, size_t end) {
  end = std::min(end, from.size());
  return begin < end ? std::vector<T>(from.begin() + static_cast<std::ptrdiff_t>(begin),
                                      from.begin() + static_cast<std::ptrdiff_t>(end))
                     : std::vector<T>();
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
  if (!pending.text_ends.empty()) pending.text_ends.back() = pending.delta.text.size();
}

size_t PendingDeltas::PieceEnd(const Pending& pending) {
  const ChoiceDelta& delta = pending.delta;
  size_t scores = 0;
  const size_t most = std::min(delta.tokens.size(), pending.taken + kMaxTokens);
  for (size_t i = pending.taken; i < std::min(most, delta.logprobs.size()); ++i) {
    scores += 1 + delta.logprobs[i].top.size();
    if (scores > kMaxScores && i > pending.taken) return i;
  }
  return most;
}

// Of the tokens from `taken` on; what is told of the end is not theirs.
ChoiceDelta PendingDeltas::Slice(const Pending& pending, size_t end) {
  const ChoiceDelta& from = pending.delta;
  const size_t begin = pending.taken;
  const size_t text_begin = begin > 0 ? pending.text_ends[begin - 1] : 0;
  return {.choice = from.choice,
          .prompt = from.prompt,
          .text = from.text.substr(text_begin, pending.text_ends[end - 1] - text_begin),
          .tokens = SliceOf(from.tokens, begin, end),
          .logprobs = from.logprobs.Slice(begin, end),
          .logits_digests = SliceOf(from.logits_digests, begin, end)};
}

ChoiceDelta PendingDeltas::Take() {
  const size_t index = order_.front();
  order_.pop_front();
  Pending& pending = choices_[index];
  const size_t end = PieceEnd(pending);
  if (end < pending.delta.tokens.size()) {
    order_.push_back(index);
    ChoiceDelta piece = Slice(pending, end);
    pending.taken = end;
    if (end > pending.delta.tokens.size() / 2) Forget(pending);
    return piece;
  }
  if (pending.taken > 0) Forget(pending);
  return std::exchange(pending, {}).delta;
}

// What has left. Less than that is left each time, so that this is linear in all.
void PendingDeltas::Forget(Pending& pending) {
  ChoiceDelta& from = pending.delta;
  const size_t gone = pending.text_ends[pending.taken - 1];
  ChoiceDelta rest = Slice(pending, from.tokens.size());
  rest.finish = from.finish;
  rest.stop_string = std::move(from.stop_string);
  rest.stop_token = from.stop_token;
  from = std::move(rest);
  pending.text_ends.erase(pending.text_ends.begin(), pending.text_ends.begin() + pending.taken);
  for (size_t& end : pending.text_ends) end -= gone;
  pending.taken = 0;
}

}  // namespace baton
