#pragma once

#include <optional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "common/tls/spiffe_id.h"

namespace baton {

// Who may call a method of the control plane, a worker's or a router's: the one list of it. Absent:
// nobody, because the method is not in the list. `path` is "/package.Service/Method".
std::optional<std::set<TlsRole>> RolesFor(absl::string_view path);

}  // namespace baton
