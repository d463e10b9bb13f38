#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/weights.h"
#include "tests/gpu/bench/gpu_bench.h"

namespace baton::bench {
namespace {

// Of Llama's models. What leads back into the residual stream is summed in segments, in f32.
struct Shape {
  const char* name;
  int64_t n;
  int64_t k;
  int32_t segments;
};
constexpr Shape kGemmShapes[] = {{"1B qkv", 3072, 2048, 1},      {"1B o", 2048, 2048, 8},
                                 {"1B gate_up", 16384, 2048, 1}, {"1B down", 2048, 8192, 8},
                                 {"8B qkv", 6144, 4096, 1},      {"8B o", 4096, 4096, 8},
                                 {"8B gate_up", 28672, 4096, 1}, {"8B down", 4096, 14336, 8}};
constexpr Shape kQuickShapes[] = {{"quick qkv", 64, 64, 1}, {"quick down", 32, 256, 8}};
constexpr int64_t kGemmRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
constexpr int64_t kQuickGemmRows[] = {1, 17};

// Matrices that are many enough for no product to find any of its weights in a cache.
absl::Status MeasureShape(GpuBench& bench, const Shape& shape, std::span<const int64_t> rows) {
  const int64_t matrix_bytes = shape.n * cuda::RowStride(shape.k) * 2;
  const int64_t copies = std::max<int64_t>(1, bench.cold_bytes() / matrix_bytes);
  std::vector<PackedMatrix> matrices;
  for (int64_t i = 0; i < copies; ++i) {
    ASSIGN_OR_RETURN(Buffer memory, bench.RandomMemory(matrix_bytes, DType::kBF16));
    matrices.emplace_back(shape.n, shape.k, DType::kBF16, WeightFormat::kCuda, std::move(memory));
  }
  const DType out_type = shape.segments > 1 ? DType::kF32 : DType::kBF16;
  const int64_t most = rows.back();
  ASSIGN_OR_RETURN(const Buffer a, bench.RandomMemory(most * shape.k * 2, DType::kBF16));
  ASSIGN_OR_RETURN(const Buffer out,
                   bench.device().Allocate(most * shape.n * SizeOf(out_type), MemoryKind::kDevice));
  for (const int64_t m : rows) {
    const double elements = static_cast<double>(shape.n * shape.k);
    const GpuWork work{.name = absl::StrCat("gemm ", shape.name, " ", shape.n, "x", shape.k,
                                            shape.segments > 1 ? " in 8 segments" : "", " M=", m),
                       .ops = 2.0 * static_cast<double>(m) * elements,
                       .bytes = 2 * elements + static_cast<double>(m * shape.k * 2) +
                                static_cast<double>(m * shape.n * SizeOf(out_type)),
                       .family = shape.segments > 1 ? "segments" : "GEMM"};
    RETURN_IF_ERROR(bench.Measure(work, [&](int64_t i) {
      return bench.ops().Gemm({.a = a.floats(DType::kBF16),
                               .a_stride = shape.k,
                               .m = m,
                               .a_rounded_to = DType::kBF16,
                               .weights = &matrices[i % copies],
                               .out = out.floats(out_type),
                               .out_stride = shape.n,
                               .segments = shape.segments});
    }));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureGemm(GpuBench& bench) {
  const std::span<const Shape> shapes =
      bench.quick() ? std::span<const Shape>(kQuickShapes) : std::span<const Shape>(kGemmShapes);
  const std::span<const int64_t> rows = bench.quick() ? std::span<const int64_t>(kQuickGemmRows)
                                                      : std::span<const int64_t>(kGemmRows);
  for (const Shape& shape : shapes) RETURN_IF_ERROR(MeasureShape(bench, shape, rows));
  return absl::OkStatus();
}

}  // namespace baton::bench
