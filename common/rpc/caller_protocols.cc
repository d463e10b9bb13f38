#include "common/rpc/caller_protocols.h"

#include <algorithm>

#include "common/base/protocol_version.h"

namespace baton {

void CallerProtocols::Note(const std::string& connection, int32_t protocol) {
  absl::MutexLock lock(&mutex_);
  if (first_.erase(connection) > 0) in_order_.erase(std::ranges::find(in_order_, connection));
  if (protocol == 0 || protocol >= kFirstProtocolOfRanks) return;
  first_[connection] = protocol;
  in_order_.push_back(connection);
  if (in_order_.size() <= kKeptCallers) return;
  first_.erase(in_order_.front());
  in_order_.pop_front();
}

int32_t CallerProtocols::Of(const std::string& connection) const {
  absl::MutexLock lock(&mutex_);
  const auto it = first_.find(connection);
  return it == first_.end() ? kProtocolVersion : it->second;
}

}  // namespace baton
