#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/rpc/cluster_tls.h"

namespace baton {

// Of an answer, on both sides: an audit names every sequence of a router.
inline constexpr int kMaxDocumentBytes = 1 << 30;

// What an operator asks of a router at its control plane.
enum class AdminMethod { kStatus, kAudit, kDrain };

// The document (JSON) that it answers with. `tls` is an admin's. Waits at most `limit` on the
// calling thread. UNAVAILABLE or DEADLINE_EXCEEDED: no answer. UNAUTHENTICATED: what answers there
// is no router of this release. PERMISSION_DENIED: the own certificate is not an admin's.
absl::StatusOr<std::string> CallAdmin(const std::string& router, AdminMethod method,
                                      const ClusterTls& tls, Duration limit);

}  // namespace baton
