#include "common/tls/certificate_authority.h"

#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/rand.h>

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/strip.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr absl::string_view kDomainScheme = "spiffe://";

struct Extension {
  int nid;
  std::string value;
};

absl::Status Failed(const char* what) {
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL could not ", what));
}

absl::Status SetSerial(X509* certificate) {
  std::array<uint8_t, 16> bytes;
  if (RAND_bytes(bytes.data(), bytes.size()) != 1) return Failed("draw a serial number");
  bytes[0] &= 0x7f;  // Positive,
  bytes[0] |= 0x40;  // and of full length.
  const std::unique_ptr<BIGNUM, FreeBy<BN_free>> number(
      BN_bin2bn(bytes.data(), bytes.size(), nullptr));
  if (BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) == nullptr) {
    return Failed("set a serial number");
  }
  return absl::OkStatus();
}

absl::Status AddExtensions(X509* certificate, X509* issuer,
                           const std::vector<Extension>& extensions) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  for (const Extension& one : extensions) {
    const std::unique_ptr<X509_EXTENSION, FreeBy<X509_EXTENSION_free>> extension(
        X509V3_EXT_conf_nid(nullptr, &context, one.nid, one.value.c_str()));
    if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
      return Failed("add an extension to a certificate");
    }
  }
  return absl::OkStatus();
}

struct CertificateArgs {
  EVP_PKEY* key = nullptr;  // The subject's.
  std::string name;         // Its common name, for people only: at most 64 bytes count.
  X509* issuer = nullptr;   // Null: itself.
  EVP_PKEY* issuer_key = nullptr;
  int64_t from_s = 0;
  int64_t to_s = 0;
  std::vector<Extension> extensions;
};

absl::StatusOr<CertPtr> MakeCertificate(const CertificateArgs& args) {
  CertPtr made(X509_new());
  X509* const c = made.get();
  X509_set_version(c, X509_VERSION_3);
  RETURN_IF_ERROR(SetSerial(c));
  ASN1_TIME_set(X509_getm_notBefore(c), static_cast<time_t>(args.from_s));
  ASN1_TIME_set(X509_getm_notAfter(c), static_cast<time_t>(args.to_s));
  const std::string name = args.name.substr(0, 64);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(c), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509* const issuer = args.issuer == nullptr ? c : args.issuer;
  X509_set_issuer_name(c, X509_get_subject_name(issuer));
  X509_set_pubkey(c, args.key);
  RETURN_IF_ERROR(AddExtensions(c, issuer, args.extensions));
  if (X509_sign(c, args.issuer_key, EVP_sha256()) == 0) return Failed("sign a certificate");
  return made;
}

}  // namespace

CertificateAuthority::CertificateAuthority(KeyPtr key, CertPtr certificate,
                                           std::string trust_domain)
    : key_(std::move(key)),
      certificate_(std::move(certificate)),
      trust_domain_(std::move(trust_domain)) {}

absl::StatusOr<CertificateAuthority> CertificateAuthority::Make(const std::string& trust_domain,
                                                                int64_t now_s) {
  RETURN_IF_ERROR(CheckIdWord("--trust-domain", trust_domain));
  KeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("make a key");
  ASSIGN_OR_RETURN(
      CertPtr certificate,
      MakeCertificate({.key = key.get(),
                       .name = "Baton CA",
                       .issuer_key = key.get(),
                       .from_s = now_s - kBackdateS,
                       .to_s = now_s + kCaDays * kDayS,
                       .extensions = {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                      {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                      {NID_subject_key_identifier, "hash"},
                                      {NID_subject_alt_name,
                                       absl::StrCat("URI:", kDomainScheme, trust_domain)}}}));
  return CertificateAuthority(std::move(key), std::move(certificate), trust_domain);
}

absl::StatusOr<CertificateAuthority> CertificateAuthority::Parse(
    const std::string& key_pem, const std::string& certificate_pem) {
  KeyPtr key = ParseKey(key_pem);
  std::vector<CertPtr> certificates = ParseCertificates(certificate_pem);
  if (key == nullptr || certificates.empty() ||
      X509_check_private_key(certificates[0].get(), key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("ca.key and ca.crt are not a key and its certificate");
  }
  const std::vector<std::string> uris = UrisOf(certificates[0].get());
  absl::string_view domain;
  if (uris.size() == 1) domain = uris[0];
  if (!absl::ConsumePrefix(&domain, kDomainScheme) || !CheckIdWord("", domain).ok()) {
    return absl::InvalidArgumentError("ca.crt names no trust domain, spiffe://TRUST_DOMAIN");
  }
  std::string trust_domain(domain);
  return CertificateAuthority(std::move(key), std::move(certificates[0]), std::move(trust_domain));
}

absl::StatusOr<TlsFiles> CertificateAuthority::Issue(SpiffeId id, int64_t now_s,
                                                     int64_t days) const {
  RETURN_IF_ERROR(CheckIdWord("--namespace", id.name_space));
  RETURN_IF_ERROR(CheckIdWord("--release", id.release));
  id.trust_domain = trust_domain_;
  const KeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("make a key");
  ASSIGN_OR_RETURN(
      const CertPtr leaf,
      MakeCertificate({.key = key.get(),
                       .name = absl::StrCat(id.release, "-", RoleWord(id.role)),
                       .issuer = certificate_.get(),
                       .issuer_key = key_.get(),
                       .from_s = now_s - kBackdateS,
                       .to_s = now_s + days * kDayS,
                       .extensions = {{NID_basic_constraints, "critical,CA:FALSE"},
                                      {NID_key_usage, "critical,digitalSignature"},
                                      {NID_ext_key_usage, "serverAuth,clientAuth"},
                                      {NID_subject_key_identifier, "hash"},
                                      {NID_authority_key_identifier, "keyid:always"},
                                      {NID_subject_alt_name,
                                       absl::StrCat("URI:", id.ToUri())}}}));
  return TlsFiles{
      .key_pem = ToPem(key.get()), .chain_pem = ToPem(leaf.get()), .ca_pem = certificate_pem()};
}

}  // namespace baton
