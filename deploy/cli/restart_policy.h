#pragma once

#include <optional>

#include "common/base/time.h"

namespace baton::cli {

// When an ended server is started again, and when it is given up. A crash is an end with another
// exit code than 0. Time is an argument.
class RestartPolicy {
 public:
  static constexpr int kMaxCrashes = 5;  // In a row.
  static constexpr Duration kFirstDelay = std::chrono::milliseconds(200);
  static constexpr Duration kLongEnough = std::chrono::seconds(30);

  // The server accepts work since `now`.
  void OnReady(Time now) { ready_since_ = now; }

  // The server ended: how long to wait before it is started again. kFirstDelay, doubled by each
  // crash in a row; a clean end, or a crash kLongEnough after the server was ready, begins a new
  // row. nullopt: the kMaxCrashes-th crash in a row, give it up.
  std::optional<Duration> OnEnded(bool cleanly, Time now);

  int crashes() const { return crashes_; }  // In the present row.

 private:
  std::optional<Time> ready_since_;
  int crashes_ = 0;
};

}  // namespace baton::cli
