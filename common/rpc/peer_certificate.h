#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/rpc/cluster_tls.h"

namespace baton {

// When the certificate ends that a server of that role shows, in seconds since 1970: by a handshake
// alone. Waits at most `limit` on the calling thread. UNAVAILABLE: nothing answers there in time,
// or none that takes the own certificate. UNAUTHENTICATED: it is of another release or role.
absl::StatusOr<int64_t> AskCertificateEnd(const std::string& address, TlsRole server,
                                          const ClusterTls& tls, Duration limit);

}  // namespace baton
