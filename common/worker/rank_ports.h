#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// The port at which each rank of a group takes KV: "0" = any free ones, a list "P,Q,..." = one of
// each rank, "P" alone = P and the ports after it. INVALID_ARGUMENT names the option.
absl::StatusOr<std::vector<int>> ParseDataPorts(const std::string& text, int size);

// Where prefill workers are told to send each rank's KV: a list of "host:port", of which one alone
// stands for its port and those after it; nothing = nothing.
absl::StatusOr<std::vector<std::string>> ParseDataAddresses(const std::string& text, int size);

}  // namespace baton
