#pragma once

#include <optional>

#include "absl/status/status.h"
#include "common/process/worker_config.h"

namespace baton {

// The options of baton-prefill.
struct PrefillConfig {
  // Nobody's next token waits for a step here, and decode workers on the same cores come first.
  WorkerConfig worker{.compute_nice = 5, .step_budget_ms = 1000};
  int max_waiting = 1024;  // Calls taken and not yet holding blocks; more are refused.
  // Prompts for decode workers on this machine whose first tokens wait for each other, so that their
  // answers run in one batch: faster streams and more of them, for a later first token. 0 = none.
  int finish_together = 8;

  // INVALID_ARGUMENT names the option, its value and the cure.
  absl::Status Validate() const;
};

// Reads the command line into `config`. Absent: go on. Else the exit code (help, or an error that
// was printed).
std::optional<int> ParsePrefillCommandLine(int argc, char** argv, PrefillConfig* config);

}  // namespace baton
