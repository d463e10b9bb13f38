#pragma once

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "common/worker/worker_config.h"
#include "common/worker/worker_runtime.h"
#include "prefill_worker/node.h"

namespace baton {

// The options of baton-prefill.
struct PrefillConfig {
  // Nobody's next token waits for a step here, and decode workers on the same cores come first.
  WorkerConfig worker{.compute_nice = 5, .step_budget_ms = 1000};
  int max_waiting = 1024;  // Calls taken and not yet holding blocks; more are refused.
  // Prompts for decode workers on this machine whose first tokens wait for each other, so that
  // their answers run in one batch: faster streams and more of them, for a later first token.
  // 0 = none. Unset: 8 where the CPU computes, whose cores they share; none on a GPU.
  std::optional<int> finish_together;

  // INVALID_ARGUMENT names the option, its value and the cure.
  absl::Status Validate() const;
  void AddOptions(CLI::App& app);
};

// What makes a WorkerProcess a prefill worker.
struct PrefillProgram {
  using Config = PrefillConfig;
  using Node = PrefillNode;
  static constexpr Role kRole = Role::kPrefill;
  static constexpr char kName[] = "baton-prefill";
  static constexpr char kPurpose[] =
      "Baton prefill worker: computes prompts and pushes their K/V to decode workers.";

  static WorkerParts PartsOf(const PrefillConfig& config, WorkerRuntime& runtime);
  static std::unique_ptr<PrefillNode> MakeNode(const PrefillConfig& config, WorkerRuntime& runtime);
  static WorkerSnapshot Look(const PrefillNode& node);
};

}  // namespace baton
