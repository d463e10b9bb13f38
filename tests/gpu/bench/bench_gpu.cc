// Every operator that a step spends its time in, on GPU 0, beside what the GPU can do at most:
// copies, and mma.sync or wgmma, measured first. Figures of an emulated GPU say nothing about a
// real one.
#include "tests/gpu/bench/bench_gpu.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/bench/random_model.h"
#include "tests/gpu/bench/gpu_bench.h"
#include "tests/gpu/bench/load_rows.h"

namespace baton::bench {
namespace {

struct Group {
  const char* name;
  absl::Status (*measure)(GpuBench&);
};
constexpr Group kGroups[] = {{"gemm", MeasureGemm},          {"prefill", MeasurePrefill},
                             {"decode", MeasureDecode},      {"copies", MeasureCopies},
                             {"rows", MeasureRows},          {"sampling", MeasureChoices},
                             {"graphs", MeasureGraphMemory}, {"load", MeasureLoad}};

absl::Status Run(const GpuBench::Options& options, const std::vector<std::string>& groups) {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, MakeCudaDevice(0));
  std::printf("%s\n", device->info().name.c_str());
  ASSIGN_OR_RETURN(const std::unique_ptr<GpuBench> bench,
                   GpuBench::Create(std::move(device), options));
  for (const Group& group : kGroups) {
    if (std::ranges::count(groups, group.name) > 0) RETURN_IF_ERROR(group.measure(*bench));
  }
  std::printf("%lld rows, %lld left out\n", static_cast<long long>(bench->rows()),
              static_cast<long long>(bench->rows_left_out()));
  return absl::OkStatus();
}

absl::Status MakeModel(const std::string& name, const std::string& folder) {
  ASSIGN_OR_RETURN(const ModelShape shape, ShapeOf(name));
  return MakeRandomModel(shape, folder).status();
}

absl::Status PrintHostLoad(const std::string& name) {
  ASSIGN_OR_RETURN(const ModelShape shape, ShapeOf(name));
  ASSIGN_OR_RETURN(const std::vector<Row> rows, HostLoadRows(shape));
  for (const Row& row : rows) std::printf("%s\n", TableLine(row).c_str());
  return absl::OkStatus();
}

}  // namespace

int BenchGpu(int argc, char** argv) {
  CLI::App app("Operators on GPU 0, each beside its roof of the same run", "gpu_tests bench");
  GpuBench::Options options;
  std::vector<std::string> groups, names = {"none"};
  for (const auto& group : kGroups) names.emplace_back(group.name);
  groups.assign(names.begin() + 1, names.end());
  std::string model, models, loaded;
  app.add_option("--groups", groups, "Only these; the roofs come always, and alone with none")
      ->check(CLI::IsMember(names))
      ->delimiter(',');
  app.add_option("--out", options.out, "Adds a line of JSON a row to this file");
  app.add_option("--computed", options.computed, "What tests/bench/gpu_model.py --json wrote");
  app.add_option("--match", options.match, "Only rows whose name contains it, as for a profiler");
  app.add_option("--seconds", options.seconds, "After these no more rows are begun; 0: no limit");
  app.add_flag("--quick", options.quick, "Every kind of row once, small");
  app.add_option("--make-model", model, "Nothing but a random model: 125M, 1B, 8B or quick");
  app.add_option("--models", models, "In this folder")->needs("--make-model");
  app.add_option("--host-load", loaded,
                 "Nothing but what loading such a model takes without a GPU");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = !loaded.empty() ? PrintHostLoad(loaded)
                              : model.empty() ? Run(options, groups)
                                              : MakeModel(model, models);
  if (!status.ok()) std::fprintf(stderr, "gpu_tests bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace baton::bench
