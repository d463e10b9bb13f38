#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace baton {

inline constexpr size_t kKeptCallers = 1024;

// Which connections to a worker ("ipv4:10.0.0.1:4711") are of routers of the first protocols, as
// their Hello has said: the calls on them do not tell. Of the last kKeptCallers such connections;
// all others speak the present protocol. Thread-safe.
class CallerProtocols {
 public:
  // 0: a tool, which makes no such calls.
  void Note(const std::string& connection, int32_t protocol);
  int32_t Of(const std::string& connection) const;

 private:
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, int32_t> first_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> in_order_ ABSL_GUARDED_BY(mutex_);  // The oldest first.
};

}  // namespace baton
