#pragma once

#include <atomic>
#include <cstdint>

namespace baton {

// TLS handshakes of this process that ended before they were through, where both sides show
// certificates: those of the control plane. The library that makes them tells nobody why, so this
// looks at each connection's state as OpenSSL frees it.
struct FailedHandshakes {
  std::atomic<int64_t> ca = 0;         // The peer's certificate leads to no CA of ours, or is odd.
  std::atomic<int64_t> expired = 0;    // It has ended, or is not valid yet.
  std::atomic<int64_t> handshake = 0;  // At a server: none came; plaintext, TLS 1.2, given up.
};

// Of the whole process, counted from the first call on.
const FailedHandshakes& CountFailedHandshakes();

}  // namespace baton
