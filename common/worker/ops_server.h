#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http_server.h"

namespace baton {

// All are called on threads of the server, until it is stopped.
struct OpsServerOptions {
  std::string host;
  int port = 0;  // 0 = any free one.
  std::function<std::string()> metrics;
  // Why the process is not alive any more; empty: it is. Does not wait.
  std::function<std::string()> why_dead;
};

// What a worker answers beside its calls, to whoever asks: /metrics and /health. Not started. The
// error names --metrics-port and the cure.
absl::StatusOr<std::unique_ptr<http::HttpServer>> MakeOpsServer(const OpsServerOptions& options);

}  // namespace baton
