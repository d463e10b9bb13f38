// The bits of a row, whatever number of rows it is computed with: every number up to 600 on a
// device; under the emulation those around the edges of tiles.

#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/norms.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

constexpr int64_t kMostRows = 600;

std::vector<int64_t> RowCounts() {
#if defined(BATON_CUDA_DEVICE)
  std::vector<int64_t> counts;
  for (int64_t m = 1; m <= kMostRows; ++m) counts.push_back(m);
  return counts;
#else
  return {1, 2, 7, 16, 17, 31, 33, 64, 65, 127, 129};
#endif
}

class SweepTest : public DeviceTest {
 protected:
  // `run` computes the first m rows of `out` from the first m rows of its input.
  template <typename Run>
  void ExpectRowsAlone(const Run& run, DType dtype, int64_t columns) {
    const int64_t most = RowCounts().back();
    const DeviceFloats all(dtype, most * columns);
    ASSERT_EQ(run(most, all), cudaSuccess);
    const auto expected = all.ReadBytes();
    for (const int64_t m : RowCounts()) {
      const DeviceFloats out(dtype, m * columns);
      ASSERT_EQ(run(m, out), cudaSuccess);
      const auto got = out.ReadBytes();
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size()), 0) << m << " rows";
    }
  }
};

TEST_F(SweepTest, OfProducts) {
  constexpr int64_t kN = 70, kK = 136;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const DeviceFloats a(dtype, RandomFloats(1, kMostRows * kK));
    const PackedMatrix weights = DeviceMatrix(dtype, RandomFloats(2, kN * kK), kN, kK);
    const auto run = [&](int64_t m, const DeviceFloats& out) {
      return Gemm({.a = a,
                   .a_stride = kK,
                   .m = m,
                   .weights = &weights,
                   .out = out,
                   .out_stride = kN},
                  nullptr);
    };
    ExpectRowsAlone(run, DType::kF32, kN);
  }
}

TEST_F(SweepTest, OfNorms) {
  constexpr int64_t kDim = 516;
  const DeviceFloats x(DType::kBF16, RandomFloats(3, kMostRows * kDim));
  const DeviceFloats weight(DType::kF32, RandomFloats(4, kDim));
  const auto run = [&](int64_t m, const DeviceFloats& out) {
    return RmsNorm({.x = x,
                    .x_stride = kDim,
                    .num_tokens = m,
                    .dim = kDim,
                    .weight = weight.f32(),
                    .round_to = DType::kBF16,
                    .out = out,
                    .out_stride = kDim},
                   nullptr);
  };
  ExpectRowsAlone(run, DType::kBF16, kDim);
}

TEST_F(SweepTest, OfActivations) {
  constexpr int64_t kDim = 72;
  const DeviceFloats x(DType::kBF16, RandomFloats(5, kMostRows * 2 * kDim));
  const auto run = [&](int64_t m, const DeviceFloats& out) {
    return ActivationAndMul({x, m, kDim, {}, DType::kBF16, out}, nullptr);
  };
  ExpectRowsAlone(run, DType::kBF16, kDim);
}

}  // namespace
}  // namespace baton::cuda
