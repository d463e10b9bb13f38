#include "deploy/cli/audit.h"

#include <poll.h>

#include <cstdio>
#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/audit_call.h"
#include "common/rpc/cluster_tls.h"
#include "common/telemetry/log.h"
#include "deploy/cli/audit_report.h"
#include "deploy/cli/http_client.h"
#include "deploy/cli/run_dir.h"

namespace baton::cli {
namespace {

using nlohmann::json;

constexpr Duration kAnswerLimit = std::chrono::seconds(5);  // Of each server.

absl::Status NoAnswer(const RunDir& dir, const ServerRecord& server, const absl::Status& why) {
  return absl::UnavailableError(
      absl::StrCat(server.name, " did not tell what it holds: ", std::string(why.message()),
                   "; see ", dir.LogFile(server.name), " and try again"));
}

absl::Status AskRouter(const RunDir& dir, const ServerRecord& router, AuditSample* sample) {
  const absl::StatusOr<HttpResult> answer =
      HttpCall({.url = router.http_url, .target = "/audit", .idle_timeout = kAnswerLimit});
  if (!answer.ok()) return NoAnswer(dir, router, answer.status());
  if (answer->code != 200) {
    return NoAnswer(dir, router, absl::UnavailableError(ErrorMessageOf(*answer)));
  }
  const absl::Status added =
      AddRouterAudit(json::parse(answer->body, nullptr, /*allow_exceptions=*/false), sample);
  return added.ok() ? added : NoAnswer(dir, router, added);
}

absl::StatusOr<AuditSample> TakeSample(const RunDir& dir, const ClusterTls* tls) {
  ASSIGN_OR_RETURN(const RunState state, dir.LoadRunning());
  AuditSample sample;
  for (const ServerRecord& server : state.servers) {
    if (server.role == "router") {
      RETURN_IF_ERROR(AskRouter(dir, server, &sample));
      continue;
    }
    // A process that has ended, or does not serve yet, holds nothing.
    if (!server.exited.empty() || server.incarnation.is_null()) continue;
    const Role role = server.role == "prefill" ? Role::kPrefill : Role::kDecode;
    absl::StatusOr<WorkerAudit> held =
        CallAudit({.role = role, .address = server.address}, tls, kAnswerLimit);
    if (!held.ok()) return NoAnswer(dir, server, held.status());
    sample.workers.push_back({.name = server.name, .role = server.role, .held = *std::move(held)});
  }
  return sample;
}

// Of one router of perhaps several. A worker that neither this router nor this tool reaches holds
// nothing that anybody could name: it is left out, with a word.
absl::StatusOr<AuditSample> TakeRemoteSample(const RemoteCluster& cluster) {
  AuditSample sample;
  sample.has_all_routers = false;
  ASSIGN_OR_RETURN(const json owned, cluster.Audit());
  RETURN_IF_ERROR(AddRouterAudit(owned, &sample));
  ASSIGN_OR_RETURN(const json status, cluster.Status());
  for (const ListedWorker& worker : WorkersOf(status)) {
    absl::StatusOr<WorkerAudit> held = cluster.AuditOf(worker);
    if (!held.ok() && worker.healthy) return held.status();
    if (!held.ok()) {
      std::fprintf(stderr, "baton audit: not asked: %s\n",
                   std::string(held.status().message()).c_str());
      continue;
    }
    sample.workers.push_back({.name = worker.name,
                              .role = worker.role == Role::kPrefill ? "prefill" : "decode",
                              .held = *std::move(held)});
  }
  return sample;
}

using Sampler = std::function<absl::StatusOr<AuditSample>()>;

absl::StatusOr<Sampler> SamplerOf(const AuditOptions& options) {
  if (!options.remote.router.empty()) {
    ASSIGN_OR_RETURN(RemoteCluster opened, RemoteCluster::Open(options.remote));
    const auto cluster = std::make_shared<RemoteCluster>(std::move(opened));
    return Sampler([cluster] { return TakeRemoteSample(*cluster); });
  }
  std::shared_ptr<ClusterTls> tls;
  if (!options.remote.tls_dir.empty()) {
    SetLogLevel(LogLevel::kWarning);
    ASSIGN_OR_RETURN(tls, ClusterTls::Create(options.remote.tls_dir, TlsRole::kAdmin));
  }
  return Sampler([dir = RunDir(options.dir), tls] { return TakeSample(dir, tls.get()); });
}

absl::StatusOr<AuditReport> TakeReport(const AuditOptions& options) {
  ASSIGN_OR_RETURN(const Sampler take_sample, SamplerOf(options));
  ASSIGN_OR_RETURN(const AuditSample first, take_sample());
  AuditReport report = Reconcile(first, first);
  // What has an owner once needs no second look.
  if (report.ok()) return report;
  poll(nullptr, 0, static_cast<int>(options.interval_s * 1000));
  ASSIGN_OR_RETURN(const AuditSample second, take_sample());
  return Reconcile(first, second);
}

}  // namespace

int Audit(const AuditOptions& options) {
  const absl::StatusOr<AuditReport> report = TakeReport(options);
  if (!report.ok()) {
    std::fprintf(stderr, "baton audit: %s\n", std::string(report.status().message()).c_str());
    return 2;
  }
  const std::string text =
      options.json ? absl::StrCat(AuditJson(*report).dump(2), "\n") : AuditTable(*report);
  std::fputs(text.c_str(), stdout);
  return report->ok() ? 0 : 1;
}

}  // namespace baton::cli
