#pragma once

#include "router/frontend.h"
#include "router/openai/json.h"

namespace baton {

// What `baton status --json` prints, without what only `baton up` knows (process ids).
Json StatusJson(const RouterView& view, bool ready, const std::string& model);

// What `baton audit` compares with the workers' audits. Incarnations as 16 hex digits, "0" = none.
Json AuditJson(const RouterAudit& audit);

}  // namespace baton
