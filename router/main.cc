#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/process/command_line.h"
#include "common/process/idle_heap.h"
#include "common/process/stop_signal.h"
#include "common/rpc/connection.h"
#include "common/telemetry/log.h"
#include "router/config.h"
#include "router/router_process.h"

namespace {

// Twice such a look apart, and it goes back: bursts that come again and again keep it.
constexpr int64_t kMostIdleHeapMiB = 32;
constexpr baton::Duration kHeapLook = std::chrono::seconds(10);

}  // namespace

int main(int argc, char** argv) {
  baton::RouterConfig config;
  if (const std::optional<int> code = baton::ParseRouterCommandLine(argc, argv, &config)) {
    return *code;
  }
  baton::LogLevel level = baton::LogLevel::kInfo;
  baton::ParseLogLevel(config.log_level, &level);
  baton::SetLogLevel(level);
  baton::SilenceLibraryLogs();
  baton::StopSignal stop;  // Before any thread, so that all of them leave the signals to it.
  auto process = baton::RouterProcess::Start(config);
  if (!process.ok()) return baton::FailToStart("baton-router", process.status());
  const baton::LogThread log_thread;  // Errors of the start are in order with its log.
  baton::IdleHeap heap(kMostIdleHeapMiB << 20);
  stop.Wait(kHeapLook, [&heap] { heap.Look(); });
  (*process)->Drain([&stop] { return stop.CameAgain(); });
  return 0;
}
