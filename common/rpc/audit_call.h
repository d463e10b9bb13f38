#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/node/message.h"

namespace baton {

// What holds blocks on the worker at `address` (host:port). Waits at most `limit` on the calling
// thread. UNAVAILABLE or DEADLINE_EXCEEDED: no answer. INVALID_ARGUMENT: not an audit.
absl::StatusOr<WorkerAudit> CallAudit(const std::string& address, Duration limit);

}  // namespace baton
