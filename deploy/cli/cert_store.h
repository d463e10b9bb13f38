#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tls/certificate_authority.h"
#include "common/tls/spiffe_id.h"

namespace baton::cli {

// The folder of `baton certs`: ca/ with the CA and its key, and for each role a folder that serves
// as --tls-dir. There the files are links through one link to a folder of one edition, so that
// all of them are replaced at once; ca/ becomes such a folder when it first changes.
//
// Rotation of the CA: in ca/ is what issues (ca.key, ca.crt), and beside it first the CA that is to
// issue next (BeginRotation), then the one that did before (Renew all), at last none
// (FinishRotation). ca.crt of every role names all of them. Each step changes ca/ first, as a
// whole; what was killed after that is done by the same step once more.
//
// All errors are one line with the cure; what changes the folder is refused with UNAVAILABLE while
// another process does.
class CertStore {
 public:
  explicit CertStore(std::string dir) : dir_(std::move(dir)) {}

  // ALREADY_EXISTS if there is a CA: all certificates would be void.
  absl::Status Init(const std::string& trust_domain, int64_t now_s) const;

  // A new key and certificate. NOT_FOUND without a CA.
  absl::Status Issue(const SpiffeId& id, int64_t now_s, int64_t days = kLeafDays) const;

  // Those that end within kRenewBeforeEndDays, or all. Returns the roles that it renewed. All,
  // after BeginRotation: from here on the next CA issues.
  absl::StatusOr<std::vector<TlsRole>> Renew(bool all, int64_t now_s) const;

  // Makes the next CA, which every role trusts from here on, and which issues nothing yet.
  // ALREADY_EXISTS: that was done.
  absl::Status BeginRotation(int64_t now_s) const;

  // The old CA is trusted no more. FAILED_PRECONDITION: there is none, or it has issued a
  // certificate that is still in use.
  absl::Status FinishRotation(int64_t now_s) const;

  // The roles that have a folder.
  std::vector<TlsRole> Roles() const;

  // --tls-dir of a role.
  std::string RoleDir(TlsRole role) const;

 private:
  struct File {
    std::string name;
    std::string text;
    mode_t mode = 0644;
  };
  // What ca/ holds.
  struct Authorities {
    CertificateAuthority issuer;
    std::string next_key;  // PEM, of the CA that is trusted already and issues next.
    std::string next;
    std::string old;       // Of the one that is trusted still.

    // ca.crt of every role.
    std::string Bundle() const { return issuer.certificate_pem() + next + old; }
  };
  struct RoleFiles {
    TlsRole role = TlsRole::kAdmin;
    TlsFiles files;
  };

  absl::StatusOr<Authorities> ReadAuthorities() const;
  absl::Status WriteAuthorities(const std::vector<File>& files, int64_t now_s) const;
  absl::Status IssueBy(const Authorities& authorities, const SpiffeId& id, int64_t now_s,
                       int64_t days) const;
  absl::StatusOr<std::vector<RoleFiles>> ReadRoles() const;
  absl::Status CheckBundles(const Authorities& authorities) const;
  absl::Status WriteBundles(const Authorities& authorities, int64_t now_s) const;
  absl::StatusOr<Authorities> LetNextIssue(const Authorities& authorities, int64_t now_s) const;
  absl::Status WriteRole(TlsRole role, const TlsFiles& files, int64_t now_s) const;
  // Files of `folder` become those, all of them at once.
  absl::Status Switch(const std::string& folder, const std::vector<File>& files,
                      int64_t now_s) const;

  const std::string dir_;
};

}  // namespace baton::cli
