#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::cli {

// The name closest to `wrong` by edit distance (insert, delete, replace), or "" when none is
// close enough to be what was meant: at most a third of its length away. Ties go to the first.
std::string NearestName(absl::string_view wrong, const std::vector<std::string>& names);

}  // namespace baton::cli
