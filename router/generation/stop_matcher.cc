#include "router/generation/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace baton {

StopMatcher::Result StopMatcher::Add(std::string_view piece, bool may_stop) {
  const size_t seen = pending_.size();
  pending_.append(piece);
  const std::string* found = nullptr;
  size_t found_end = 0;
  for (const std::string& stop : *stop_) {
    if (!may_stop || pending_.size() < stop.size()) continue;
    // Only matches that end in the new piece: older ones were seen, or did not count.
    const size_t from = seen + 1 > stop.size() ? seen + 1 - stop.size() : 0;
    const size_t at = pending_.find(stop, from);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (found == nullptr || end < found_end || (end == found_end && stop.size() > found->size())) {
      found = &stop;
      found_end = end;
    }
  }
  Result result;
  if (found != nullptr) {
    result.text = pending_.substr(0, found_end - found->size());
    result.stop = *found;
    pending_.clear();
    return result;
  }
  const size_t held = HoldBack();
  result.text = pending_.substr(0, pending_.size() - held);
  pending_.erase(0, pending_.size() - held);
  return result;
}

std::string StopMatcher::Finish() { return std::exchange(pending_, {}); }

// Length of the longest end of the text that is a proper beginning of a stop string.
size_t StopMatcher::HoldBack() const {
  size_t held = 0;
  for (const std::string& stop : *stop_) {
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > held; --n) {
      if (std::string_view(pending_).substr(pending_.size() - n) ==
          std::string_view(stop).substr(0, n)) {
        held = n;
        break;
      }
    }
  }
  return held;
}

}  // namespace baton
