#pragma once

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/transport/kv_transport.h"

namespace baton {

// What a receiver derives its pair keys from. Made at process start, never sent, never logged.
using TransportSecret = std::array<uint8_t, 32>;

// From the operating system's randomness. INTERNAL when it cannot be had.
absl::StatusOr<TransportSecret> NewSecret();

// HMAC-SHA256(secret, "baton pair key v1" || sender || receiver), incarnations little endian. The
// receiver hands it out over the control plane to that sender alone.
PairKey DerivePairKey(const TransportSecret& secret, Incarnation sender, Incarnation receiver);

}  // namespace baton
