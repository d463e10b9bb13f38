#include "router/discovery.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/this_thread.h"
#include "common/process/command_line.h"
#include "common/telemetry/log.h"
#include "router/worker_roster.h"

namespace baton {
namespace {

std::vector<Role> RolesOf(const std::vector<DiscoveryOptions::Name>& names) {
  std::vector<Role> roles;
  for (const auto& name : names) roles.push_back(name.role);
  return roles;
}

}  // namespace

struct Discovery::State {
  State(DiscoveryOptions o, WorkerSet* workers)
      : options(std::move(o)),
        random(options.random_seed),
        roster(RolesOf(options.names), options.fixed, workers) {
    for (const auto& name : options.names) {
      stats.push_back({.name = absl::StrCat(name.dns.host, ":", name.dns.port),
                       .role = name.role});
    }
    last_failure.resize(stats.size());
  }

  // The good answer of one lookup, as "host:port" of each, or why it is none.
  absl::StatusOr<std::vector<std::string>> LookUp(const DnsName& name) const;
  void Take(size_t name, const absl::StatusOr<std::vector<std::string>>& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  const DiscoveryOptions options;
  std::mt19937_64 random;  // Of the thread.

  absl::Mutex mutex;
  // Once true, the thread touches nothing but this state and the system's resolver.
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  WorkerRoster roster ABSL_GUARDED_BY(mutex);
  std::vector<NameStats> stats ABSL_GUARDED_BY(mutex);            // By name.
  std::vector<std::string> last_failure ABSL_GUARDED_BY(mutex);  // By name; empty = none.
};

absl::StatusOr<std::vector<std::string>> Discovery::State::LookUp(const DnsName& name) const {
  absl::StatusOr<std::vector<std::string>> found = options.resolve(name.host);
  if (!found.ok()) return found;
  std::vector<std::string> addresses;
  for (const std::string& address : *found) {
    if (options.only_loopback && !IsLoopback(address) && address != "::1") continue;
    addresses.push_back(JoinHostPort(address, name.port));
  }
  if (!addresses.empty()) return addresses;
  return absl::NotFoundError(found->empty() ? "no address"
                                            : "addresses beyond loopback need --tls-dir");
}

void Discovery::State::Take(size_t i, const absl::StatusOr<std::vector<std::string>>& answer) {
  NameStats& name = stats[i];
  if (!answer.ok()) {
    ++name.failed;
    const std::string why(answer.status().message());
    if (std::exchange(last_failure[i], why) == why) return;
    Log(LogLevel::kWarning, "name was not resolved", {{"name", name.name}, {"reason", why}});
    return;
  }
  if (!std::exchange(last_failure[i], "").empty()) {
    Log(LogLevel::kInfo, "name is resolved again", {{"name", name.name}});
  }
  ++name.good;
  roster.OnAnswer(i, *answer, options.clock());
  name.addresses = static_cast<int64_t>(answer->size());
  const int64_t before = std::exchange(name.left_out, static_cast<int64_t>(roster.num_left_out(i)));
  if (name.left_out == before) return;
  Log(name.left_out > 0 ? LogLevel::kWarning : LogLevel::kInfo, "addresses without room",
      {{"name", name.name}, {"addresses", name.addresses}, {"left_out", name.left_out}});
}

Discovery::Discovery(DiscoveryOptions options, WorkerSet* workers)
    : state_(std::make_shared<State>(std::move(options), workers)) {}

Discovery::~Discovery() { Stop(); }

void Discovery::Start() {
  if (state_->options.names.empty()) return;
  // A lookup cannot be ended from outside, and may take as long as a minute.
  std::thread([state = state_] { Run(state); }).detach();
}

void Discovery::Run(const std::shared_ptr<State>& state) {
  NameThisThread("resolver");
  const Duration interval = state->options.interval;
  for (;;) {
    for (size_t i = 0; i < state->options.names.size(); ++i) {
      const auto answer = state->LookUp(state->options.names[i].dns);
      absl::MutexLock lock(&state->mutex);
      if (state->stopped) return;
      state->Take(i, answer);
    }
    // Routers that started together do not ask together.
    const double factor = std::uniform_real_distribution<double>(0.8, 1.2)(state->random);
    const absl::Duration pause = absl::FromChrono(interval) * factor;
    absl::MutexLock lock(&state->mutex);
    if (state->mutex.AwaitWithTimeout(absl::Condition(&state->stopped), pause)) return;
  }
}

void Discovery::Stop() {
  absl::MutexLock lock(&state_->mutex);
  state_->stopped = true;
}

std::vector<Discovery::NameStats> Discovery::Stats() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->stats;
}

}  // namespace baton
