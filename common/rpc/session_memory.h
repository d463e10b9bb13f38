#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

namespace baton {

// What a process holds for peers that do not read; beyond it sessions end.
inline constexpr int64_t kMostUnsentMiB = 256;
inline constexpr int64_t kMostUnsentBytes = kMostUnsentMiB << 20;
// What a worker holds of calls that were opened and of which it has said nothing yet; beyond it
// they are refused.
inline constexpr int64_t kMostOpenMiB = 256;
inline constexpr int64_t kMostOpenBytes = kMostOpenMiB << 20;
// What a router holds of what workers have said and its node has not taken yet; beyond it sessions
// end.
inline constexpr int64_t kMostUntakenMiB = 512;
inline constexpr int64_t kMostUntakenBytes = kMostUntakenMiB << 20;

// What the sessions of a process hold together, of one kind: at most `limit` bytes, and one session
// a quarter of that, so that no peer takes the room of all others. Thread-safe; no method waits.
class SessionMemory {
 public:
  explicit SessionMemory(int64_t limit) : limit_(limit) {}

  // One session's part. What it still holds at its end is given back.
  class Share {
   public:
    explicit Share(std::shared_ptr<SessionMemory> memory);
    ~Share();
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // What ends its session; called at most once, by a thread that holds no lock of a session.
    void OnTooMuch(std::function<void()> end);

    // Whatever the limit. Negative: given back.
    void Add(int64_t bytes);
    // False, and nothing is added, if it would be more than may be. One thing always fits into the
    // part of a session that holds nothing.
    bool Take(int64_t bytes);

    int64_t bytes() const;
    // Of its own part: time to take nothing more that can be refused.
    bool IsHalfFull() const;

   private:
    friend SessionMemory;
    const std::shared_ptr<SessionMemory> memory_;
    // Under the memory's mutex.
    int64_t bytes_ = 0;
    bool is_counted_ = true;  // Its session was not told to end.
    std::function<void()> end_;
  };

  // While a session holds more than its part, or all together more than they may: ends the one that
  // holds the most. Not to be called under a session's lock.
  void EndLargest();

 private:
  void AddTo(Share& share, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t limit_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_set<Share*> shares_ ABSL_GUARDED_BY(mutex_);
  int64_t total_ ABSL_GUARDED_BY(mutex_) = 0;  // Of those that are counted.
};

// Adds so many bytes, which are given back with the last copy of what is returned.
std::shared_ptr<const void> HoldIn(std::shared_ptr<SessionMemory::Share> share, int64_t bytes);

}  // namespace baton
