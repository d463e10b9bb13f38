#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kernels/emulation/tensor_core.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

struct GemmCase {
  DType in;
  DType out;
  uint64_t seed;
  const char* gpu = "sm90";  // Its two forms; other GPUs have one for all.
};

class GemmTest : public DeviceTest, public testing::WithParamInterface<GemmCase> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    emulation::SetSeed(GetParam().seed);
    emulation::SetGpu(GetParam().gpu);
  }
  void TearDown() override {
    DeviceTest::TearDown();
    emulation::SetGpu("sm90");
  }
};

struct Matrices {
  std::vector<float> a, weights, bias;
};

Matrices MakeMatrices(DType dtype, int64_t m, int64_t n, int64_t k, uint64_t seed) {
  return {Rounded(dtype, RandomFloats(seed, m * k)), Rounded(dtype, RandomFloats(seed + 1, n * k)),
          RandomFloats(seed + 2, n)};
}

// A matrix with `gap` elements behind each row, which are NaN: nobody may read them.
std::vector<float> WithGaps(const std::vector<float>& dense, int64_t rows, int64_t columns,
                            int64_t gap) {
  std::vector<float> out;
  for (int64_t r = 0; r < rows; ++r) {
    out.insert(out.end(), dense.begin() + r * columns, dense.begin() + (r + 1) * columns);
    out.insert(out.end(), gap, NAN);
  }
  return out;
}

struct Layout {
  int64_t gap = 0;    // Behind each row of `a`.
  size_t shift = 0;   // Elements by which `a` is shifted.
  bool bias = true;
  int64_t out_gap = 3;
};

std::vector<float> Multiply(const GemmCase& types, const Matrices& x, int64_t m, int64_t n,
                            int64_t k, const Layout& layout = {}) {
  const DeviceFloats a(types.in, WithGaps(x.a, m, k, layout.gap), layout.shift);
  const PackedMatrix weights = DeviceMatrix(types.in, x.weights, n, k);
  const DeviceFloats bias(DType::kF32, x.bias);
  const int64_t out_stride = n + layout.out_gap;
  const DeviceFloats out(types.out, std::vector<float>(m * out_stride, 7));
  EXPECT_EQ(Gemm({.a = a,
                  .a_stride = k + layout.gap,
                  .m = m,
                  .weights = &weights,
                  .bias = layout.bias ? bias.f32() : nullptr,
                  .out = out,
                  .out_stride = out_stride},
                 {}, nullptr),
            cudaSuccess);
  const auto padded = out.Read();
  std::vector<float> dense;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < out_stride; ++j) {
      if (j < n) dense.push_back(padded[i * out_stride + j]);
      if (j >= n) {
        EXPECT_EQ(padded[i * out_stride + j], 7) << "behind row " << i;
      }
    }
  }
  return dense;
}

void ExpectProduct(const GemmCase& types, const Matrices& x, int64_t m, int64_t n, int64_t k,
                   bool bias, const std::vector<float>& got) {
  std::vector<double> exact;
  std::vector<float> plain;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      float low = 0;
      for (int64_t e = 0; e < k; ++e) {
        sum += double{x.a[i * k + e]} * x.weights[j * k + e];
        low += x.a[i * k + e] * x.weights[j * k + e];
      }
      exact.push_back(sum + (bias ? x.bias[j] : 0));
      plain.push_back(low + (bias ? x.bias[j] : 0));
    }
  }
  ExpectAccurate(got, Rounded(types.out, plain), exact,
                 "m " + std::to_string(m) + " n " + std::to_string(n) + " k " + std::to_string(k));
}

TEST_P(GemmTest, MultipliesMatricesOfAnySize) {
  // Around tiles of 16, 64 and 128, of any k, also 0 and less than a chunk of 8; more tiles of k
  // than there are stages, for each shape of tile.
  const int64_t sizes[][3] = {{1, 1, 1},     {1, 64, 64},   {3, 65, 40},   {16, 130, 129},
                              {17, 63, 200}, {64, 10, 72},  {65, 129, 64}, {130, 127, 136},
                              {2, 5, 0},     {7, 200, 136}, {129, 5, 7},
                              {5, 20, 584},  {40, 33, 456}, {130, 20, 392}};
  const Matrices column = MakeMatrices(GetParam().in, 67, 1, 16, 3);
  ExpectProduct(GetParam(), column, 67, 1, 16, true,
                Multiply(GetParam(), column, 67, 1, 16, {.out_gap = 0}));
  for (const auto& [m, n, k] : sizes) {
    const Matrices x = MakeMatrices(GetParam().in, m, n, k, GetParam().seed + k);
    const bool bias = m % 2 == 1;
    ExpectProduct(GetParam(), x, m, n, k, bias, Multiply(GetParam(), x, m, n, k, {.bias = bias}));
  }
}

TEST_P(GemmTest, BitsDependOnNeitherLayoutNorTile) {
  const int64_t n = 70, k = 136;
  const Matrices x = MakeMatrices(GetParam().in, 140, n, k, GetParam().seed);
  const auto whole = Multiply(GetParam(), x, 140, n, k);
  for (const int64_t m : {1, 2, 8, 16, 17, 33, 64, 65, 128}) {
    for (const int64_t first : {int64_t{0}, 140 - m}) {
      Matrices part = x;
      part.a = {x.a.begin() + first * k, x.a.begin() + (first + m) * k};
      const std::vector<float> expected(whole.begin() + first * n,
                                        whole.begin() + (first + m) * n);
      // Aligned; aligned with gaps; rows that no vector can load.
      EXPECT_EQ(Multiply(GetParam(), part, m, n, k), expected) << m << " from " << first;
      if (m % 8 != 1) continue;
      EXPECT_EQ(Multiply(GetParam(), part, m, n, k, {.gap = 8}), expected) << m;
      EXPECT_EQ(Multiply(GetParam(), part, m, n, k, {.gap = 3, .shift = 1}), expected) << m;
      EXPECT_EQ(Multiply(GetParam(), part, m, n, k, {.gap = 8, .shift = 1}), expected) << m;
    }
  }
}

