#include "router/reach_history.h"

#include <algorithm>

namespace baton {

void ReachHistory::Set(int32_t reach, Time now) {
  lost_.erase(lost_.begin(), lost_.upper_bound(std::max(reach_, reach)));
  if (reach < reach_) lost_[reach_] = now;
  reach_ = reach;
}

Time ReachHistory::LostAt(int32_t length) const {
  if (length <= reach_) return kNever;
  const auto it = lost_.lower_bound(length);
  return it == lost_.end() ? Time{} : it->second;
}

}  // namespace baton
