#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "deploy/cli/finding.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

// What the worker program says of GPUs, by `--list-gpus`. A driver may hang: UNAVAILABLE after
// `limit`, and the program is ended.
absl::StatusOr<nlohmann::json> AskForGpus(const std::string& program, Duration limit);

// The findings about such an answer; `driver` is the version of the kernel's module, if one is
// loaded.
std::vector<Finding> ExamineGpus(const absl::StatusOr<nlohmann::json>& answer,
                                 const std::string& driver);

}  // namespace baton::cli
