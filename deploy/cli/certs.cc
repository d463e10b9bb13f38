#include "deploy/cli/certs.h"

#include <cstdio>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/process/command_line.h"
#include "deploy/cli/cert_store.h"

namespace baton::cli {
namespace {

constexpr int kMaxLeafDays = 397;

int Report(const absl::Status& status) {
  return status.ok() ? 0 : FailToStart("baton certs", status);
}

absl::Status Issue(const CertsOptions& o) {
  const CertStore store(o.dir);
  RETURN_IF_ERROR(CheckOption("--days", o.days, 1, kMaxLeafDays));
  for (const TlsRole role : kTlsRoles) {
    if (!o.role.empty() && o.role != RoleWord(role)) continue;
    RETURN_IF_ERROR(store.Issue({.name_space = o.name_space, .release = o.release, .role = role},
                                UnixSeconds(), o.days));
    std::printf("%s\n", store.RoleDir(role).c_str());
  }
  return absl::OkStatus();
}

absl::Status Renew(const CertsOptions& o) {
  const CertStore store(o.dir);
  ASSIGN_OR_RETURN(const std::vector<TlsRole> renewed, store.Renew(o.all, UnixSeconds()));
  for (const TlsRole role : renewed) std::printf("%s\n", store.RoleDir(role).c_str());
  return absl::OkStatus();
}

// Tells what to hand out, and what is next.
absl::Status Rotate(const CertsOptions& o) {
  const CertStore store(o.dir);
  RETURN_IF_ERROR(o.begin ? store.BeginRotation(UnixSeconds())
                          : store.FinishRotation(UnixSeconds()));
  for (const TlsRole role : store.Roles()) std::printf("%s\n", store.RoleDir(role).c_str());
  std::printf(o.begin ? "Next: copy them to their servers; a minute later `baton certs renew "
                        "--all`, and copy them again; a minute later `baton certs rotate-ca "
                        "--finish`\n"
                      : "Next: copy them to their servers, which then refuse the old CA\n");
  return absl::OkStatus();
}

}  // namespace

int InitCerts(const CertsOptions& options) {
  return Report(CertStore(options.dir).Init(options.trust_domain, UnixSeconds()));
}

int IssueCerts(const CertsOptions& options) { return Report(Issue(options)); }

int RenewCerts(const CertsOptions& options) { return Report(Renew(options)); }

int RotateCa(const CertsOptions& options) { return Report(Rotate(options)); }

}  // namespace baton::cli
