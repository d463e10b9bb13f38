#pragma once

#include <string>
#include <vector>

#include "deploy/cli/finding.h"
#include "deploy/cli/run_dir.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

// How K/V goes between the workers of a cluster, as GET /kv of each says: {name: {"asked_for",
// "tls", "nccl", "why", "links"}}, where a link's "peer" begins with the peer's name. Of those in
// `names` that answer.
nlohmann::json AskKvPaths(const RunState& state, const std::vector<std::string>& names);

// `pages` are the answers by the workers' names. Links to workers that are gone are left out.
nlohmann::json JoinKvPaths(const RunState& state, const nlohmann::json& pages);

// A line for each two workers that hand over, and for each without NCCL; none where no worker has
// it or was asked for it.
std::vector<std::string> KvPathLines(const nlohmann::json& paths);

// The same for `baton doctor`. Different versions are a problem.
std::vector<Finding> ExamineKvPaths(const nlohmann::json& paths);

}  // namespace baton::cli
