#include "deploy/cli/down.h"

#include <signal.h>

#include <cstdio>

#include "absl/status/statusor.h"
#include "deploy/cli/run_dir.h"

namespace baton::cli {
namespace {

constexpr int kStopLimitMs = 40'000;  // The supervisor's own bounds: 2 x (10 s drain + 5 s kill).
constexpr int kKillLimitMs = 5'000;

}  // namespace

int Down(const std::string& dir) {
  const RunDir run(dir);
  const absl::StatusOr<RunState> state = run.Load();
  if (absl::IsNotFound(state.status())) {
    std::printf("No cluster is running in %s.\n", dir.c_str());
    return 0;
  }
  if (!state.ok()) {
    std::fprintf(stderr, "baton down: %s; if nothing of it runs, remove %s/state.json\n",
                 std::string(state.status().message()).c_str(), dir.c_str());
    return 1;
  }
  const bool was_running = IsRunning(state->supervisor);
  if (was_running) {
    std::printf("Stopping the cluster in %s: the router drains first, then the workers.\n",
                dir.c_str());
    std::fflush(stdout);
    if (!SignalAndWait(state->supervisor, SIGTERM, kStopLimitMs)) {
      std::fprintf(stderr, "baton down: the supervisor (pid %d) did not end; killing it\n",
                   state->supervisor.pid);
      SignalAndWait(state->supervisor, SIGKILL, kKillLimitMs);
    }
  }
  // The servers die with their supervisor; this is for one that could not yet.
  for (const ServerRecord& server : state->servers) {
    if (!SignalAndWait(server.process, SIGKILL, kKillLimitMs)) {
      std::fprintf(stderr, "baton down: %s (pid %d) does not end even by SIGKILL\n",
                   server.name.c_str(), server.process.pid);
      return 1;
    }
  }
  run.RemoveState();
  std::printf(was_running ? "Stopped.\n" : "No cluster is running in %s (stale state removed).\n",
              dir.c_str());
  return 0;
}

}  // namespace baton::cli
