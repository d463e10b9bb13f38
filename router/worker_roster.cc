#include "router/worker_roster.h"

#include <algorithm>
#include <iterator>

#include "common/telemetry/log.h"

namespace baton {
namespace {

std::set<std::pair<Role, std::string>> KeysOf(const std::vector<WorkerAddress>& workers) {
  std::set<std::pair<Role, std::string>> keys;
  for (const WorkerAddress& worker : workers) keys.emplace(worker.role, worker.address);
  return keys;
}

const char* Word(Role role) { return role == Role::kPrefill ? "prefill" : "decode"; }

}  // namespace

WorkerRoster::WorkerRoster(std::vector<Role> names, const std::vector<WorkerAddress>& fixed,
                           WorkerSet* workers)
    : fixed_(KeysOf(fixed)),
      share_((kMaxWorkers - std::min(kMaxWorkers, fixed.size())) /
             std::max<size_t>(1, names.size())),
      workers_(workers) {
  for (const Role role : names) names_.push_back({.role = role});
}

bool WorkerRoster::IsNamed(const Key& key) const {
  return std::any_of(names_.begin(), names_.end(), [&key](const Name& name) {
    return name.role == key.first && name.addresses.contains(key.second);
  });
}

void WorkerRoster::OnAnswer(size_t index, std::vector<std::string> addresses, Time now) {
  Name& name = names_[index];
  name.addresses = {std::make_move_iterator(addresses.begin()),
                    std::make_move_iterator(addresses.end())};
  // Who goes makes room first.
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto& [key, entry] = *it;
    if (IsNamed(key) || !workers_->RemoveIfSilentSince(entry.worker, now - kForgetAfter)) {
      ++it;
      continue;
    }
    Log(LogLevel::kInfo, "worker is forgotten",
        {{"role", Word(key.first)}, {"address", key.second}});
    --names_[entry.name].num_listed;
    it = entries_.erase(it);
  }
  name.num_left_out = 0;
  for (const std::string& address : name.addresses) {
    const Key key{name.role, address};
    if (fixed_.contains(key) || entries_.contains(key)) continue;
    // Nothing is added either while those that go have not let go of their indices.
    const std::optional<int32_t> worker =
        name.num_listed < share_ ? workers_->Add({.role = name.role, .address = address})
                                 : std::nullopt;
    if (!worker) {
      ++name.num_left_out;
      continue;
    }
    Log(LogLevel::kInfo, "worker is listed", {{"role", Word(name.role)}, {"address", address}});
    entries_[key] = {.worker = *worker, .name = index};
    ++name.num_listed;
  }
}

}  // namespace baton
