#include "deploy/cli/restart_policy.h"

namespace baton::cli {

std::optional<Duration> RestartPolicy::OnEnded(bool cleanly, Time now) {
  // A server that dies while it loads has not run, however long the loading took.
  if (cleanly || (ready_since_ && now - *ready_since_ >= kLongEnough)) crashes_ = 0;
  ready_since_.reset();
  if (!cleanly) ++crashes_;
  if (crashes_ >= kMaxCrashes) return std::nullopt;
  return crashes_ == 0 ? kFirstDelay : kFirstDelay * (1 << (crashes_ - 1));
}

}  // namespace baton::cli
