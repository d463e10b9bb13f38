#include "tests/bench/report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace baton::bench {

void Print(const std::string& bench, const std::string& about, const std::vector<Row>& rows,
           bool json) {
  if (json) {
    nlohmann::json out = {{"bench", bench}, {"about", about}, {"rows", nlohmann::json::array()}};
    for (const Row& row : rows) {
      nlohmann::json entry = {{"name", row.name}, {"value", row.value}, {"unit", row.unit}};
      if (row.seconds > 0) entry["seconds"] = row.seconds;
      if (row.ops > 0) entry["ops"] = row.ops;
      if (row.bytes > 0) entry["bytes"] = row.bytes;
      if (row.roof > 0) {
        entry["roof"] = row.roof;
        entry["roof_name"] = row.roof_name;
        entry["share"] = row.value / row.roof;
      }
      out["rows"].push_back(entry);
    }
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  std::printf("%s: %s\n", bench.c_str(), about.c_str());
  for (const Row& row : rows) {
    std::printf("  %-56s %10.2f %-8s", row.name.c_str(), row.value, row.unit.c_str());
    if (row.roof > 0) {
      std::printf(" %5.1f%% of %.1f (%s)", 100 * row.value / row.roof, row.roof,
                  row.roof_name.c_str());
    }
    if (row.seconds > 0) std::printf("  %.4f s", row.seconds);
    std::printf("\n");
  }
}

}  // namespace baton::bench
