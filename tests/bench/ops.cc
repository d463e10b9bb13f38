// Matrix products of the shapes of known models beside the machine's roofs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include "common/base/check.h"
#include "kernels/make_device.h"
#include "tests/bench/machine_roofs.h"
#include "tests/bench/report.h"

namespace baton::bench {
namespace {

struct Options {
  std::string kernels = "auto";
  std::string compute = "bf16";
  std::string model;  // Empty: all.
  int threads = static_cast<int>(std::jthread::hardware_concurrency());
  int repeats = 5;
  bool json = false;
};

struct Shape {
  const char* model;
  const char* name;
  int64_t n;
  int64_t k;
};
constexpr Shape kShapes[] = {
    {"125M", "qkv", 2304, 768},  {"125M", "gate_up", 6144, 768}, {"125M", "down", 768, 3072},
    {"1B", "qkv", 3072, 2048},   {"1B", "o", 2048, 2048},        {"1B", "gate_up", 16384, 2048},
    {"1B", "down", 2048, 8192},  {"8B", "qkv", 6144, 4096},      {"8B", "gate_up", 28672, 4096},
    {"8B", "down", 4096, 14336},
};
constexpr int64_t kRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 512};
// Matrices are many enough that a product finds none of its weights in a cache.
constexpr int64_t kColdBytes = int64_t{256} << 20;

class GemmBench {
 public:
  GemmBench(Kernels* kernels, const Shape& shape, DType compute)
      : kernels_(kernels), shape_(shape), compute_(compute) {
    const std::vector<uint16_t> weights(shape.n * shape.k, 0x3c80);
    const WeightRows part{reinterpret_cast<const std::byte*>(weights.data()), DType::kBF16,
                          shape.n};
    const int64_t copies = std::max<int64_t>(1, kColdBytes / (shape.n * shape.k * 2));
    for (int64_t i = 0; i < copies; ++i) {
      matrices_.push_back(*kernels->PackWeights({.parts = &part, .num_parts = 1, .k = shape.k}));
    }
    a_.assign(512 * shape.k, 0.5f);
    out_.assign(512 * shape.n, 0.0f);
  }

  double Seconds(int64_t m) {
    const int64_t rounds = std::clamp<int64_t>(64 / m, 1, std::ssize(matrices_));
    const double start = Now();
    for (int64_t i = 0; i < rounds; ++i) {
      const absl::Status status = kernels_->Gemm({.a = a_.data(),
                                                  .a_stride = shape_.k,
                                                  .m = m,
                                                  .a_rounded_to = compute_,
                                                  .weights = &matrices_[next_],
                                                  .out = out_.data(),
                                                  .out_stride = shape_.n});
      BATON_CHECK(status.ok());
      next_ = (next_ + 1) % matrices_.size();
    }
    return (Now() - start) / static_cast<double>(rounds);
  }

 private:
  Kernels* kernels_;
  Shape shape_;
  DType compute_;
  std::vector<PackedMatrix> matrices_;
  size_t next_ = 0;
  std::vector<float> a_;
  std::vector<float> out_;
};

// Each repetition stands between two measurements of its roof, of which the higher counts; the
// best share is shown.
Row Measure(const Options& options, const Shape& shape, int64_t m, GemmBench& bench,
            MachineRoofs& roofs) {
  const double bytes = 2.0 * static_cast<double>(shape.n * shape.k);
  const double ops = static_cast<double>(m) * bytes;
  Row best;
  const auto least_seconds = [&](double* compute) {
    *compute = ops / (roofs.ProductGigaOps(options.compute == "bf16") * 1e9);
    return std::max(*compute, bytes / (roofs.ReadGigabytes() * 1e9));
  };
  double compute = 0;
  double before = least_seconds(&compute);
  for (int i = 0; i < options.repeats; ++i) {
    const double seconds = bench.Seconds(m);
    const double after = least_seconds(&compute);
    const double least = std::min(before, after);
    before = after;
    if (least / seconds <= (best.roof > 0 ? best.value / best.roof : 0)) continue;
    const bool computes = compute >= after;
    const double amount = (computes ? ops : bytes) * 1e-9;
    best = {.value = amount / seconds,
            .unit = computes ? "Gop/s" : "GB/s",
            .roof = amount / least,
            .roof_name = computes ? "product peak" : "read bandwidth",
            .seconds = seconds};
  }
  best.name = std::string("gemm ") + shape.model + " " + shape.name + " " +
              std::to_string(shape.n) + "x" + std::to_string(shape.k) + " M=" + std::to_string(m);
  return best;
}

void Run(const Options& options) {
  auto kernels = MakeKernels({.kernels = options.kernels, .num_threads = options.threads});
  if (!kernels.ok()) {
    std::fprintf(stderr, "%s\n", kernels.status().ToString().c_str());
    return;
  }
  ThreadPool pool(options.threads);
  MachineRoofs roofs(&pool);
  std::vector<Row> rows;
  for (const Shape& shape : kShapes) {
    if (!options.model.empty() && options.model != shape.model) continue;
    GemmBench bench(kernels->get(), shape, options.compute == "bf16" ? DType::kBF16 : DType::kF32);
    for (const int64_t m : kRows) rows.push_back(Measure(options, shape, m, bench, roofs));
  }
  Print("ops",
        std::string((*kernels)->name()) + ", compute " + options.compute + ", " +
            std::to_string(options.threads) + " threads, best of " +
            std::to_string(options.repeats),
        rows, options.json);
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  CLI::App app("Operators of the models' shapes, each beside its roof of the same run");
  baton::bench::Options options;
  app.add_option("--kernels", options.kernels)->capture_default_str();
  app.add_option("--compute-dtype", options.compute)
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app.add_option("--model", options.model, "125M, 1B or 8B only");
  app.add_option("--threads", options.threads)->capture_default_str();
  app.add_option("--repeats", options.repeats)->capture_default_str();
  app.add_flag("--json", options.json, "For machines");
  CLI11_PARSE(app, argc, argv);
  baton::bench::Run(options);
  return 0;
}
