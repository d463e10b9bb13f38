#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/cli/run_dir.h"

namespace baton::cli {

struct RestartOptions {
  std::string dir = ".baton";
  std::optional<std::string> role;  // "prefill" or "decode"; absent = both.
  std::optional<int> index;         // The N of "decode-N"; needs a role. Absent = all of the role.
  int timeout_s = 300;              // For each worker to load and be healthy at the router.
};

// `baton restart`: one worker after the other is drained, ended by SIGTERM and awaited until the
// router finds its successor healthy. 0, or 1 at the first worker that does not come back: the
// rest is left running as it is.
int Restart(const RestartOptions& options);

// The names of the workers that `options` mean, in the order of their restart.
absl::StatusOr<std::vector<std::string>> WorkersToRestart(const RunState& state,
                                                          const RestartOptions& options);

// True when the router holds the present process of `worker` to be healthy. `router_says` is the
// body of GET /status, or null.
bool IsHealthyAtRouter(const ServerRecord& worker, const nlohmann::json& router_says);

}  // namespace baton::cli
