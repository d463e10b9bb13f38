#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/rpc/worker_links.h"

namespace baton {

// Workers without links: the test says who is silent since when.
class FakeWorkerSet : public WorkerSet {
 public:
  std::optional<int32_t> Add(const WorkerAddress& address) override {
    absl::MutexLock lock(&mutex);
    if (static_cast<int>(addresses.size()) >= room) return std::nullopt;
    addresses[next] = address;
    return next++;
  }
  bool RemoveIfSilentSince(int32_t worker, Time time) override {
    absl::MutexLock lock(&mutex);
    const auto connected = connected_until.find(addresses.at(worker).address);
    if (connected != connected_until.end() && connected->second > time) return false;
    addresses.erase(worker);
    return true;
  }

  std::vector<std::string> Listed(Role role) {
    absl::MutexLock lock(&mutex);
    std::vector<std::string> listed;
    for (const auto& [worker, address] : addresses) {
      if (address.role == role) listed.push_back(address.address);
    }
    std::sort(listed.begin(), listed.end());
    return listed;
  }

  absl::Mutex mutex;
  std::map<int32_t, WorkerAddress> addresses;
  std::map<std::string, Time> connected_until;  // Absent: never.
  int room = 1 << 20;
  int32_t next = 0;
};

}  // namespace baton
