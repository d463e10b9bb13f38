#pragma once

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/node/message.h"
#include "common/rpc/worker_links.h"

namespace baton {

// What holds blocks on a worker; `tls` null: plaintext. Waits at most `limit` on the calling
// thread. UNAVAILABLE or DEADLINE_EXCEEDED: no answer. UNAUTHENTICATED: the certificate there is of
// another role. PERMISSION_DENIED: the own one is not an admin's. INVALID_ARGUMENT: not an audit.
absl::StatusOr<WorkerAudit> CallAudit(const WorkerAddress& worker, const ClusterTls* tls,
                                      Duration limit);

}  // namespace baton
