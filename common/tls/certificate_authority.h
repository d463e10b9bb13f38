#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/tls/openssl_handles.h"
#include "common/tls/spiffe_id.h"
#include "common/tls/tls_files.h"

namespace baton {

inline constexpr int64_t kDayS = 86'400;
inline constexpr int64_t kCaDays = 3650;
inline constexpr int64_t kLeafDays = 30;
inline constexpr int64_t kRenewBeforeEndDays = 10;  // From day 20 on.
inline constexpr int64_t kBackdateS = 3600;         // Clocks of machines differ.

// A CA of one trust domain with its key: makes leaves (ECDSA P-256, one URI, for both ends of a
// connection).
class CertificateAuthority {
 public:
  // A new key and its self-signed certificate, valid from `now_s` on.
  static absl::StatusOr<CertificateAuthority> Make(const std::string& trust_domain, int64_t now_s);

  // INVALID_ARGUMENT: not a key and the CA certificate that fits it.
  static absl::StatusOr<CertificateAuthority> Parse(const std::string& key_pem,
                                                    const std::string& certificate_pem);

  // A new key with its certificate for `id`, whose trust domain is replaced by this one's.
  absl::StatusOr<TlsFiles> Issue(SpiffeId id, int64_t now_s, int64_t days = kLeafDays) const;

  std::string key_pem() const { return ToPem(key_.get()); }
  std::string certificate_pem() const { return ToPem(certificate_.get()); }
  const std::string& trust_domain() const { return trust_domain_; }

 private:
  CertificateAuthority(KeyPtr key, CertPtr certificate, std::string trust_domain);

  KeyPtr key_;
  CertPtr certificate_;
  std::string trust_domain_;
};

}  // namespace baton
