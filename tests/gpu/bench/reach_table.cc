#include "tests/gpu/bench/reach_table.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::bench {
namespace {

ReachTable::Range RangeOf(const nlohmann::json& kernel, const char* field) {
  const auto found = kernel.find(field);
  if (found == kernel.end()) return {};
  return {found->at(0).get<double>(), found->at(1).get<double>()};
}

double PerSecondOf(double ops_reach, double bytes_reach, double ops, double bytes) {
  double seconds = 0;
  if (ops_reach > 0) seconds = std::max(seconds, ops / ops_reach);
  if (bytes_reach > 0) seconds = std::max(seconds, bytes / bytes_reach);
  return seconds > 0 ? 1 / seconds : 0;
}

}  // namespace

absl::StatusOr<ReachTable> ReachTable::Load(const std::string& path, absl::string_view device) {
  ReachTable table;
  try {
    std::ifstream file(path);
    const nlohmann::json cards = nlohmann::json::parse(file);
    for (const auto& [card, kernels] : cards.items()) {
      if (!absl::StrContains(device, card)) continue;
      for (const nlohmann::json& kernel : kernels) {
        table.kernels_.push_back({.name = kernel.at("kernel").get<std::string>(),
                                  .ops = RangeOf(kernel, "flops"),
                                  .bytes = RangeOf(kernel, "bytes")});
      }
    }
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--computed ", path, ": ", error.what(), ": gpu_model.py --json makes it"));
  }
  return table;
}

ReachTable::Range ReachTable::PerSecond(absl::string_view family, double ops, double bytes) const {
  Range best;
  for (const Kernel& kernel : kernels_) {
    if (!absl::StartsWith(kernel.name, family)) continue;
    best.low = std::max(best.low, PerSecondOf(kernel.ops.low, kernel.bytes.low, ops, bytes));
    best.high = std::max(best.high, PerSecondOf(kernel.ops.high, kernel.bytes.high, ops, bytes));
  }
  return best;
}

}  // namespace baton::bench
