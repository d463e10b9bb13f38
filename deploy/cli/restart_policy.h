#pragma once

#include <optional>

#include "common/base/time.h"

namespace baton::cli {

// When an ended server is started again; it always is. A crash is an end with another exit code
// than 0. Time is an argument.
class RestartPolicy {
 public:
  static constexpr Duration kFirstDelay = std::chrono::milliseconds(200);
  static constexpr Duration kLongestDelay = std::chrono::seconds(30);
  static constexpr Duration kLongEnough = std::chrono::seconds(30);

  // The server accepts work since `now`.
  void OnReady(Time now) { ready_since_ = now; }

  // The server ended: how long to wait before it is started again. kFirstDelay, doubled by each
  // crash in a row up to kLongestDelay; a clean end, or a crash kLongEnough after the server was
  // ready, begins a new row.
  Duration OnEnded(bool cleanly, Time now);

  int crashes() const { return crashes_; }  // In the present row.

 private:
  std::optional<Time> ready_since_;
  int crashes_ = 0;
};

}  // namespace baton::cli
