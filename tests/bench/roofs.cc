// What this machine can do at most: read bandwidth and the peaks of the dot product instructions.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <thread>

#include "tests/bench/machine_roofs.h"
#include "tests/bench/report.h"

namespace baton::bench {
namespace {

void Measure(int threads, int repeats, std::vector<Row>& rows) {
  ThreadPool pool(threads);
  MachineRoofs roofs(&pool);
  const std::string suffix = ", " + std::to_string(threads) + " threads";
  double read = 0;
  for (int i = 0; i < repeats; ++i) read = std::max(read, roofs.ReadGigabytes());
  rows.push_back({.name = "read bandwidth" + suffix, .value = read, .unit = "GB/s"});
  for (const Instruction instruction :
       {Instruction::kFmaAvx2, Instruction::kFmaAvx512, Instruction::kBf16Dot,
        Instruction::kAmxBf16, Instruction::kVnni}) {
    if (!Runs(instruction)) continue;
    double best = 0;
    for (int i = 0; i < repeats; ++i) best = std::max(best, roofs.GigaOps(instruction));
    rows.push_back({.name = NameOf(instruction) + suffix, .value = best, .unit = "Gop/s"});
  }
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  CLI::App app("Read bandwidth and instruction peaks of this machine, best of several");
  int threads = static_cast<int>(std::jthread::hardware_concurrency());
  int repeats = 7;
  bool quick = false;
  bool json = false;
  app.add_option("--threads", threads, "Measured beside one thread")->capture_default_str();
  app.add_option("--repeats", repeats)->capture_default_str();
  app.add_flag("--quick", quick, "Seconds: each once");
  app.add_flag("--json", json, "For machines");
  CLI11_PARSE(app, argc, argv);
  if (quick) repeats = 1;
  std::vector<baton::bench::Row> rows;
  baton::bench::Measure(1, repeats, rows);
  if (threads > 1) baton::bench::Measure(threads, repeats, rows);
  baton::bench::Print("roofs", "best of " + std::to_string(repeats), rows, json);
  return 0;
}
