#include "deploy/cli/restart_policy.h"

#include <algorithm>

namespace baton::cli {

Duration RestartPolicy::OnEnded(bool cleanly, Time now) {
  // A server that dies while it loads has not run, however long the loading took.
  if (cleanly || (ready_since_ && now - *ready_since_ >= kLongEnough)) crashes_ = 0;
  ready_since_.reset();
  if (!cleanly) ++crashes_;
  Duration delay = kFirstDelay;
  for (int i = 1; i < crashes_ && delay < kLongestDelay; ++i) delay *= 2;
  return std::min(delay, kLongestDelay);
}

}  // namespace baton::cli
