#include "prefill_worker/config.h"

#include <CLI/CLI.hpp>

#include "common/base/status.h"
#include "common/process/command_line.h"

namespace baton {

absl::Status PrefillConfig::Validate() const {
  RETURN_IF_ERROR(worker.Validate());
  RETURN_IF_ERROR(CheckOption("--finish-together", finish_together, 0, 1 << 16));
  return CheckOption("--max-waiting", max_waiting, 1, 1 << 20);
}

std::optional<int> ParsePrefillCommandLine(int argc, char** argv, PrefillConfig* config) {
  CLI::App app("Baton prefill worker: computes prompts and pushes their K/V to decode workers.",
               "baton-prefill");
  AddWorkerOptions(app, config->worker);
  app.add_option("--max-waiting", config->max_waiting,
                 "Prompts taken that hold no blocks yet; more are refused")
      ->group("Memory and batching")
      ->capture_default_str();
  app.add_option("--finish-together", config->finish_together,
                 "Prompts for decode workers on this machine whose first tokens wait for each "
                 "other, so that their answers share the cores in one batch; 0 = none")
      ->group("Memory and batching")
      ->capture_default_str();
  return ParseCommandLine(app, argc, argv);
}

}  // namespace baton
