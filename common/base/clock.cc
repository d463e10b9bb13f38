#include "common/base/clock.h"

#include <chrono>
#include <ctime>

namespace baton {

Time SteadyNow() { return Time(std::chrono::steady_clock::now().time_since_epoch()); }

int64_t UnixSeconds() { return std::time(nullptr); }

}  // namespace baton
