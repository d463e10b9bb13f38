#include "deploy/cli/clock.h"

#include <chrono>

namespace baton::cli {

Time Now() {
  return Time(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

}  // namespace baton::cli
