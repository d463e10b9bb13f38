#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/tls/spiffe_id.h"

namespace baton {

// What --tls-dir holds: tls.key, tls.crt (leaf first, then intermediates) and ca.crt (one or, while
// the CA is rotated, several).
struct TlsFiles {
  std::string key_pem;
  std::string chain_pem;
  std::string ca_pem;

  bool operator==(const TlsFiles&) const = default;
};

// Files that fit together: the key fits the leaf, the chain leads to the CA, and the leaf names a
// process. Immutable.
struct TlsIdentity {
  TlsFiles files;
  SpiffeId id;
  int64_t not_before_s = 0;  // Of the leaf, seconds since 1970.
  int64_t not_after_s = 0;
};

// The text of one file. NOT_FOUND, FAILED_PRECONDITION (a secret is open to everybody) or
// INVALID_ARGUMENT names the file, in one line.
absl::StatusOr<std::string> ReadPem(const std::string& dir, const char* name, bool is_secret);

// NOT_FOUND, FAILED_PRECONDITION (the key is open to everybody) or INVALID_ARGUMENT names the file
// and the cure, in one line, and nothing of the key.
absl::StatusOr<TlsFiles> ReadTlsFiles(const std::string& dir);

// Checks them as of `now_s`. FAILED_PRECONDITION: expired. UNAVAILABLE: not valid yet, so trying
// again helps. INVALID_ARGUMENT: they do not fit.
absl::StatusOr<TlsIdentity> CheckTlsFiles(TlsFiles files, int64_t now_s);

// Whether certificates (PEM, leaf first) lead to one of those in `ca_pem`, whatever their dates.
bool LeadsTo(const std::string& chain_pem, const std::string& ca_pem);

// Both, with "--tls-dir DIR: " before the message.
absl::StatusOr<TlsIdentity> LoadTlsDir(const std::string& dir, int64_t now_s);

}  // namespace baton
