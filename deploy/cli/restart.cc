#include "deploy/cli/restart.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "deploy/cli/launch_plan.h"
#include "deploy/cli/status.h"

namespace baton::cli {
namespace {

using nlohmann::json;

constexpr int kPollMs = 100;
constexpr int kCrashesToStop = 3;  // In a row.
constexpr int kEndLimitMs = (kServerDrainSeconds + 10) * 1000;  // SIGTERM to the end of a worker.

absl::StatusOr<ServerRecord> FindServer(const RunState& state, const std::string& name) {
  for (const ServerRecord& server : state.servers) {
    if (server.name == name) return server;
  }
  return absl::NotFoundError(absl::StrCat(name, ": not a server of this cluster any more"));
}

bool HasHealthyPeer(const RunState& state, const ServerRecord& worker) {
  const json router_says = AskRouterStatus(state);
  return std::any_of(state.servers.begin(), state.servers.end(), [&](const ServerRecord& other) {
    return other.role == worker.role && other.name != worker.name &&
           IsHealthyAtRouter(other, router_says);
  });
}

// Until the successor of `old` is healthy at the router: its record.
absl::StatusOr<ServerRecord> AwaitSuccessor(const RunDir& dir, const ServerRecord& old,
                                            Time deadline) {
  while (true) {
    ASSIGN_OR_RETURN(const RunState state, dir.LoadRunning());
    ASSIGN_OR_RETURN(ServerRecord now, FindServer(state, old.name));
    // Until the supervisor has noted this end, the row may be one of long ago.
    const bool is_noted = !(now.process == old.process) || !now.exited.empty();
    if (is_noted && now.crashes >= kCrashesToStop) {
      return absl::UnavailableError(absl::StrCat(old.name, " does not come back: ", now.last_exit,
                                                 ", ", now.crashes, " times in a row; see ",
                                                 dir.LogFile(old.name),
                                                 "; it is tried again until `baton down`"));
    }
    if (!(now.process == old.process) && IsHealthyAtRouter(now, AskRouterStatus(state))) return now;
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(old.name, " was not healthy at the router in time; see ",
                       dir.LogFile(old.name), ", or raise --timeout-s"));
    }
    poll(nullptr, 0, kPollMs);
  }
}

absl::Status RestartWorker(const RunDir& dir, const std::string& name, int timeout_s) {
  ASSIGN_OR_RETURN(const RunState state, dir.LoadRunning());
  ASSIGN_OR_RETURN(const ServerRecord old, FindServer(state, name));
  const Time begin = SteadyNow();
  std::printf("%s: draining (pid %d)%s\n", name.c_str(), old.process.pid,
              HasHealthyPeer(state, old) ? ""
                                         : absl::StrCat("; no other ", old.role,
                                                        " worker is healthy, so requests wait or ",
                                                        "fail until it is back")
                                               .c_str());
  std::fflush(stdout);
  if (!SignalAndWait(old.process, SIGTERM, kEndLimitMs)) {
    return absl::DeadlineExceededError(absl::StrCat(name, " (pid ", old.process.pid,
                                                    ") did not end within ", kEndLimitMs / 1000,
                                                    " s of SIGTERM; see ", dir.LogFile(name)));
  }
  ASSIGN_OR_RETURN(const ServerRecord successor,
                   AwaitSuccessor(dir, old, SteadyNow() + std::chrono::seconds(timeout_s)));
  std::printf("%s: serves again (pid %d) after %.1f s\n", name.c_str(), successor.process.pid,
              ToSeconds(SteadyNow() - begin));
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status RestartAll(const RestartOptions& options) {
  const RunDir dir(options.dir);
  ASSIGN_OR_RETURN(const RunState state, dir.LoadRunning());
  if (!state.ready) {
    return absl::FailedPreconditionError(
        absl::StrCat("the cluster in ", options.dir, " is still starting; wait until it is ready"));
  }
  if (!state.restarts) {
    return absl::FailedPreconditionError(
        absl::StrCat("the cluster in ", options.dir, " was started with --no-restart, so nobody ",
                     "would start its workers again; use `baton down` and `baton up`"));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> names, WorkersToRestart(state, options));
  for (const std::string& name : names) {
    RETURN_IF_ERROR(RestartWorker(dir, name, options.timeout_s));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> WorkersToRestart(const RunState& state,
                                                          const RestartOptions& options) {
  std::vector<std::string> names;
  const std::string only = options.index ? absl::StrCat("-", *options.index) : "";
  for (const ServerRecord& server : state.servers) {
    if (server.role == "router" || (options.role && *options.role != server.role)) continue;
    if (options.index && server.name != server.role + only) continue;
    names.push_back(server.name);
  }
  if (!names.empty()) return names;
  return absl::NotFoundError(absl::StrCat("the cluster has no worker ",
                                          options.role.value_or("of any role"), only,
                                          "; `baton status` shows what runs"));
}

bool IsHealthyAtRouter(const ServerRecord& worker, const json& router_says) {
  if (worker.incarnation.is_null() || !router_says.is_object()) return false;
  const json workers = router_says.value("workers", json::array());
  return std::any_of(workers.begin(), workers.end(), [&](const json& said) {
    return said.is_object() && said.value("address", json()) == json(worker.address) &&
           said.value("incarnation", json()) == worker.incarnation &&
           said.value("healthy", json()) == json(true);
  });
}

int Restart(const RestartOptions& options) {
  const absl::Status status = RestartAll(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "baton restart: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace baton::cli
