#include "deploy/cli/up.h"

#include <unistd.h>

#include <cstdio>
#include <memory>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/process/command_line.h"
#include "deploy/cli/cert_store.h"
#include "deploy/cli/report.h"
#include "deploy/cli/supervisor.h"

namespace baton::cli {
namespace {

// What can be checked before the folder is touched.
absl::Status CheckOptions(UpOptions& options) {
  RETURN_IF_ERROR(options.Validate());
  ASSIGN_OR_RETURN(options.model, FindModel(options.model, ProgramFolder()));
  return RunDir(options.dir).Create();
}

absl::Status ChoosePorts(UpOptions& options) {
  // Who takes any port for the API takes any for this, and no other cluster's.
  if (options.http_port == 0 && !options.ops_port) options.ops_port = 0;
  ASSIGN_OR_RETURN(options.http_port, ChoosePort(options.http_port, kDefaultHttpPort, "--http"));
  ASSIGN_OR_RETURN(options.grpc_port, ChoosePort(options.grpc_port, kDefaultGrpcPort, "--grpc"));
  ASSIGN_OR_RETURN(options.ops_port, ChoosePort(options.ops_port, kDefaultOpsPort, "--ops"));
  return absl::OkStatus();
}

// New certificates for each start; the CA stays, for servers of this folder that still run.
absl::Status IssueAll(const UpOptions& options) {
  const CertStore store(CertsOf(options));
  const absl::Status made = store.Init("cluster.local", UnixSeconds());
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  for (const TlsRole role : kTlsRoles) {
    RETURN_IF_ERROR(store.Issue({.name_space = "default", .release = "baton", .role = role},
                                UnixSeconds()));
  }
  return absl::OkStatus();
}

// Takes the folder, then runs the cluster in it.
int Supervise(UpOptions options, Report& report) {
  const RunDir dir(options.dir);
  // Held until this process ends; children do not inherit it.
  const absl::StatusOr<int> lock = dir.Lock();
  absl::Status status = lock.status();
  if (status.ok()) status = ChoosePorts(options);
  if (status.ok() && options.tls) status = IssueAll(options);
  if (!status.ok()) {
    report.Refused(absl::StrCat("baton up: ", status.message()));
    return kStartErrorExit;
  }
  Supervisor supervisor(std::move(options), dir, report);
  return supervisor.Run();
}

}  // namespace

int Up(UpOptions options) {
  const absl::Status status = CheckOptions(options);
  if (!status.ok()) return FailToStart("baton up", status);
  if (!options.detach) {
    const std::unique_ptr<Report> report = MakeForegroundReport();
    return Supervise(std::move(options), *report);
  }
  absl::StatusOr<DetachResult> detached = Detach(options.dir + "/logs/baton-up.log");
  if (!detached.ok()) {
    std::fprintf(stderr, "baton up: %s\n", std::string(detached.status().message()).c_str());
    return 1;
  }
  if (!detached->is_supervisor) return detached->exit_code;
  return Supervise(std::move(options), *detached->report);
}

}  // namespace baton::cli
