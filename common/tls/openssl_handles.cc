#include "common/tls/openssl_handles.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include "common/base/check.h"

namespace baton {
namespace {

int NoPassword(char*, int, int, void*) { return -1; }

std::string TakeText(const BioPtr& bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

BioPtr Reader(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

int64_t SecondsOf(const ASN1_TIME* time) {
  const std::unique_ptr<ASN1_TIME, FreeBy<ASN1_STRING_free>> epoch(ASN1_TIME_set(nullptr, 0));
  int days = 0;
  int seconds = 0;
  if (ASN1_TIME_diff(&days, &seconds, epoch.get(), time) != 1) return 0;
  return int64_t{days} * 86'400 + seconds;
}

}  // namespace

KeyPtr ParseKey(const std::string& pem) {
  KeyPtr key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  return key;
}

std::vector<CertPtr> ParseCertificates(const std::string& pem) {
  const BioPtr bio = Reader(pem);
  std::vector<CertPtr> certificates;
  while (CertPtr one{PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr)}) {
    certificates.push_back(std::move(one));
  }
  // What ends the list must be the end of the text, not a damaged certificate.
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!ended) certificates.clear();
  return certificates;
}

std::string ToPem(EVP_PKEY* key) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  BATON_CHECK(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  return TakeText(bio);
}

std::string ToPem(X509* certificate) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  BATON_CHECK(PEM_write_bio_X509(bio.get(), certificate) == 1);
  return TakeText(bio);
}

std::vector<std::string> UrisOf(const X509* certificate) {
  std::vector<std::string> uris;
  const std::unique_ptr<GENERAL_NAMES, FreeBy<GENERAL_NAMES_free>> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return uris;
}

int64_t NotBefore(const X509* certificate) { return SecondsOf(X509_get0_notBefore(certificate)); }

int64_t NotAfter(const X509* certificate) { return SecondsOf(X509_get0_notAfter(certificate)); }

}  // namespace baton
