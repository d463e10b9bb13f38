#include "deploy/cli/remote_cluster.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/process/command_line.h"
#include "common/rpc/audit_call.h"
#include "common/rpc/peer_certificate.h"
#include "common/telemetry/log.h"
#include "deploy/cli/cert_ends.h"
#include "deploy/cli/json_fields.h"

namespace baton::cli {
namespace {

using nlohmann::json;

constexpr Duration kRemoteLimit = std::chrono::seconds(10);    // For each answer.
constexpr Duration kHandshakeLimit = std::chrono::seconds(2);  // For all of them together.

constexpr char kWrongCertificate[] =
    "put the folder of its role there, as `baton certs issue` with this CA makes it; the server "
    "takes it without a restart";
constexpr char kNoHandshake[] =
    "does it run, with --tls-dir of this CA and release? Its log says why it refuses";

absl::Status AboutServer(const std::string& what, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat(what, ": ", std::string(why.message())));
}

}  // namespace

absl::StatusOr<RemoteCluster> RemoteCluster::Open(const RemoteOptions& options) {
  RETURN_IF_ERROR(CheckAddress("--router", options.router));
  if (options.tls_dir.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--router ", options.router, ": routers tell operators alone what they do; ",
                     "give --tls-dir, the folder `admin` that `baton certs issue` made"));
  }
  SetLogLevel(LogLevel::kWarning);
  ASSIGN_OR_RETURN(auto tls, ClusterTls::Create(options.tls_dir, TlsRole::kAdmin));
  return RemoteCluster(options.router, std::move(tls));
}

absl::StatusOr<json> RemoteCluster::Ask(AdminMethod method) const {
  const std::string what = absl::StrCat("the router at ", router_);
  const absl::StatusOr<std::string> answer = CallAdmin(router_, method, *tls_, kRemoteLimit);
  if (!answer.ok()) return AboutServer(what, answer.status());
  json document = json::parse(*answer, nullptr, /*allow_exceptions=*/false);
  if (document.is_object()) return document;
  return absl::DataLossError(absl::StrCat(what, ": its answer is no JSON document"));
}

absl::StatusOr<WorkerAudit> RemoteCluster::AuditOf(const ListedWorker& worker) const {
  absl::StatusOr<WorkerAudit> held =
      CallAudit({.role = worker.role, .address = worker.address}, tls_.get(), kRemoteLimit);
  if (held.ok()) return held;
  return AboutServer(absl::StrCat(worker.name, " at ", worker.address), held.status());
}

std::vector<Finding> RemoteCluster::ExamineCerts(const json& router_says, int64_t now_s) const {
  std::vector<std::string> names = {absl::StrCat("router at ", router_)};
  std::vector<TlsServerAt> servers = {{.address = router_, .role = TlsRole::kRouter}};
  for (const ListedWorker& worker : WorkersOf(router_says)) {
    names.push_back(absl::StrCat(worker.name, " at ", worker.address));
    servers.push_back({.address = worker.address, .role = TlsRoleOf(worker.role)});
  }
  const auto ends = AskCertificateEnds(servers, *tls_, kHandshakeLimit);
  const std::vector<ListedWorker> workers = WorkersOf(router_says);
  json known = json::object();
  std::vector<Finding> failed;
  for (size_t i = 0; i < names.size(); ++i) {
    if (ends[i].ok()) {
      known[names[i]] = *ends[i];
      continue;
    }
    if (i > 0 && absl::IsUnavailable(ends[i].status())) {
      // As from outside a Kubernetes cluster; of one that is not well the router has said so.
      if (workers[i - 1].healthy) {
        failed.push_back({.subject = "TLS",
                          .fact = absl::StrCat(names[i], ": not reached from here, so its "
                                               "certificate was not looked at")});
      }
      continue;
    }
    const bool is_wrong = absl::IsUnauthenticated(ends[i].status());
    failed.push_back({.subject = "TLS",
                      .fact = std::string(AboutServer(names[i], ends[i].status()).message()),
                      .cure = is_wrong ? kWrongCertificate : kNoHandshake});
  }
  std::vector<Finding> findings = ExamineCertEnds(known, now_s);
  findings.insert(findings.end(), failed.begin(), failed.end());
  return findings;
}

std::vector<ListedWorker> WorkersOf(const json& router_says) {
  std::vector<ListedWorker> workers;
  int counts[2] = {};
  const auto list = router_says.find("workers");
  if (list == router_says.end() || !list->is_array()) return workers;
  for (const json& one : *list) {
    if (!one.is_object()) continue;
    const bool is_prefill = StringOr(one, "role") == "prefill";
    workers.push_back({.name = absl::StrCat(is_prefill ? "prefill-" : "decode-",
                                            counts[is_prefill ? 0 : 1]++),
                       .role = is_prefill ? Role::kPrefill : Role::kDecode,
                       .address = StringOr(one, "address"),
                       .healthy = one.value("healthy", json()) == json(true),
                       .reason = StringOr(one, "reason")});
  }
  return workers;
}

std::vector<Finding> ExamineRemote(const std::string& router,
                                   const absl::StatusOr<json>& router_says) {
  if (!router_says.ok()) {
    return {{.subject = "router",
             .fact = std::string(router_says.status().message()),
             .cure = absl::StrCat("is ", router, " its --admin-port, and does it run with "
                                  "--tls-dir of this CA and release?")}};
  }
  const json::json_pointer ready("/router/ready");
  const bool is_ready = router_says->contains(ready) && (*router_says)[ready] == json(true);
  std::vector<Finding> findings = {
      {.subject = "router",
       .fact = absl::StrCat(router, is_ready ? " is ready" : " is not ready"),
       .cure = is_ready ? "" : "no token has come from end to end lately: see its log"}};
  for (const ListedWorker& worker : WorkersOf(*router_says)) {
    findings.push_back({.subject = worker.role == Role::kPrefill ? "prefill" : "decode",
                        .fact = absl::StrCat(worker.address,
                                             worker.healthy ? " is healthy" : " is not healthy"),
                        .cure = worker.healthy          ? ""
                                : worker.reason.empty() ? "see its log"
                                                        : worker.reason});
  }
  return findings;
}

}  // namespace baton::cli
