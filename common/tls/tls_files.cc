#include "common/tls/tls_files.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/tls/openssl_handles.h"

namespace baton {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr char kMissing[] =
    "; a folder of tls.key, tls.crt and ca.crt is needed, as `baton certs issue` makes it";

class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

// X509_V_OK, or why the leaf does not lead to one of `roots`. `now_s` null: whatever the dates are.
int VerifyChain(const std::vector<CertPtr>& chain, const std::vector<CertPtr>& roots,
                const int64_t* now_s) {
  const StorePtr store(X509_STORE_new());
  for (const CertPtr& root : roots) X509_STORE_add_cert(store.get(), root.get());
  STACK_OF(X509)* untrusted = sk_X509_new_null();
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(untrusted, chain[i].get());
  const StoreContextPtr context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), chain[0].get(), untrusted);
  if (now_s != nullptr) {
    X509_STORE_CTX_set_time(context.get(), 0, static_cast<time_t>(*now_s));
  } else {
    X509_STORE_CTX_set_flags(context.get(), X509_V_FLAG_NO_CHECK_TIME);
  }
  const bool fits = X509_verify_cert(context.get()) == 1;
  const int error = X509_STORE_CTX_get_error(context.get());
  sk_X509_free(untrusted);
  ERR_clear_error();
  return fits ? X509_V_OK : error;
}

// The dates of the leaf have errors of their own.
absl::Status CheckChain(const std::vector<CertPtr>& chain, const std::vector<CertPtr>& roots,
                        int64_t now_s) {
  const int error = VerifyChain(chain, roots, &now_s);
  if (error == X509_V_OK) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tls.crt does not lead to ca.crt (", X509_verify_cert_error_string(error),
                   "); take both from the same `baton certs issue`"));
}

std::string Date(int64_t seconds) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(seconds),
                          absl::UTCTimeZone());
}

absl::Status CheckDates(const TlsIdentity& identity, int64_t now_s) {
  if (now_s > identity.not_after_s) {
    return absl::FailedPreconditionError(
        absl::StrCat("tls.crt expired on ", Date(identity.not_after_s),
                     "; `baton certs renew` makes a new one"));
  }
  if (now_s < identity.not_before_s) {
    return absl::UnavailableError(absl::StrCat("tls.crt is not valid before ",
                                               Date(identity.not_before_s),
                                               "; compare the clocks of the machines"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadPem(const std::string& dir, const char* name, bool is_secret) {
  const OpenFile file(absl::StrCat(dir, "/", name));
  struct stat info{};
  if (file.fd() < 0 || fstat(file.fd(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::NotFoundError(absl::StrCat(name, " cannot be read"));
  }
  if (is_secret && (info.st_mode & S_IRWXO) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is open to every user of this machine; chmod 600 it"));
  }
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(file.fd(), buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMaxFileBytes) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is larger than 1 MiB"));
    }
  }
  return text;
}

absl::StatusOr<TlsFiles> ReadTlsFiles(const std::string& dir) {
  TlsFiles files;
  for (const auto& [name, pem] : {std::pair{"tls.key", &files.key_pem},
                                  std::pair{"tls.crt", &files.chain_pem},
                                  std::pair{"ca.crt", &files.ca_pem}}) {
    absl::StatusOr<std::string> text = ReadPem(dir, name, /*is_secret=*/pem == &files.key_pem);
    if (absl::IsNotFound(text.status())) {
      return absl::NotFoundError(absl::StrCat(text.status().message(), kMissing));
    }
    if (!text.ok()) return text.status();
    *pem = *std::move(text);
  }
  return files;
}

absl::StatusOr<TlsIdentity> CheckTlsFiles(TlsFiles files, int64_t now_s) {
  const KeyPtr key = ParseKey(files.key_pem);
  if (key == nullptr) {
    return absl::InvalidArgumentError("tls.key holds no private key in PEM without a password");
  }
  const std::vector<CertPtr> chain = ParseCertificates(files.chain_pem);
  if (chain.empty()) return absl::InvalidArgumentError("tls.crt holds no certificate in PEM");
  const std::vector<CertPtr> roots = ParseCertificates(files.ca_pem);
  if (roots.empty()) return absl::InvalidArgumentError("ca.crt holds no certificate in PEM");
  X509* leaf = chain[0].get();
  if (X509_check_private_key(leaf, key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        "tls.key does not fit tls.crt; take both from the same `baton certs issue`");
  }
  const std::vector<std::string> uris = UrisOf(leaf);
  if (uris.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("tls.crt names ", uris.size(),
                                                   " URIs; exactly one, a SPIFFE id, is needed"));
  }
  const absl::StatusOr<SpiffeId> id = ParseSpiffeId(uris[0]);
  if (!id.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the URI of tls.crt ", id.status().message()));
  }
  TlsIdentity identity{
      .id = *id, .not_before_s = NotBefore(leaf), .not_after_s = NotAfter(leaf)};
  RETURN_IF_ERROR(CheckDates(identity, now_s));
  RETURN_IF_ERROR(CheckChain(chain, roots, now_s));
  identity.files = std::move(files);
  return identity;
}

bool LeadsTo(const std::string& chain_pem, const std::string& ca_pem) {
  const std::vector<CertPtr> chain = ParseCertificates(chain_pem);
  const std::vector<CertPtr> roots = ParseCertificates(ca_pem);
  return !chain.empty() && VerifyChain(chain, roots, nullptr) == X509_V_OK;
}

absl::StatusOr<TlsIdentity> LoadTlsDir(const std::string& dir, int64_t now_s) {
  absl::StatusOr<TlsFiles> files = ReadTlsFiles(dir);
  absl::StatusOr<TlsIdentity> identity =
      files.ok() ? CheckTlsFiles(*std::move(files), now_s) : files.status();
  if (identity.ok()) return identity;
  return absl::Status(identity.status().code(),
                      absl::StrCat("--tls-dir ", dir, ": ", identity.status().message()));
}

}  // namespace baton
