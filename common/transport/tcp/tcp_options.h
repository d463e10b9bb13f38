#pragma once

#include <string>

#include "common/base/time.h"
#include "common/transport/transport_options.h"

namespace baton {

struct TcpOptions {
  TransportOptions transport;
  std::string bind_host = "127.0.0.1";
  int port = 0;           // 0 = any free one.
  bool tls = false;       // The pair key seals all bytes, not the handshake alone.
  double time_scale = 1;  // Multiplies every time limit; for sanitizer builds and slow machines.
  Duration handshake_timeout = std::chrono::seconds(2);
  Duration min_progress_timeout = std::chrono::seconds(1);  // Beside 10 x expected.
  int max_unauthenticated = 512;  // Of more, the oldest goes: a real handshake takes milliseconds.
  int max_incoming = 2048;        // Of more, the newest is refused.
  int max_outgoing = 1024;        // Of more, an idle one goes; without one Start is refused.
};

}  // namespace baton
