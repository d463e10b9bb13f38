#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/emulation/tensor_core.h"
#include "tests/kernels/cuda/device_fixture.h"

// What only this device has; ../gemm_test.cc has what every device does.
namespace baton::cuda {
namespace {

// In f32, without a bias.
std::vector<float> Multiply(DType dtype, const std::vector<float>& values, int64_t m,
                            const std::vector<float>& rows, int64_t n, int64_t k) {
  const DeviceFloats a(dtype, values), out(DType::kF32, m * n);
  const PackedMatrix weights = DeviceMatrix(dtype, rows, n, k);
  EXPECT_EQ(Gemm({.a = a, .a_stride = k, .m = m, .weights = &weights, .out = out, .out_stride = n},
                 {}, nullptr),
            cudaSuccess);
  return out.Read();
}

// The order of the sum, written out: one instruction after the other from zero.
using GemmOrderTest = DeviceTest;

TEST_F(GemmOrderTest, AddsSixteenProductsAtATimeInAscendingOrder) {
  const int64_t n = 8, k = 100;
  for (const auto architecture : Architectures()) {
    emulation::SetArchitecture(architecture);
    for (const auto& [m, dtype] : {std::pair(1, DType::kBF16), std::pair(40, DType::kF16),
                                   std::pair(40, DType::kBF16), std::pair(100, DType::kF16)}) {
      const auto a = Rounded(dtype, RandomFloats(5, m * k));
      const auto b = Rounded(dtype, RandomFloats(6, n * k));
      const auto got = Multiply(dtype, a, m, b, n, k);
      emulation::TileProduct tile = {};
      for (int64_t k0 = 0; k0 < k; k0 += 16) {
        for (int64_t e = 0; e < 16; ++e) {
          for (int64_t i = 0; i < 16; ++i) {
            tile.a[i][e] = i < m && k0 + e < k ? a[i * k + k0 + e] : 0;
          }
          for (int64_t j = 0; j < 8; ++j) tile.b[e][j] = k0 + e < k ? b[j * k + k0 + e] : 0;
        }
        MultiplyTile(architecture, dtype == DType::kBF16 ? -126 : -14, tile);
      }
      for (int64_t i = 0; i < std::min<int64_t>(m, 16); ++i) {
        for (int64_t j = 0; j < n; ++j) EXPECT_EQ(got[i * n + j], tile.c[i][j]) << i << " " << j;
      }
    }
  }
  emulation::SetArchitecture(emulation::Architecture::kHopper);
}

TEST_F(GemmOrderTest, OfNothingTheSumIsZero) {
  for (const int64_t m : {2, 40, 100}) {
    EXPECT_EQ(Multiply(DType::kBF16, {}, m, {}, 5, 0), std::vector<float>(m * 5)) << m;
  }
}

using GemmRefusalTest = DeviceTest;

TEST_F(GemmRefusalTest, RefusesTypesThatNoTensorCoreTakes) {
  const auto run = [](DType a, DType weights, DType out, int64_t n = 1,
                      WeightFormat format = WeightFormat::kCuda) {
    const PackedMatrix packed(n, 1, weights, format, {});
    return Gemm({.a = {nullptr, a}, .m = 1, .weights = &packed, .out = {nullptr, out}}, {},
                nullptr);
  };
  EXPECT_EQ(run(DType::kF32, DType::kF32, DType::kF32), cudaErrorInvalidValue);
  EXPECT_EQ(run(DType::kBF16, DType::kF16, DType::kF32), cudaErrorInvalidValue);
  EXPECT_EQ(run(DType::kBF16, DType::kBF16, DType::kF16), cudaErrorInvalidValue);
  EXPECT_EQ(run(DType::kF16, DType::kF16, DType::kBF16), cudaErrorInvalidValue);
  EXPECT_EQ(run(DType::kBF16, DType::kBF16, DType::kF32, 1, WeightFormat::kCpuPanels),
            cudaErrorInvalidValue);
  EXPECT_EQ(run(DType::kBF16, DType::kBF16, DType::kF32, 0), cudaSuccess);  // Nothing to do.
}

}  // namespace
}  // namespace baton::cuda
