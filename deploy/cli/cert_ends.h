#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "deploy/cli/finding.h"
#include "deploy/cli/run_dir.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

// When the certificates that the servers of a cluster use end, as their metrics say: {name: seconds
// since 1970}. Of those that answer and have one.
nlohmann::json AskCertEnds(const RunState& state);

// Of one server's metrics; nothing if it has no certificate.
std::optional<int64_t> CertEndIn(absl::string_view metrics);

// A line for each server.
std::vector<std::string> CertEndLines(const nlohmann::json& ends, int64_t now_s);

// The same for `baton doctor`. Less than a week is a problem.
std::vector<Finding> ExamineCertEnds(const nlohmann::json& ends, int64_t now_s);

}  // namespace baton::cli
