#include "deploy/cli/down.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

#include "absl/status/statusor.h"
#include "deploy/cli/run_dir.h"

namespace baton::cli {
namespace {

constexpr int kStopLimitMs = 40'000;  // The supervisor's own bounds: 2 x (10 s drain + 5 s kill).
constexpr int kKillLimitMs = 5'000;

// Sends `signal` and waits for the end of exactly this process; true if it has ended.
bool SignalAndWait(const ProcessIdentity& process, int signal, int limit_ms) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
  if (fd < 0) return !IsRunning(process);
  // The descriptor names one process; what runs under the number was checked after it was opened.
  bool ended = !IsRunning(process);
  if (!ended) {
    syscall(SYS_pidfd_send_signal, fd, signal, nullptr, 0);
    pollfd state{.fd = fd, .events = POLLIN, .revents = 0};
    ended = poll(&state, 1, limit_ms) == 1;
  }
  close(fd);
  return ended;
}

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
