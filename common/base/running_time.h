#pragma once

#include <algorithm>
#include <chrono>

#include "common/base/time.h"

namespace baton {

// How long this process has run on, by looks at a clock: of a time in which it was stopped, or did
// not look, little counts.
class RunningTime {
 public:
  explicit RunningTime(Time now) : last_(now) {}

  Duration Look(Time now) {
    total_ += std::min<Duration>(now - last_, kLongestSlice);
    last_ = now;
    return total_;
  }

 private:
  static constexpr Duration kLongestSlice = std::chrono::milliseconds(100);

  Time last_;
  Duration total_{};
};

}  // namespace baton
