#pragma once

#include <atomic>
#include <chrono>
#include <functional>

#include "common/base/time.h"

namespace baton {

inline constexpr Duration kSweepInterval = std::chrono::seconds(1);
inline constexpr Duration kBeatInterval = std::chrono::seconds(1);  // Of a worker, on each call.
inline constexpr int kMaxSilentSweeps = 5;
// Signs of life speak for the node: while it has been in a turn for longer its process gives none.
inline constexpr Duration kMostTurnWithSigns = std::chrono::seconds(5);
// `in_turn_for`: for how long it has been in its turn; empty: it is not looked at.
inline bool NodeLives(const std::function<Duration()>& in_turn_for) {
  return !in_turn_for || in_turn_for() <= kMostTurnWithSigns;
}

// How long a stream has been silent, in sweeps: more than kMaxSilentSweeps of them without anything
// read are too many. Thread-safe.
class Silence {
 public:
  // `ok` false: the stream has ended, and its end follows; or a message could not be read at all,
  // and nothing follows: the second sweep from then on is too many.
  void OnRead(bool ok);
  // One more sweep; true: it was silent for too long.
  bool Sweep();

 private:
  std::atomic<int> sweeps_ = 0;
  std::atomic<bool> is_unread_ = false;
};

}  // namespace baton
