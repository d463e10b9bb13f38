#include <memory>

#include "absl/status/statusor.h"
#include "common/process/command_line.h"
#include "common/process/stop_signal.h"
#include "common/rpc/connection.h"
#include "common/telemetry/log.h"
#include "decode_worker/config.h"
#include "decode_worker/service.h"

int main(int argc, char** argv) {
  baton::DecodeConfig config;
  if (const std::optional<int> code = baton::ParseDecodeCommandLine(argc, argv, &config)) {
    return *code;
  }
  baton::LogLevel level = baton::LogLevel::kInfo;
  baton::ParseLogLevel(config.worker.log_level, &level);
  baton::SetLogLevel(level);
  baton::SilenceLibraryLogs();
  baton::StopSignal stop;  // Before any thread, so that all of them leave the signals to it.
  auto service = baton::DecodeService::Start(config);
  if (!service.ok()) return baton::FailToStart("baton-decode", service.status());
  stop.Wait();
  (*service)->Drain([&stop] { return stop.CameAgain(); });
  return 0;
}
