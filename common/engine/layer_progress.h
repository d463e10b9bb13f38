#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/time.h"

namespace baton {

// What a worker tells of its steps: a count that moves while it computes, and the longest that the
// count has stood. A peer calls it hung when the count stands for much longer than that.
class LayerProgress {
 public:
  void OnStepStart(Time now) { last_ = now; }
  // A layer was written, or the step has ended.
  void OnMark(Time now) {
    ++count_;
    longest_ = std::max(longest_, now - last_);
    last_ = now;
  }

  uint64_t count() const { return count_; }
  Duration longest() const { return longest_; }

 private:
  uint64_t count_ = 0;
  Duration longest_{};
  Time last_{};
};

}  // namespace baton
