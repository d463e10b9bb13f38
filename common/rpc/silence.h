#pragma once

#include <atomic>

#include "common/base/time.h"

namespace baton {

inline constexpr Duration kSweepInterval = std::chrono::seconds(1);
inline constexpr Duration kBeatInterval = std::chrono::seconds(1);  // Of a worker, on each call.
inline constexpr int kMaxSilentSweeps = 5;

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
