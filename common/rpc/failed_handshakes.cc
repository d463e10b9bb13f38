#include "common/rpc/failed_handshakes.h"

#include <openssl/ssl.h>

#include "common/base/check.h"

namespace baton {
namespace {

FailedHandshakes& OfProcess() {
  static FailedHandshakes counts;
  return counts;
}

// OpenSSL is about to free `parent`, an SSL whose fields are all there still.
void OnFree(void* parent, void*, CRYPTO_EX_DATA*, int, long, void*) {  // NOLINT: OpenSSL's types.
  const auto* const ssl = static_cast<const SSL*>(parent);
  // Of the others, the API's and the K/V plane's, no side or one side shows a certificate.
  if ((SSL_get_verify_mode(ssl) & SSL_VERIFY_PEER) == 0 || SSL_is_init_finished(ssl) != 0) return;
  switch (SSL_get_verify_result(ssl)) {
    case X509_V_OK:  // A client cannot tell a server that refuses it from one that is gone.
      if (SSL_is_server(ssl) != 0) ++OfProcess().handshake;
      return;
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      ++OfProcess().expired;
      return;
    default:
      ++OfProcess().ca;
  }
}

}  // namespace

const FailedHandshakes& CountFailedHandshakes() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, OnFree);
  BATON_CHECK(index >= 0);
  return OfProcess();
}

}  // namespace baton
