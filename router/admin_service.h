#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/rpc/cluster_tls.h"

namespace baton {

struct AdminServerOptions {
  std::string host;
  int port = 0;                     // 0 = any free one.
  const ClusterTls* tls = nullptr;  // Never null; outlives the server.
  std::function<std::string()> status;                 // The documents; these may wait,
  std::function<absl::StatusOr<std::string>()> audit;  // for they are called by `executor`.
  std::function<void()> drain;                         // Must return at once.
  // Runs each task once, or drops it; its threads outlive the server.
  std::function<void(std::function<void()> task)> executor;
};

// baton.v1.Admin, the router's side of the control plane: for the certificate of an admin alone
// (and health and reflection for a router's). Thread-safe.
class AdminServer {
 public:
  explicit AdminServer(AdminServerOptions options);
  ~AdminServer();  // Shuts down at once.

  // UNAVAILABLE names --admin-port and the cure.
  absl::Status Start();
  int port() const;

  // Takes no new call; those still open after `grace` are cancelled. Idempotent.
  void Shutdown(Duration grace);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
