#pragma once

#include <string>
#include <vector>

#include "deploy/cli/finding.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

// How K/V goes between the workers of a cluster, for people: a line for each two that hand over or
// should. `status` is that of `baton status --json`, with what the router says of "kv_pairs"
// (router/openai/kv_pairs_json.h).
std::vector<std::string> KvPairLines(const nlohmann::json& status);

// The same for `baton doctor`. Different versions of NCCL are a problem, and workers that do not
// pair though they compute the same bits.
std::vector<Finding> ExamineKvPairs(const nlohmann::json& status);

}  // namespace baton::cli