// Of more rows than two of the tallest tiles have.
TEST_P(GemmTest, BitsDependOnNoNumberOfRows) {
  const int64_t rows = 600, n = 5, k = 24;
  const Matrices x = MakeMatrices(GetParam().in, rows, n, k, GetParam().seed);
  const auto whole = Multiply(GetParam(), x, rows, n, k);
  ExpectProduct(GetParam(), x, rows, n, k, true, whole);
  for (const int64_t m : {1, 129, 255, 256, 257, 384, 385, 511, 512, 513, 599}) {
    for (const int64_t first : {int64_t{0}, rows - m}) {
      Matrices part = x;
      part.a = {x.a.begin() + first * k, x.a.begin() + (first + m) * k};
      const std::vector<float> expected(whole.begin() + first * n,
                                        whole.begin() + (first + m) * n);
      EXPECT_EQ(Multiply(GetParam(), part, m, n, k), expected) << m << " from " << first;
    }
  }
  // In the reverse order.
  Matrices turned = x;
  std::vector<float> expected;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t from = rows - 1 - i;
    std::copy_n(x.a.begin() + from * k, k, turned.a.begin() + i * k);
    expected.insert(expected.end(), whole.begin() + from * n, whole.begin() + (from + 1) * n);
  }
  EXPECT_EQ(Multiply(GetParam(), turned, rows, n, k), expected);
}

INSTANTIATE_TEST_SUITE_P(Types, GemmTest,
                         testing::Values(GemmCase{DType::kBF16, DType::kF32, 1},
                                         GemmCase{DType::kBF16, DType::kBF16, 2},
                                         GemmCase{DType::kF16, DType::kF32, 3},
                                         GemmCase{DType::kF16, DType::kF16, 4},
                                         GemmCase{DType::kBF16, DType::kF32, 5, "sm80"},
                                         GemmCase{DType::kF16, DType::kF16, 6, "sm80"}),
                         [](const auto& info) {
                           return std::string(ToString(info.param.in)) + "_to_" +
                                  std::string(ToString(info.param.out)) + "_" + info.param.gpu;
                         });

// With segments too.
TEST_P(GemmTest, SomeRowsOfTheWeightsHaveTheBitsThatTheyHaveAmongAll) {
  const int64_t n = 150, k = 64;
  for (const int64_t m : {3, 40, 70}) {
    for (const int32_t segments : {1, 2}) {
      const Matrices x = MakeMatrices(GetParam().in, m, n, k, GetParam().seed);
      const DeviceFloats a(GetParam().in, x.a), bias(DType::kF32, x.bias),
          scratch(DType::kF32, segments * m * n);
      const PackedMatrix weights = DeviceMatrix(GetParam().in, x.weights, n, k);
      const auto run = [&](int64_t first, int64_t rows) {
        const DeviceFloats out(GetParam().out, m * rows);
        EXPECT_EQ(Gemm({.a = a,
                        .a_stride = k,
                        .m = m,
                        .weights = &weights,
                        .bias = bias.f32() + first,
                        .out = out,
                        .out_stride = rows,
                        .segments = segments,
                        .first_row = first,
                        .num_rows = rows},
                       std::span(scratch.f32(), segments * m * n), nullptr),
                  cudaSuccess);
        return out.Read();
      };
      const auto all = run(0, n);
      for (const auto& [first, rows] : {std::pair{0, 45}, {32, 40}, {128, 22}}) {
        const auto some = run(first, rows);
        for (int64_t i = 0; i < m; ++i) {
          EXPECT_TRUE(std::equal(some.begin() + i * rows, some.begin() + (i + 1) * rows,
                                 all.begin() + i * n + first))
              << m << ": " << first << " " << rows << " row " << i;
        }
      }
    }
  }
}

// The order of the sum, written out: one instruction after the other from zero.
using GemmOrderTest = DeviceTest;

TEST_F(GemmOrderTest, AddsSixteenProductsAtATimeInAscendingOrder) {
  const int64_t n = 8, k = 100;
  for (const auto architecture : Architectures()) {
    emulation::SetArchitecture(architecture);
    for (const auto& [m, dtype] : {std::pair(1, DType::kBF16), std::pair(40, DType::kF16),
                                   std::pair(40, DType::kBF16), std::pair(100, DType::kF16)}) {
      const Matrices x = MakeMatrices(dtype, m, n, k, 5);
      const auto got = Multiply({dtype, DType::kF32, 1}, x, m, n, k, {.bias = false});
      emulation::TileProduct tile = {};
      for (int64_t k0 = 0; k0 < k; k0 += 16) {
        for (int64_t e = 0; e < 16; ++e) {
          for (int64_t i = 0; i < 16; ++i) {
            tile.a[i][e] = i < m && k0 + e < k ? x.a[i * k + k0 + e] : 0;
          }
          for (int64_t j = 0; j < 8; ++j) tile.b[e][j] = k0 + e < k ? x.weights[j * k + k0 + e] : 0;
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
