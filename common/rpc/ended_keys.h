#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

namespace baton {

inline constexpr size_t kKeptEndedKeys = 1024;

// The keys of the last sessions of which a router has said that they have ended. Nothing is taken
// of one whose first message comes later than that. Thread-safe.
class EndedKeys {
 public:
  void Add(uint32_t key) {
    absl::MutexLock lock(&mutex_);
    if (!keys_.insert(key).second) return;  // Routers name theirs again and again.
    in_order_.push_back(key);
    if (in_order_.size() <= kKeptEndedKeys) return;
    keys_.erase(in_order_.front());
    in_order_.pop_front();
  }

  bool Contains(uint32_t key) const {
    absl::MutexLock lock(&mutex_);
    return keys_.contains(key);
  }

 private:
  mutable absl::Mutex mutex_;
  absl::flat_hash_set<uint32_t> keys_ ABSL_GUARDED_BY(mutex_);
  std::deque<uint32_t> in_order_ ABSL_GUARDED_BY(mutex_);  // The oldest first.
};

}  // namespace baton
