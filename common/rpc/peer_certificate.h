#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/rpc/cluster_tls.h"

namespace baton {

// A server that shows a certificate of that role.
struct TlsServerAt {
  std::string address;
  TlsRole role = TlsRole::kRouter;
};

// When the certificates end that these servers show, in seconds since 1970, also where they have
// ended: by a handshake with each, all at the same time. In the order of the servers. Waits at most
// `limit` for all on the calling thread. UNAVAILABLE: nothing answers there in time, or none that
// takes the own certificate. UNAUTHENTICATED: it is of another CA, release or role.
std::vector<absl::StatusOr<int64_t>> AskCertificateEnds(const std::vector<TlsServerAt>& servers,
                                                        const ClusterTls& tls, Duration limit);

}  // namespace baton
