#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/functional/function_ref.h"
#include "common/base/running_time.h"
#include "common/base/this_thread.h"
#include "common/base/time.h"

namespace baton {

// How long ranks wait for each other: for much longer than they took between two meetings lately.
// A time that stands alone says nothing, as in LayerProgress (common/engine).
class Patience {
 public:
  static constexpr Duration kLeast = std::chrono::milliseconds(2500);
  // Of a group that has not met twice since its first step, which reads the weights into memory;
  // of one whose ranks get no core; and of any: between two meetings nobody looks at the clock, so
  // a process that was stopped there looks slow.
  static constexpr Duration kMost = std::chrono::seconds(20);
  static constexpr int kGaps = 20;
  // The last so many count, and at most so many before them.
  static constexpr int kWindow = 16;

  // A step begins: the group was idle before.
  void OnStart(Time now);

  // All ranks have met.
  void OnMeeting(Time now);

  Duration Limit() const;

 private:
  struct Longest {
    Duration first{};
    Duration second{};
    void Add(Duration gap);
  };

  int64_t steps_ = 0;
  int64_t count_ = 0;
  Time last_{};
  Longest recent_;
  Longest before_;
};

// One wait of a rank for the others, by looks at a clock and at how long each thread of the group
// has stood in line for a core so far.
class RankWait {
 public:
  RankWait(Time now, QueuedThreads queued) : time_(now), queued_(std::move(queued)) {}

  // Whether to wait on. A group of which a thread was kept from the cores for more than half of the
  // wait is starved, not hung, and healthy as soon as others leave it some. Many threads that each
  // stood in line for a little are neither.
  bool GoesOn(Time now, Duration limit, absl::FunctionRef<QueuedThreads()> queued);

  // Of this process's own running.
  Duration waited() const { return waited_; }

 private:
  RunningTime time_;
  const QueuedThreads queued_;
  Duration waited_{};
};

}  // namespace baton
