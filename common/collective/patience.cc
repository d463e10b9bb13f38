#include "common/collective/patience.h"

#include <algorithm>
#include <utility>

namespace baton {

void Patience::OnStart(Time now) {
  ++steps_;
  last_ = now;
}

void Patience::OnMeeting(Time now) {
  const Duration gap = now - std::exchange(last_, now);
  if (steps_ < 2) return;
  if (++count_ % kWindow == 0) before_ = std::exchange(recent_, Longest());
  recent_.Add(gap);
}

Duration Patience::Limit() const {
  if (count_ < 2) return kMost;
  Longest all = recent_;
  all.Add(before_.first);
  all.Add(before_.second);
  const Duration limit = kGaps * all.second;
  return std::max(kLeast, std::min(kMost, limit));
}

void Patience::Longest::Add(Duration gap) {
  second = std::max(second, std::min(first, gap));
  first = std::max(first, gap);
}

bool RankWait::GoesOn(Time now, Duration limit, absl::FunctionRef<QueuedThreads()> queued) {
  waited_ = time_.Look(now);
  if (waited_ < limit) return true;
  if (waited_ >= Patience::kMost) return false;
  Duration longest{};
  for (const auto& [thread, total] : queued()) {
    const auto before = queued_.find(thread);
    const Duration stood = before == queued_.end() ? total : total - before->second;
    longest = std::max(longest, stood);
  }
  return longest > waited_ / 2;
}

}  // namespace baton
