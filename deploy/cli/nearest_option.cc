#include "deploy/cli/nearest_option.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/string_view.h"

namespace baton::cli {
namespace {

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestName(absl::string_view wrong, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = std::max<size_t>(wrong.size() / 3, 1) + 1;
  for (const std::string& name : names) {
    const size_t distance = EditDistance(wrong, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace baton::cli
