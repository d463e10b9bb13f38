#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace baton {

// The key (tls.key) and the certificates (tls.crt: leaf first, then intermediates) by which clients
// of a public server know it, as one text: from whatever CA, for whatever names.

// NOT_FOUND, FAILED_PRECONDITION (the key is open to everybody) or INVALID_ARGUMENT names the file
// and the cure, in one line, and nothing of the key.
absl::StatusOr<std::string> ReadServerPair(const std::string& dir);

// Checks it as of `now_s` and returns the second at which the leaf ends. FAILED_PRECONDITION:
// expired. UNAVAILABLE: not valid yet, so trying again helps. INVALID_ARGUMENT: key, leaf and
// intermediates do not fit, or the leaf is no server's.
absl::StatusOr<int64_t> CheckServerPair(const std::string& pair_pem, int64_t now_s);

// What a server's connections speak over TLS; who offers protocols (ALPN) must offer that one.
enum class HttpVersion { kHttp11, kHttp2 };

// What the HTTPS connections of a server share: TLS 1.3, and of HTTP/1.1 1.2 with forward secrecy,
// no renegotiation, no buffers of connections that say nothing, no sessions. Of a pair that was
// checked.
absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeHttpsContext(
    const std::string& pair_pem, HttpVersion version = HttpVersion::kHttp11);

}  // namespace baton
