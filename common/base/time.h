#pragma once

#include <chrono>
#include <cstdint>

namespace baton {

// The clock of a node: steady, in nanoseconds, without a now(). Time is an argument everywhere;
// the edges, and those who drive a node or connections, read it from common/base/clock.h. Under
// simulation the same type is virtual time.
struct NodeClock {
  using rep = int64_t;
  using period = std::nano;
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<NodeClock>;
  static constexpr bool is_steady = true;
};

using Time = NodeClock::time_point;
using Duration = NodeClock::duration;

// A deadline that never comes.
inline constexpr Time kNever = Time::max();

inline double ToSeconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace baton
