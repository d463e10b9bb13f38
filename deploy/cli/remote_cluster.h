#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/node/message.h"
#include "common/rpc/admin_call.h"
#include "deploy/cli/finding.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

// Where a cluster is asked that `baton up` has not started here.
struct RemoteOptions {
  std::string router;   // HOST:PORT of a router's --admin-port; empty = the cluster of --dir.
  std::string tls_dir;  // Folder of an admin's certificate.
};

// One of its workers, as the router lists it.
struct ListedWorker {
  std::string name;  // "decode-0": the first of its role.
  Role role = Role::kPrefill;
  std::string address;
  bool healthy = false;
  std::string reason;  // Why not, if not.
};

// A cluster of several machines, asked at its control plane by an admin's certificate.
class RemoteCluster {
 public:
  // INVALID_ARGUMENT names the option that is missing or does not fit.
  static absl::StatusOr<RemoteCluster> Open(const RemoteOptions& options);

  // The router's documents. The error names the router.
  absl::StatusOr<nlohmann::json> Status() const { return Ask(AdminMethod::kStatus); }
  absl::StatusOr<nlohmann::json> Audit() const { return Ask(AdminMethod::kAudit); }

  // What a worker holds. The error names the worker.
  absl::StatusOr<WorkerAudit> AuditOf(const ListedWorker& worker) const;

  // For `baton doctor`, of the router and of each worker in its status, by a handshake with each,
  // in two seconds for all: when its certificate ends, or why there is none that is good.
  std::vector<Finding> ExamineCerts(const nlohmann::json& router_says, int64_t now_s) const;

  const std::string& router() const { return router_; }

 private:
  RemoteCluster(std::string router, std::unique_ptr<ClusterTls> tls)
      : router_(std::move(router)), tls_(std::move(tls)) {}
  absl::StatusOr<nlohmann::json> Ask(AdminMethod method) const;

  std::string router_;
  std::unique_ptr<ClusterTls> tls_;
};

// Those in a router's status.
std::vector<ListedWorker> WorkersOf(const nlohmann::json& router_says);

// For `baton doctor`: whether the router serves, and each worker that it has.
std::vector<Finding> ExamineRemote(const std::string& router,
                                   const absl::StatusOr<nlohmann::json>& router_says);

}  // namespace baton::cli
