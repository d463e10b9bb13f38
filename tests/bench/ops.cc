// Every operator that a step spends its time in, beside the machine's roofs: matrix products,
// attention, copies of the cache.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/make_device.h"
#include "tests/bench/op_rows.h"

int main(int argc, char** argv) {
  CLI::App app("Operators of the models' shapes, each beside its roof of the same run");
  baton::bench::OpOptions options;
  std::string kernel_set = "auto";
  std::string compute = "bf16";
  int threads = static_cast<int>(std::jthread::hardware_concurrency());
  bool json = false;
  app.add_option("--kernels", kernel_set)->capture_default_str();
  app.add_option("--compute-dtype", compute, "Of the cache as well")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app.add_option("--model", options.model, "Products of 125M, 1B or 8B only");
  app.add_option("--only", options.only, "Rows with this in their name, e.g. decode");
  app.add_option("--threads", threads)->capture_default_str();
  app.add_option("--repeats", options.repeats)->capture_default_str();
  app.add_flag("--quick", options.quick, "Seconds: every kind of row once, small");
  app.add_flag("--json", json, "For machines");
  CLI11_PARSE(app, argc, argv);
  options.bf16 = compute == "bf16";
  if (options.quick) options.repeats = 1;
  auto kernels = baton::MakeCpuKernels({.kernels = kernel_set, .num_threads = threads});
  if (!kernels.ok()) {
    std::fprintf(stderr, "bench_ops: %s\n", kernels.status().ToString().c_str());
    return 1;
  }
  baton::ThreadPool pool(threads);
  baton::bench::MachineRoofs roofs(&pool, kernel_set);
  std::vector<baton::bench::Row> rows;
  baton::bench::AddGemmRows(options, **kernels, roofs, rows);
  baton::bench::AddAttentionRows(options, **kernels, roofs, rows);
  baton::bench::AddCacheRows(options, **kernels, rows);
  baton::bench::Print("ops",
                      std::string((*kernels)->name()) + ", compute and cache " + compute + ", " +
                          std::to_string(threads) + " threads, best of " +
                          std::to_string(options.repeats),
                      rows, json);
  return 0;
}
