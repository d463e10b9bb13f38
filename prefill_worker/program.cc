#include "prefill_worker/program.h"

#include <CLI/CLI.hpp>

#include "common/base/status.h"
#include "common/process/command_line.h"

namespace baton {
namespace {

constexpr int kFinishTogetherOnCpu = 8;

}  // namespace

absl::Status PrefillConfig::Validate() const {
  RETURN_IF_ERROR(worker.Validate());
  RETURN_IF_ERROR(CheckOption("--finish-together", finish_together.value_or(0), 0, 1 << 16));
  return CheckOption("--max-waiting", max_waiting, 1, 1 << 20);
}

void PrefillConfig::AddOptions(CLI::App& app) {
  AddWorkerOptions(app, worker);
  app.add_option("--max-waiting", max_waiting,
                 "Prompts taken that hold no blocks yet; more are refused")
      ->group("Memory and batching")
      ->capture_default_str();
  app.add_option("--finish-together", finish_together,
                 "Prompts for decode workers on this machine whose first tokens wait for each "
                 "other, so that their answers share the cores in one batch; 0 = none (default: 8 "
                 "where the CPU computes, else 0)")
      ->group("Memory and batching");
}

WorkerParts PrefillProgram::PartsOf(const PrefillConfig& config, WorkerRuntime& runtime) {
  WorkerParts parts = runtime.parts();
  parts.engine.finish_together =
      config.finish_together.value_or(runtime.on_cpu() ? kFinishTogetherOnCpu : 0);
  return parts;
}

std::unique_ptr<PrefillNode> PrefillProgram::MakeNode(const PrefillConfig& config,
                                                      WorkerRuntime& runtime) {
  return std::make_unique<PrefillNode>(PartsOf(config, runtime),
                                       PrefillNodeOptions{.max_waiting = config.max_waiting});
}

WorkerSnapshot PrefillProgram::Look(const PrefillNode& node) {
  const PrefillCounters& counters = node.counters();
  return {.status = node.Status(),
          .idle = node.idle(),
          .stands_still = node.stands_still(),
          .counted = counters,
          .own = {{"sends", counters.sends}, {"kept_expired", counters.kept_expired}}};
}

}  // namespace baton
