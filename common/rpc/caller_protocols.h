#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/node/message.h"

namespace baton {

// Workers serve routers of every protocol, so that a cluster of any release is upgraded worker by
// worker, and its routers last. Before protocol 3 a decode worker had one endpoint, and in protocol
// 1 a prompt's scores came all at once.
inline constexpr int32_t kFirstProtocolOfScores = 2;
inline constexpr int32_t kFirstProtocolOfRanks = 3;

inline constexpr size_t kKeptCallers = 1024;

// Which connections to a worker ("ipv4:10.0.0.1:4711") are of routers of the first protocols, as
// their Hello has said: the calls on them do not tell. Of the last kKeptCallers such connections;
// all others speak the present protocol. Thread-safe.
class CallerProtocols {
 public:
  // Of a decode worker that takes K/V there. Where one endpoint does not hold all of it the log
  // says who is refused for that.
  explicit CallerProtocols(const std::vector<DataRank>& ranks = {});

  // FAILED_PRECONDITION: a router of that protocol cannot carry what it has to.
  absl::Status Check(int32_t protocol) const;
  // 0: a tool, which makes no such calls.
  void Note(const std::string& connection, int32_t protocol);
  int32_t Of(const std::string& connection) const;

 private:
  const bool fits_one_endpoint_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, int32_t> first_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> in_order_ ABSL_GUARDED_BY(mutex_);  // The oldest first.
};

}  // namespace baton
