#include "common/tls/server_pair.h"

#include <openssl/err.h>

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/tls/openssl_handles.h"
#include "common/tls/tls_files.h"

namespace baton {
namespace {

constexpr char kNoPair[] = "; a folder of tls.key and tls.crt is needed";
constexpr char kSuitesOfTls12[] = "ECDHE+AESGCM:ECDHE+CHACHA20";
constexpr std::string_view kHttp11("\x08http/1.1");
constexpr std::string_view kHttp2("\x02h2");

std::string DayOf(int64_t seconds) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(seconds),
                          absl::UTCTimeZone());
}

absl::Status CheckLeafDates(const X509* leaf, int64_t now_s) {
  if (now_s > NotAfter(leaf)) {
    return absl::FailedPreconditionError(
        absl::StrCat("tls.crt expired on ", DayOf(NotAfter(leaf)), "; put a new one there"));
  }
  if (now_s < NotBefore(leaf)) {
    return absl::UnavailableError(absl::StrCat("tls.crt is not valid before ",
                                               DayOf(NotBefore(leaf)),
                                               "; compare the clock of this machine"));
  }
  return absl::OkStatus();
}

// `ours`: a string_view.
int ChooseProtocol(SSL*, const unsigned char** chosen, unsigned char* chosen_bytes,
                   const unsigned char* offered, unsigned int offered_bytes, void* ours) {
  const auto& protocol = *static_cast<const std::string_view*>(ours);
  unsigned char* common = nullptr;
  const int found = SSL_select_next_proto(
      &common, chosen_bytes, reinterpret_cast<const unsigned char*>(protocol.data()),
      static_cast<unsigned int>(protocol.size()), offered, offered_bytes);
  *chosen = common;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

bool UsePair(SSL_CTX* context, const std::string& pair_pem) {
  const KeyPtr key = ParseKey(pair_pem);
  const std::vector<CertPtr> chain = ParseCertificates(pair_pem);
  if (key == nullptr || chain.empty()) return false;
  if (SSL_CTX_use_certificate(context, chain[0].get()) != 1) return false;
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) return false;
  }
  return SSL_CTX_use_PrivateKey(context, key.get()) == 1;
}

}  // namespace

absl::StatusOr<std::string> ReadServerPair(const std::string& dir) {
  std::string pair;
  for (const char* name : {"tls.key", "tls.crt"}) {
    const absl::StatusOr<std::string> pem = ReadPem(dir, name, /*is_secret=*/pair.empty());
    if (absl::IsNotFound(pem.status())) {
      return absl::NotFoundError(absl::StrCat(pem.status().message(), kNoPair));
    }
    if (!pem.ok()) return pem.status();
    absl::StrAppend(&pair, *pem, "\n");
  }
  return pair;
}

absl::StatusOr<int64_t> CheckServerPair(const std::string& pair_pem, int64_t now_s) {
  const KeyPtr key = ParseKey(pair_pem);
  if (key == nullptr) {
    return absl::InvalidArgumentError("tls.key holds no private key in PEM without a password");
  }
  const std::vector<CertPtr> chain = ParseCertificates(pair_pem);
  if (chain.empty()) return absl::InvalidArgumentError("tls.crt holds no certificate in PEM");
  X509* leaf = chain[0].get();
  const bool fits = X509_check_private_key(leaf, key.get()) == 1;
  ERR_clear_error();
  if (!fits) return absl::InvalidArgumentError("tls.key does not fit tls.crt; replace both");
  if (X509_check_purpose(leaf, X509_PURPOSE_SSL_SERVER, /*ca=*/0) != 1) {
    return absl::InvalidArgumentError("tls.crt is not a server's; ask for one with serverAuth");
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    if (X509_check_issued(chain[i].get(), chain[i - 1].get()) == X509_V_OK) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "certificate ", i + 1, " of tls.crt did not issue the one before; put the leaf first"));
  }
  RETURN_IF_ERROR(CheckLeafDates(leaf, now_s));
  return NotAfter(leaf);
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeHttpsContext(const std::string& pair_pem,
                                                          HttpVersion version) {
  std::shared_ptr<SSL_CTX> made(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  SSL_CTX* const context = made.get();
  const int oldest = version == HttpVersion::kHttp2 ? TLS1_3_VERSION : TLS1_2_VERSION;
  const bool is_set = context != nullptr && SSL_CTX_set_min_proto_version(context, oldest) == 1 &&
                      SSL_CTX_set_cipher_list(context, kSuitesOfTls12) == 1 &&
                      UsePair(context, pair_pem);
  ERR_clear_error();
  if (!is_set) {
    return absl::InvalidArgumentError("OpenSSL takes no server from tls.key and tls.crt; take an "
                                      "ECDSA key of P-256, or an RSA key of 2048 bits");
  }
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // A write may take a part, and what is left is offered again from where it then is; a read ends
  // with each record, so that what one client sends keeps no thread.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
  static constexpr std::string_view kProtocols[] = {kHttp11, kHttp2};
  SSL_CTX_set_alpn_select_cb(
      context, ChooseProtocol,
      const_cast<std::string_view*>(&kProtocols[version == HttpVersion::kHttp2 ? 1 : 0]));
  return made;
}

}  // namespace baton
