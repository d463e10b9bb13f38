#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/process/command_line.h"
#include "common/process/stop_signal.h"
#include "common/telemetry/log.h"
#include "common/worker/worker_config.h"
#include "common/worker/worker_runtime.h"

namespace baton {

// A worker process: a node and everything around it. `Program` says which kind of worker:
//   Config, with `worker`, Validate() and AddOptions(app); Node; kRole, kName, kPurpose;
//   MakeNode(config, runtime), whose node lives no longer than the runtime; Look(node).
template <typename Program>
class WorkerProcess {
 public:
  // Loads, listens and serves. The error names the option and the cure.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(
      const typename Program::Config& config) {
    RETURN_IF_ERROR(config.Validate());
    ASSIGN_OR_RETURN(std::unique_ptr<WorkerRuntime> runtime,
                     WorkerRuntime::Create(config.worker, Program::kRole));
    std::unique_ptr<WorkerProcess> process(new WorkerProcess(std::move(runtime)));
    process->node_ = Program::MakeNode(config, *process->runtime_);
    const auto look = [node = process->node_.get()] { return Program::Look(*node); };
    RETURN_IF_ERROR(process->runtime_->Serve(process->node_.get(), look));
    return process;
  }

  // The node's thread ends before the node does.
  ~WorkerProcess() { runtime_->Stop(); }

  // Takes nothing new, waits for what runs (at most the configured limit, or until `hurry` says
  // so), then ends everything.
  void Drain(const std::function<bool()>& hurry) { runtime_->Drain(hurry); }

 private:
  explicit WorkerProcess(std::unique_ptr<WorkerRuntime> runtime) : runtime_(std::move(runtime)) {}

  std::unique_ptr<WorkerRuntime> runtime_;
  std::unique_ptr<typename Program::Node> node_;  // Uses parts of the runtime, so it goes first.
};

// What comes before a worker starts: its command line, which ends in `config` by `add_options`, and
// then its log. The program's exit code, if that was all.
std::optional<int> PrepareWorker(const char* purpose, const char* name, int argc, char** argv,
                                 const WorkerConfig& config,
                                 const std::function<void(CLI::App&)>& add_options);

// A worker's `main`: serves until it is told to stop, then drains.
template <typename Program>
int RunWorker(int argc, char** argv) {
  typename Program::Config config;
  if (const std::optional<int> code =
          PrepareWorker(Program::kPurpose, Program::kName, argc, argv, config.worker,
                        [&config](CLI::App& app) { config.AddOptions(app); })) {
    return *code;
  }
  StopSignal stop;  // Before any thread, so that all of them leave the signals to it.
  auto process = WorkerProcess<Program>::Start(config);
  if (!process.ok()) return FailToStart(Program::kName, process.status());
  const LogThread log_thread;  // Errors of the start are in order with its log.
  stop.Wait();
  (*process)->Drain([&stop] { return stop.CameAgain(); });
  return 0;
}

}  // namespace baton
