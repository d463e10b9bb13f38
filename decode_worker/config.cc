#include "decode_worker/config.h"

#include <CLI/CLI.hpp>

#include "common/base/status.h"
#include "common/process/command_line.h"

namespace baton {

absl::Status DecodeConfig::Validate() const { return worker.Validate(); }

std::optional<int> ParseDecodeCommandLine(int argc, char** argv, DecodeConfig* config) {
  CLI::App app("Baton decode worker: reserves blocks, receives K/V and streams answers.",
               "baton-decode");
  AddWorkerOptions(app, config->worker);
  return ParseCommandLine(app, argc, argv);
}

}  // namespace baton
