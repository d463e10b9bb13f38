#include <cstring>
#include <limits>

#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/product_order.h"

namespace baton {
namespace {

// [rows, k] of bf16 values as floats.
struct Rows {
  int64_t k = 0;
  std::vector<float> values;

  const float* Row(int64_t r) const { return values.data() + r * k; }
  PackedMatrix Pack(CpuKernels& kernels) const {
    const std::vector<std::byte> stored = Encode(DType::kBF16, values);
    const WeightRows part{stored.data(), DType::kBF16, static_cast<int64_t>(values.size()) / k};
    return *kernels.PackWeights({.parts = &part, .num_parts = 1, .k = k});
  }
};

// Signs, mantissas and exponents of all kinds: 2^-`spread` to 1, with zeros and subnormals.
Rows RandomRows(uint64_t seed, int64_t rows, int64_t k, int spread) {
  Random random(seed);
  Rows out{k, {}};
  for (int64_t i = 0; i < rows * k; ++i) {
    const double magnitude =
        std::ldexp(1 + random.Unit(), -static_cast<int>(spread * random.Unit()));
    out.values.push_back(static_cast<float>(random.Unit() < 0.5 ? magnitude : -magnitude));
  }
  out.values = Rounded(DType::kBF16, out.values);
  return out;
}

class AmxGemmTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto set = SelectKernelSet("x86_64_amx");
    if (!set.ok()) GTEST_SKIP() << set.status();
    kernels_ = MakeTestKernels("x86_64_amx");
  }

  void ExpectOrder(const Rows& a, int64_t m, const Rows& b, int64_t n) {
    const PackedMatrix packed = b.Pack(*kernels_);
    GuardedFloats out(m * n);
    ASSERT_TRUE(kernels_
                    ->Gemm({.a = a.values.data(),
                            .a_stride = a.k,
                            .m = m,
                            .a_rounded_to = DType::kBF16,
                            .weights = &packed,
                            .out = out.data(),
                            .out_stride = n})
                    .ok());
    EXPECT_TRUE(out.GuardsIntact());
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        ASSERT_EQ(out.data()[i * n + j], SumOfProducts("cpu-amx.2", a.Row(i), b.Row(j), a.k))
            << m << "x" << n << "x" << a.k << ": " << i << ", " << j;
      }
    }
  }

  std::unique_ptr<CpuKernels> kernels_;
};

// Rows of one register, of two, of several tiles and of several groups of tiles; panels of several
// groups; k below, at and beyond steps and blocks.
TEST_F(AmxGemmTest, AddsProductsInTheOrderOfTheInstructionForEveryShape) {
  for (const int64_t m : {1, 15, 16, 17, 31, 32, 33, 65, 530}) {
    for (const auto& [n, k] : {std::pair{1, 1}, {33, 31}, {64, 32}, {70, 97}, {300, 515}}) {
      if (m == 530 && k == 97) continue;
      ExpectOrder(RandomRows(m, m, k, 8), m, RandomRows(n, n, k, 8), n);
    }
  }
}

TEST_F(AmxGemmTest, FlushesSubnormalsWhereTheInstructionDoes) {
  for (const int spread : {30, 60, 63, 66, 90, 130}) {
    ExpectOrder(RandomRows(1, 40, 200, spread), 40, RandomRows(2, 70, 200, spread), 70);
  }
}

// Outputs so large that they go past the caches, at addresses that are no line's or vector's.
TEST_F(AmxGemmTest, LargeOutputsAtAnyAddressHaveTheBitsOfARowAlone) {
  const int64_t m = 1025, n = 300, k = 33, stride = n + 3;
  const Rows a = RandomRows(1, m, k, 4), b = RandomRows(2, n, k, 4);
  for (const int threads : {1, 2}) {
    auto kernels = *MakeCpuKernels({.kernels = "x86_64_amx", .num_threads = threads});
    const PackedMatrix packed = b.Pack(*kernels);
    const auto multiply = [&](int64_t row, int64_t rows, float* out) {
      return kernels->Gemm({.a = a.values.data() + row * k,
                            .a_stride = k,
                            .m = rows,
                            .a_rounded_to = DType::kBF16,
                            .weights = &packed,
                            .out = out,
                            .out_stride = stride});
    };
    GuardedFloats all(m * stride + 1);
    ASSERT_TRUE(multiply(0, m, all.data() + 1).ok());
    std::vector<float> one(stride);
    for (int64_t row = 0; row < m; ++row) {
      ASSERT_TRUE(multiply(row, 1, one.data()).ok());
      ASSERT_EQ(std::memcmp(one.data(), all.data() + 1 + row * stride, n * sizeof(float)), 0)
          << row << ", " << threads << " threads";
      for (int64_t j = n; j < stride; ++j) {
        ASSERT_EQ(all.data()[1 + row * stride + j], GuardedFloats::kCanary) << row << ", " << j;
      }
    }
    EXPECT_TRUE(all.GuardsIntact());
  }
}

TEST_F(AmxGemmTest, MultipliesNothingBeyondKAndNothingBeyondItsRows) {
  // Infinite weights and activations meet a zero of the fill nowhere, or it would make a NaN.
  const int64_t m = 37, n = 45, k = 33;
  Rows a = RandomRows(1, m, k, 4), b = RandomRows(2, n, k, 4);
  const float infinity = std::numeric_limits<float>::infinity();
  for (float& x : a.values) x = std::fabs(x);
  for (float& x : b.values) x = std::fabs(x);
  a.values[2 * k + 32] = infinity;
  b.values[3 * k + 32] = infinity;
  const PackedMatrix packed = b.Pack(*kernels_);
  GuardedFloats out(m * n);
  ASSERT_TRUE(kernels_
                  ->Gemm({.a = a.values.data(),
                          .a_stride = k,
                          .m = m,
                          .a_rounded_to = DType::kBF16,
                          .weights = &packed,
                          .out = out.data(),
                          .out_stride = n})
                  .ok());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      EXPECT_EQ(std::isinf(out.data()[i * n + j]), i == 2 || j == 3) << i << ", " << j;
      EXPECT_FALSE(std::isnan(out.data()[i * n + j])) << i << ", " << j;
    }
  }
}

TEST_F(AmxGemmTest, PacksActivationsAsTheOneConversionRoundsThem) {
  // Also values that are no bf16 values, ties, overflow, infinities and NaN.
  const int64_t m = 5, k = 75, rows = 16;
  std::vector<float> a = RandomFloats(1, m * k);
  a[0] = BitsFloat(0x3f808000u);  // A tie that goes down,
  a[1] = BitsFloat(0x3f818000u);  // and one that goes up.
  a[2] = std::numeric_limits<float>::max();
  a[3] = -std::numeric_limits<float>::infinity();
  a[4] = BitsFloat(0x7f800001u);
  a[5] = 0x1p-140f;
  const int64_t padded_k = 96;
  std::vector<uint16_t> packed(rows * padded_k, 0xffff);
  const RowTiles tiles{.data = reinterpret_cast<std::byte*>(packed.data()),
                       .m = m,
                       .num_tiles = 1,
                       .tile_rows = rows,
                       .padded_k = padded_k,
                       .bf16_group = 32};
  (*SelectKernelSet("x86_64_amx"))->pack_activations(a.data(), k, k, tiles, 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < padded_k; ++d) {
      const uint16_t expected = r < m && d < k ? ToBf16(a[r * k + d]) : 0;
      EXPECT_EQ(packed[(d / 32 * rows + r) * 32 + d % 32], expected) << r << ", " << d;
    }
  }
}

}  // namespace
}  // namespace baton
