#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/time.h"
#include "deploy/cli/child_process.h"
#include "deploy/cli/launch_plan.h"
#include "deploy/cli/report.h"
#include "deploy/cli/restart_policy.h"
#include "deploy/cli/run_dir.h"

namespace baton::cli {

// Starts the servers of one cluster, watches them and stops them in order: the router drains
// first, so that what it has accepted still finds its workers. Between the two it starts each
// server that ended again, on the same ports, as RestartPolicy says. One thread; every wait is a
// poll() over the children's pipes and the signals, with a deadline.
class Supervisor {
 public:
  // `options` is validated, its model a folder, its ports chosen. `report` outlives this object.
  Supervisor(UpOptions options, RunDir dir, Report& report);
  ~Supervisor();

  // Runs the cluster until SIGTERM, SIGINT or SIGHUP, or until no server is left, which happens
  // only without restarts: each one ended and is not to be started again. The exit code.
  int Run();

 private:
  struct Server {
    std::unique_ptr<ChildProcess> process;
    RestartPolicy policy = {};
    Time start_at = kNever;  // It has ended and is started again then.
    Time ready_by = kNever;  // It was started again, does not serve yet, and is killed then.
  };

  absl::Status Start();
  absl::Status StartWorkers();
  absl::Status StartRouter();
  absl::Status AwaitFirstToken();
  absl::Status Spawn(const ProcessSpec& spec);
  // Until server `i` wrote its ready file: fills in its record.
  absl::Status AwaitReadyFile(size_t i);
  absl::StatusOr<std::unique_ptr<ChildProcess>> Launch(const ProcessSpec& spec, bool keep_log);
  void TakeReadyFile(size_t i, const ReadyFile& ready);

  // Starts again what is due and looks at those that load.
  void TendServers();
  void StartAgain(size_t i);
  void LookAtLoading(size_t i);
  // Server `i` ended while the cluster serves: `obituary` says how.
  void PlanRestart(size_t i, bool cleanly, const std::string& obituary);
  // How long TendServers() has nothing to do.
  Duration TimeToTend() const;

  // Runs the event loop until `done` or `deadline`; the error says what ended the start instead.
  absl::Status PumpUntil(const std::function<bool()>& done, Time deadline);
  // One pass: waits at most `wait` for output or a signal, then handles all there is.
  void Pump(Duration wait);
  void TakeSignals();
  void ReapChildren();
  // Why the start cannot go on, if it cannot. FAILED_PRECONDITION: a server refused to start.
  absl::Status StartObstacle() const;

  void Stop();
  // SIGTERM to the children of this kind, SIGKILL for those that do not end in time.
  void StopChildren(bool router);
  // Some server runs or will be started again.
  bool AnyAlive() const;
  void SaveState();
  std::string ReadyText(Duration took) const;

  const UpOptions options_;
  const RunDir dir_;
  const std::string bin_;
  Report& report_;
  int signal_fd_ = -1;
  int stop_signals_ = 0;  // Received so far; the second one ends the draining.
  bool started_ = false;
  bool stopping_ = false;
  RunState state_;  // servers[i] describes servers_[i].
  std::vector<Server> servers_;
};

}  // namespace baton::cli
