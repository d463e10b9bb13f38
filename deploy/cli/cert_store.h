#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tls/certificate_authority.h"
#include "common/tls/spiffe_id.h"

namespace baton::cli {

// The folder of `baton certs`: ca/ with the CA and its key, and for each role a folder that serves
// as --tls-dir. There the three files are links through one link to a folder of one generation, so
// that all of them are replaced at once.
class CertStore {
 public:
  explicit CertStore(std::string dir) : dir_(std::move(dir)) {}

  // ALREADY_EXISTS if there is a CA: all certificates would be void.
  absl::Status Init(const std::string& trust_domain, int64_t now_s) const;

  // A new key and certificate. NOT_FOUND without a CA.
  absl::Status Issue(const SpiffeId& id, int64_t now_s, int64_t days = kLeafDays) const;

  // Those that end within kRenewBeforeEndDays, or all. Returns the roles that it renewed.
  absl::StatusOr<std::vector<TlsRole>> Renew(bool all, int64_t now_s) const;

  // --tls-dir of a role.
  std::string RoleDir(TlsRole role) const;

 private:
  absl::StatusOr<CertificateAuthority> Authority() const;
  absl::Status Switch(TlsRole role, const TlsFiles& files, int64_t now_s) const;

  const std::string dir_;
};

}  // namespace baton::cli
