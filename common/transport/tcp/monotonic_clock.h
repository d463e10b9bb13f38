#pragma once

#include <chrono>

#include "common/base/time.h"

namespace baton {

// The machine's steady clock, for the progress thread alone.
inline Time MonotonicNow() {
  return Time(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

}  // namespace baton
