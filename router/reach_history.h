#pragma once

#include <cstdint>
#include <map>

#include "common/base/time.h"

namespace baton {

// How long a sequence some workers take together, and since when they no longer take longer ones.
class ReachHistory {
 public:
  // From `now` on they take up to `reach` tokens; 0 = nothing.
  void Set(int32_t reach, Time now);

  int32_t reach() const { return reach_; }

  // Since when no sequence of `length` tokens is taken: kNever if it is taken now, the epoch if it
  // never was.
  Time LostAt(int32_t length) const;

 private:
  int32_t reach_ = 0;
  // What was taken once and is not now: lengths up to the key, above the one before, until then.
  std::map<int32_t, Time> lost_;
};

}  // namespace baton
