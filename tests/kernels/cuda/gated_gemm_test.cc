#include "kernels/cuda/gated_gemm.h"

#include <string>
#include <vector>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm.h"
#include "tests/kernels/cuda/device_fixture.h"

// The form for every GPU against the operators that it stands for, byte for byte.
namespace baton::cuda {
namespace {

struct GatedShape {
  int64_t m, n, k;  // n: of gates.
  bool bias = true;
  int64_t a_gap = 0;
  int64_t first_row = 0;
  ActivationKind activation = ActivationKind::kSilu;
};

class GatedGemmTest : public DeviceCaseTest {
 protected:
  static constexpr int64_t kOutGap = 3;

  // By one kernel or by two.
  std::vector<std::byte> Run(const GatedShape& shape, bool fused) {
    const DType type = GetParam().in;
    const auto& [m, n, k, has_bias, a_gap, first_row, activation] = shape;
    const DeviceFloats a(type, Rounded(type, RandomFloats(1, m * (k + a_gap))));
    const int64_t rows = first_row + 2 * n;
    const PackedMatrix weights =
        DeviceMatrix(type, Rounded(type, RandomFloats(2, rows * k)), rows, k);
    const DeviceFloats bias(DType::kF32, RandomFloats(3, 2 * n));
    const DeviceFloats between(type, std::vector<float>(m * (2 * n + kOutGap), 7));
    const DeviceFloats out(type, std::vector<float>(m * (n + kOutGap), 7));
    const GatedGemmArgs args{.product = {.a = a,
                                         .a_stride = k + a_gap,
                                         .m = m,
                                         .weights = &weights,
                                         .bias = has_bias ? bias.f32() : nullptr,
                                         .out = between,
                                         .out_stride = 2 * n + kOutGap,
                                         .first_row = first_row},
                             .activation = activation,
                             .round_to = type,
                             .out = out,
                             .out_stride = n + kOutGap};
    if (fused) {
      EXPECT_TRUE(GatedGemmServes(args));
      EXPECT_EQ(MmaGatedGemm(args, nullptr), cudaSuccess);
      EXPECT_EQ(between.Read(), std::vector<float>(m * (2 * n + kOutGap), 7));
    } else {
      EXPECT_EQ(Gemm(args.product, {}, nullptr), cudaSuccess);
      EXPECT_EQ(ActivationAndMul(args.Activation(), nullptr), cudaSuccess);
    }
    return out.ReadBytes();
  }
  void ExpectTheSame(const GatedShape& shape) {
    EXPECT_TRUE(Run(shape, true) == Run(shape, false))
        << shape.m << " x " << shape.n << " x " << shape.k;
  }
};

TEST_P(GatedGemmTest, WritesTheBytesOfGemmAndActivationAndMul) {
  // Around the tiles of tokens and of 32 and 64 gates, of any k.
  for (const int64_t m : {1, 16, 17, 64, 65, 130}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8, 1}, {40, 64}, {72, 136}}) {
      ExpectTheSame({.m = m, .n = n, .k = k, .bias = m % 2 == 1});
    }
  }
  ExpectTheSame({.m = 3, .n = 136, .k = 584, .a_gap = 8});
  ExpectTheSame({.m = 3, .n = 16, .k = 40, .a_gap = 3});
  ExpectTheSame({.m = 40, .n = 16, .k = 40, .first_row = 64});
  ExpectTheSame({.m = 70, .n = 24, .k = 33, .first_row = 32});
}

TEST_P(GatedGemmTest, KnowsEachActivation) {
  for (const auto activation : {ActivationKind::kSilu, ActivationKind::kGelu,
                                ActivationKind::kGeluTanh, ActivationKind::kRelu}) {
    for (const int64_t m : {2, 66}) {
      ExpectTheSame({.m = m, .n = 48, .k = 24, .activation = activation});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GatedGemmTest,
                         testing::Values(DeviceCase{DType::kBF16, DType::kBF16, 1},
                                         DeviceCase{DType::kF16, DType::kF16, 2}),
                         NameOfCase);

using GatedGemmServesTest = DeviceTest;

TEST_F(GatedGemmServesTest, LeavesTheRestToTheOperatorsApart) {
  const PackedMatrix weights(32, 64, DType::kBF16, WeightFormat::kCuda, {});
  const PackedMatrix f16(32, 64, DType::kF16, WeightFormat::kCuda, {});
  const PackedMatrix ragged(24, 64, DType::kBF16, WeightFormat::kCuda, {});
  const PackedMatrix panels(32, 64, DType::kBF16, WeightFormat::kCpuPanels, {});
  GatedGemmArgs legal{.product = {.a = {nullptr, DType::kBF16},
                                  .weights = &weights,
                                  .out = {nullptr, DType::kBF16}},
                      .round_to = DType::kBF16,
                      .out = {nullptr, DType::kBF16}};
  EXPECT_EQ(GatedGemm(legal, nullptr), cudaSuccess);  // Of no tokens.
  const auto refused = [&](auto spoil) {
    GatedGemmArgs args = legal;
    spoil(args);
    return GatedGemm(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](auto& a) { a.product.a.dtype = DType::kF32; }));
  EXPECT_TRUE(refused([](auto& a) { a.product.out.dtype = DType::kF32; }));
  EXPECT_TRUE(refused([](auto& a) { a.out.dtype = DType::kF32; }));
  EXPECT_TRUE(refused([](auto& a) { a.round_to = DType::kF32; }));
  EXPECT_TRUE(refused([](auto& a) { a.product.segments = 2; }));
  EXPECT_TRUE(refused([&](auto& a) { a.product.weights = &f16; }));
  EXPECT_TRUE(refused([&](auto& a) { a.product.weights = &ragged; }));
  EXPECT_TRUE(refused([&](auto& a) { a.product.weights = &panels; }));
}

}  // namespace
}  // namespace baton::cuda
