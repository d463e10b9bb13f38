#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "router/front/stream_limits.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX.

namespace baton {

struct GrpcFrontOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0 = any free one.
  // What each new connection speaks TLS by, at that moment; empty = plaintext.
  std::function<std::shared_ptr<ssl_ctx_st>()> tls;
  // Takes a connection in plaintext, which is its own from then on. On the front's thread.
  std::function<void(int fd)> serve;
  // At the limit one goes of the address that has most: the one that was quiet longest of those
  // without an open stream, or of all if the new one's address has fewer; or else the new one. Each
  // takes three files.
  int max_connections = 1024;
  Duration handshake_limit = std::chrono::seconds(5);  // Of TLS and HTTP/2's first frame.
  Duration write_limit = std::chrono::seconds(30);     // For a client to take some of what waits.
  StreamLimitsOptions streams;
};

// What stands before the gRPC library on its public port, with a thread of its own: it has the
// connections, and TLS; it counts the streams that clients reset, which the library does not, and
// gives it the bytes, no faster than it gets over those. A client that has more open than it may
// gets GOAWAY (ENHANCE_YOUR_CALM), and its calls end.
class GrpcFront {
 public:
  // Binds and listens, but accepts only after Start. UNAVAILABLE names --grpc-port and the cure,
  // INVALID_ARGUMENT the host.
  static absl::StatusOr<std::unique_ptr<GrpcFront>> Create(GrpcFrontOptions options);
  virtual ~GrpcFront() = default;  // Stops.

  virtual void Start() = 0;
  virtual uint16_t port() const = 0;
  virtual int64_t num_connections() const = 0;
  // Connections whose streams had to wait, once or more; that were closed for their open ones.
  virtual int64_t num_paced() const = 0;
  virtual int64_t num_calmed() const = 0;

  // Accepts nothing new; `serve` has been called for the last time. What is there goes on.
  virtual void Drain() = 0;
  // Drain; what is left is closed as soon as its client has what the server said last, in 10 s at
  // most; joins the thread. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace baton
