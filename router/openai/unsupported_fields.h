#pragma once

#include "absl/status/status.h"
#include "router/openai/json.h"

namespace baton {

// Refuses (INVALID_ARGUMENT with the field) what other servers know, this one does not, and what
// would change the text. Neutral values pass.
absl::Status RefuseUnsupported(const Json& body, bool chat);

}  // namespace baton
