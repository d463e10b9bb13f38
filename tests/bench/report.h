#pragma once

#include <string>
#include <vector>

namespace baton::bench {

// One measurement beside the limit that was measured in the same run.
struct Row {
  std::string name;
  double value = 0;
  std::string unit;         // Of value and roof, e.g. "GB/s".
  double roof = 0;          // 0: none.
  std::string roof_name;    // E.g. "read bandwidth".
  double seconds = 0;       // 0: not of interest.
  double ops = 0;           // What the seconds must at least do, if the roof follows from it;
  double bytes = 0;         // for machines only.
  double computed_low = 0;  // What gpu_model.py says could be reached, in the unit; 0: nothing.
  double computed_high = 0;
};

// A line of the table, and one of JSON, for programs that say each row when they have it.
std::string TableLine(const Row& row);
std::string JsonLine(const Row& row);

// A table for people, or with `json` one JSON document, on standard output. `about` names the
// machine's side of it: kernels, threads.
void Print(const std::string& bench, const std::string& about, const std::vector<Row>& rows,
           bool json);

// The whole of a program that counts and measures nothing: its only options are --json and --help.
int PrintCounted(int argc, char** argv, const std::string& bench, const std::string& what,
                 const std::string& about, std::vector<Row> (*count)());

}  // namespace baton::bench
