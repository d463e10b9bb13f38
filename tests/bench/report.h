#pragma once

#include <string>
#include <vector>

namespace baton::bench {

// One measurement beside the limit that was measured in the same run.
struct Row {
  std::string name;
  double value = 0;
  std::string unit;       // Of value and roof, e.g. "GB/s".
  double roof = 0;        // 0: none.
  std::string roof_name;  // E.g. "read bandwidth".
  double seconds = 0;     // 0: not of interest.
  double ops = 0;         // What the seconds must at least do, if the roof follows from it;
  double bytes = 0;       // for machines only.
};

// A table for people, or with `json` one JSON document, on standard output. `about` names the
// machine's side of it: kernels, threads.
void Print(const std::string& bench, const std::string& about, const std::vector<Row>& rows,
           bool json);

}  // namespace baton::bench
