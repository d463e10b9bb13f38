#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/norms.h"
#include "tests/kernels/cuda/device_fixture.h"

// Against the operators that it stands for, byte for byte.
namespace baton::cuda {
namespace {

struct NormedShape {
  int64_t m, n, k;
  int32_t segments = 8;
  int64_t scratch_rows = 0;  // 0: of all tokens.
  bool bias = false;
  bool one_plus = false;
  size_t shift = 0;  // Of residuals, from what vectors can load.
};

struct Normed {
  std::vector<std::byte> out, residual;
};

class GemmAndNormTest : public DeviceCaseTest {
 protected:
  static constexpr int64_t kGap = 4;

  // By the tree in the norm or before it.
  Normed Run(const NormedShape& shape, bool fused) {
    const DType type = GetParam().in, to = GetParam().out;
    const int64_t m = shape.m, n = shape.n, k = shape.k, stride = n + kGap;
    const DeviceFloats a(type, Rounded(type, RandomFloats(1, m * k)));
    const PackedMatrix weights = DeviceMatrix(type, Rounded(type, RandomFloats(2, n * k)), n, k);
    const DeviceFloats bias(DType::kF32, RandomFloats(3, n)),
        weight(DType::kF32, RandomFloats(4, n));
    const DeviceFloats residual(DType::kF32, RandomFloats(5, m * stride), shape.shift);
    const DeviceFloats between(DType::kF32, std::vector<float>(m * stride, 7));
    const DeviceFloats out(to, std::vector<float>(m * stride, 7));
    const int64_t rows = shape.scratch_rows == 0 ? m : shape.scratch_rows;
    const DeviceFloats scratch(DType::kF32, shape.segments * rows * n);
    const std::span<float> room(scratch.f32(), shape.segments * rows * n);
    const GemmAndNormArgs args{.product = {.a = a,
                                           .a_stride = k,
                                           .m = m,
                                           .weights = &weights,
                                           .bias = shape.bias ? bias.f32() : nullptr,
                                           .out = between,
                                           .out_stride = stride,
                                           .segments = shape.segments},
                               .weight = weight.f32(),
                               .one_plus_weight = shape.one_plus,
                               .eps = 1e-5f,
                               .residual = residual.f32(),
                               .residual_stride = stride,
                               .round_to = to,
                               .out = out,
                               .out_stride = stride};
    if (fused) {
      EXPECT_TRUE(GemmAndNormServes(args));
      EXPECT_EQ(GemmAndNorm(args, room, nullptr), cudaSuccess);
      EXPECT_EQ(between.Read(), std::vector<float>(m * stride, 7));
    } else {
      EXPECT_EQ(Gemm(args.product, room, nullptr), cudaSuccess);
      EXPECT_EQ(RmsNorm(args.Norm(), nullptr), cudaSuccess);
    }
    return {out.ReadBytes(), residual.ReadBytes()};
  }
};

TEST_P(GemmAndNormTest, WritesTheBytesOfGemmAndRmsNorm) {
  // Rows of a warp and of a block, whole fours and not; in several pieces.
  const NormedShape shapes[] = {{.m = 1, .n = 8, .k = 256},
                                {.m = 3, .n = 516, .k = 64, .segments = 2, .bias = true},
                                {.m = 17, .n = 130, .k = 128, .segments = 4, .one_plus = true},
                                {.m = 10, .n = 20, .k = 256, .scratch_rows = 3, .bias = true},
                                {.m = 70, .n = 40, .k = 64, .segments = 2, .scratch_rows = 40},
                                {.m = 5, .n = 515, .k = 256},
                                {.m = 2, .n = 64, .k = 256, .bias = true, .shift = 1}};
  for (const NormedShape& shape : shapes) {
    SCOPED_TRACE(std::to_string(shape.m) + " x " + std::to_string(shape.n));
    const Normed got = Run(shape, true), expected = Run(shape, false);
    EXPECT_TRUE(got.out == expected.out);
    EXPECT_TRUE(got.residual == expected.residual);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GemmAndNormTest,
                         testing::Values(DeviceCase{DType::kBF16, DType::kBF16, 1},
                                         DeviceCase{DType::kF16, DType::kF16, 2},
                                         DeviceCase{DType::kBF16, DType::kF32, 3}),
                         NameOfCase);

using GemmAndNormServesTest = DeviceTest;

TEST_F(GemmAndNormServesTest, LeavesTheRestToTheOperatorsApart) {
  const PackedMatrix weights(32, 64, DType::kBF16, WeightFormat::kCuda, {});
  const PackedMatrix panels(32, 64, DType::kBF16, WeightFormat::kCpuPanels, {});
  const GemmAndNormArgs legal{
      .product = {.a = {nullptr, DType::kBF16}, .m = 1, .weights = &weights, .segments = 2}};
  EXPECT_EQ(GemmAndNorm(legal, {}, nullptr), cudaErrorMemoryAllocation);
  const auto refused = [&](auto spoil) {
    GemmAndNormArgs args = legal;
    spoil(args);
    return GemmAndNorm(args, {}, nullptr) == cudaErrorInvalidValue;
  };
  GemmAndNormArgs none = legal;
  none.product.m = 0;
  EXPECT_EQ(GemmAndNorm(none, {}, nullptr), cudaSuccess);
  EXPECT_TRUE(refused([](auto& a) { a.product.segments = 1; }));
  EXPECT_TRUE(refused([](auto& a) { a.product.out.dtype = DType::kBF16; }));
  EXPECT_TRUE(refused([](auto& a) { a.product.a.dtype = DType::kF16; }));
  EXPECT_TRUE(refused([&](auto& a) { a.product.weights = &panels; }));
}

// Whatever the caller has not checked.
TEST_F(GemmAndNormServesTest, TreesInNormsAreOfSeveralPartsAndHaveAResidual) {
  const DeviceFloats x(DType::kF32, std::vector<float>(8, 1));
  FoldPartialsArgs fold{.parts = {x.f32(), x.f32()}, .num_parts = 2, .num_tokens = 1, .dim = 8};
  const RmsNormArgs norm{
      .num_tokens = 1, .dim = 8, .weight = x.f32(), .residual = x.f32(), .out = x, .out_stride = 8};
  RmsNormArgs spoiled = norm;
  spoiled.residual = nullptr;
  EXPECT_EQ(FoldAndNorm(fold, spoiled, nullptr), cudaErrorInvalidValue);
  spoiled = norm;
  spoiled.dim = 4;
  EXPECT_EQ(FoldAndNorm(fold, spoiled, nullptr), cudaErrorInvalidValue);
  fold.num_parts = 1;
  EXPECT_EQ(FoldAndNorm(fold, norm, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace baton::cuda
