#include "common/worker/worker_process.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/rpc/connection.h"
#include "common/worker/gpu_json.h"
#include "kernels/make_device.h"

namespace baton {

std::optional<int> PrepareWorker(const char* purpose, const char* name, int argc, char** argv,
                                 const WorkerConfig& config,
                                 const std::function<void(CLI::App&)>& add_options) {
  CLI::App app(purpose, name);
  add_options(app);
  bool list_gpus = false;
  app.add_flag("--list-gpus", list_gpus,
               "Print as JSON the GPUs here and what --device auto takes, and exit")
      ->group("Operation");
  if (const std::optional<int> code = ParseCommandLine(app, argc, argv)) return code;
  if (list_gpus) {
    std::puts(ToJson(ListGpus()).c_str());
    return 0;
  }
  LogLevel level = LogLevel::kInfo;
  ParseLogLevel(config.log_level, &level);
  SetLogLevel(level);
  SilenceLibraryLogs();
  return std::nullopt;
}

}  // namespace baton
