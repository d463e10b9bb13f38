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
#include "deploy/cli/run_dir.h"

namespace baton::cli {

// Starts the servers of one cluster, watches them and stops them in order: the router drains
// first, so that what it has accepted still finds its workers. One thread; every wait is a poll()
// over the children's pipes and the signals, with a deadline.
class Supervisor {
 public:
  // `options` is validated, its model a folder, its ports chosen. `report` outlives this object.
  Supervisor(UpOptions options, RunDir dir, Report& report);
  ~Supervisor();

  // Runs the cluster until SIGTERM, SIGINT or SIGHUP, or until no server is left. The exit code.
  int Run();

 private:
  absl::Status Start();
  absl::Status StartWorkers();
  absl::Status StartRouter();
  absl::Status AwaitFirstToken();
  absl::Status Spawn(const ProcessSpec& spec);
  // Until `child` wrote its ready file: fills in its record.
  absl::Status AwaitReadyFile(size_t child);

  // Runs the event loop until `done` or `deadline`; the error says what ended the start instead.
  absl::Status PumpUntil(const std::function<bool()>& done, Time deadline);
  // One pass: waits at most `wait` for output or a signal, then handles all there is.
  void Pump(Duration wait);
  void TakeSignals();
  void ReapChildren();
  // Why the start cannot go on, if it cannot.
  absl::Status StartObstacle() const;

  void Stop();
  // SIGTERM to the children of this kind, SIGKILL for those that do not end in time.
  void StopChildren(bool router);
  bool AnyRunning() const;
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
  RunState state_;  // servers[i] describes children_[i].
  std::vector<std::unique_ptr<ChildProcess>> children_;
};

}  // namespace baton::cli
