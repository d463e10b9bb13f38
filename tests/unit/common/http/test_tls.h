#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/tls/certificate_authority.h"
#include "common/tls/server_pair.h"

namespace baton::http {

// A server's context with a certificate of its own.
inline std::shared_ptr<SSL_CTX> NewServerTls(HttpVersion version = HttpVersion::kHttp11) {
  const auto authority = CertificateAuthority::Make("test.local", UnixSeconds());
  BATON_CHECK(authority.ok());
  const auto files = authority->Issue({.trust_domain = "test.local",
                                       .name_space = "default",
                                       .release = "baton",
                                       .role = TlsRole::kRouter},
                                      UnixSeconds());
  BATON_CHECK(files.ok());
  auto context = MakeHttpsContext(files->key_pem + files->chain_pem, version);
  BATON_CHECK(context.ok());
  return *std::move(context);
}

// Of a client that takes any server.
inline std::shared_ptr<SSL_CTX> NewClientTls(int version = 0) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  SSL_CTX_set_security_level(context.get(), 0);
  SSL_CTX_set_cipher_list(context.get(), "ALL");
  SSL_CTX_set_min_proto_version(context.get(), version);
  SSL_CTX_set_max_proto_version(context.get(), version);
  return context;
}

}  // namespace baton::http
