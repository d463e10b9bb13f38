#pragma once

#include "common/base/time.h"

namespace baton {

// How long a router waits before it says Hello to a worker again.
//
// Behind a session that had begun well it is in a hurry: sequences wait to return there, for a
// second. But a worker that breaks each session soon after it has begun is not asked without end:
// each such end takes one from a store of kHurried, which comes back within kHurryWindow, and where
// none is left the wait grows to kMostHurryWait, in which a sequence can still return.
class HelloBackoff {
 public:
  static constexpr Duration kLeast = std::chrono::milliseconds(100);
  static constexpr Duration kMost = std::chrono::milliseconds(1000);
  static constexpr Duration kHurryWait = std::chrono::milliseconds(20);
  static constexpr Duration kMostHurryWait = std::chrono::milliseconds(160);
  static constexpr int kHurried = 8;
  static constexpr Duration kHurryWindow = std::chrono::seconds(10);

  // A connection, or the try to make one, has ended; `had_begun`: with a session in which something
  // good had come.
  Duration OnEnd(bool had_begun, Time now);
  // The connection is good: the next Hello is said at once.
  void OnProven() { wait_ = Duration::zero(); }

 private:
  Duration LeastBehindGood(Time now);

  Duration wait_{};        // Before the next Hello.
  Duration hurry_wait_{};  // At least, behind a session that had begun.
  Time back_at_{};         // Then the store is full again.
};

}  // namespace baton
