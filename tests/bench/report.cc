#include "tests/bench/report.h"

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace baton::bench {
namespace {

nlohmann::json JsonOf(const Row& row) {
  nlohmann::json entry = {{"name", row.name}, {"value", row.value}, {"unit", row.unit}};
  if (row.seconds > 0) entry["seconds"] = row.seconds;
  if (row.ops > 0) entry["ops"] = row.ops;
  if (row.bytes > 0) entry["bytes"] = row.bytes;
  if (row.roof > 0) {
    entry["roof"] = row.roof;
    entry["roof_name"] = row.roof_name;
    entry["share"] = row.value / row.roof;
  }
  if (row.computed_high > 0) entry["computed"] = {row.computed_low, row.computed_high};
  return entry;
}

}  // namespace

std::string TableLine(const Row& row) {
  std::string line =
      absl::StrFormat("  %-56s %10.2f %-8s", row.name.c_str(), row.value, row.unit.c_str());
  if (row.roof > 0) {
    absl::StrAppendFormat(&line, " %5.1f%% of %.1f (%s)", 100 * row.value / row.roof, row.roof,
                          row.roof_name.c_str());
  }
  if (row.computed_high > 0) {
    absl::StrAppendFormat(&line, "  computed %.1f to %.1f", row.computed_low, row.computed_high);
  }
  if (row.seconds > 0) absl::StrAppendFormat(&line, "  %.4g s", row.seconds);
  return line;
}

std::string JsonLine(const Row& row) { return JsonOf(row).dump(); }

void Print(const std::string& bench, const std::string& about, const std::vector<Row>& rows,
           bool json) {
  if (json) {
    nlohmann::json out = {{"bench", bench}, {"about", about}, {"rows", nlohmann::json::array()}};
    for (const Row& row : rows) out["rows"].push_back(JsonOf(row));
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  std::printf("%s: %s\n", bench.c_str(), about.c_str());
  for (const Row& row : rows) std::printf("%s\n", TableLine(row).c_str());
}

int PrintCounted(int argc, char** argv, const std::string& bench, const std::string& what,
                 const std::string& about, std::vector<Row> (*count)()) {
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    json = json || std::strcmp(argv[i], "--json") == 0;
    if (std::strcmp(argv[i], "--help") == 0) {
      std::printf("Usage: bench_%s [--json]: %s\n", bench.c_str(), what.c_str());
      return 0;
    }
  }
  Print(bench, about, count(), json);
  return 0;
}

}  // namespace baton::bench
