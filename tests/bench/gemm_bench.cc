#include <algorithm>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "tests/bench/measure.h"
#include "tests/bench/op_rows.h"

namespace baton::bench {
namespace {

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
  GemmBench(CpuKernels* kernels, const Shape& shape, DType compute)
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
  CpuKernels* kernels_;
  Shape shape_;
  DType compute_;
  std::vector<PackedMatrix> matrices_;
  size_t next_ = 0;
  std::vector<float> a_;
  std::vector<float> out_;
};

std::string NameOf(const Shape& shape, int64_t m) {
  return std::string("gemm ") + shape.model + " " + shape.name + " " + std::to_string(shape.n) +
         "x" + std::to_string(shape.k) + " M=" + std::to_string(m);
}

}  // namespace

void AddGemmRows(const OpOptions& options, CpuKernels& kernels, MachineRoofs& roofs,
                 std::vector<Row>& rows) {
  const std::string model = options.quick && options.model.empty() ? "125M" : options.model;
  for (const Shape& shape : kShapes) {
    if (!model.empty() && model != shape.model) continue;
    const auto wants = [&](int64_t m) { return options.Wants(NameOf(shape, m)); };
    if (std::ranges::none_of(kRows, wants)) continue;
    GemmBench bench(&kernels, shape, options.bf16 ? DType::kBF16 : DType::kF32);
    for (const int64_t m : kRows) {
      if (!wants(m)) continue;
      const double bytes = 2.0 * static_cast<double>(shape.n * shape.k);
      rows.push_back(MeasureBesideRoof({.name = NameOf(shape, m),
                                        .ops = static_cast<double>(m) * bytes,
                                        .bytes = bytes,
                                        .seconds = [&] { return bench.Seconds(m); }},
                                       options.repeats, options.bf16, roofs));
    }
  }
}

}  // namespace baton::bench
