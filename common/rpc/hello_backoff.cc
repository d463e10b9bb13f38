#include "common/rpc/hello_backoff.h"

#include <algorithm>

namespace baton {

Duration HelloBackoff::OnEnd(bool had_begun, Time now) {
  if (had_begun) wait_ = std::min(wait_, kHurryWait);
  const Duration wait = had_begun ? std::max(wait_, LeastBehindGood(now)) : wait_;
  wait_ = std::clamp(2 * wait_, kLeast, kMost);
  return wait;
}

Duration HelloBackoff::LeastBehindGood(Time now) {
  back_at_ = std::max(back_at_, now) + kHurryWindow / kHurried;
  if (back_at_ <= now + kHurryWindow) return hurry_wait_ = Duration::zero();
  back_at_ = now + kHurryWindow;  // The next one that comes back is for whoever ends then.
  return hurry_wait_ = std::clamp(2 * hurry_wait_, 2 * kHurryWait, kMostHurryWait);
}

}  // namespace baton
