#pragma once

#include <optional>

#include "absl/status/status.h"
#include "common/process/worker_config.h"

namespace baton {

// The options of baton-decode.
struct DecodeConfig {
  WorkerConfig worker;

  // INVALID_ARGUMENT names the option, its value and the cure.
  absl::Status Validate() const;
};

// Reads the command line into `config`. Absent: go on. Else the exit code (help, or an error that
// was printed).
std::optional<int> ParseDecodeCommandLine(int argc, char** argv, DecodeConfig* config);

}  // namespace baton
