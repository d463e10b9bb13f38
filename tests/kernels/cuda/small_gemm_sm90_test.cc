#include "kernels/cuda/small_gemm_sm90.h"

#include <vector>

#include "kernels/cuda/gated_gemm.h"
#include "tests/kernels/cuda/two_gemm_forms.h"

// Against the forms for every GPU, byte for byte.
namespace baton::cuda {
namespace {

class SmallGemmSm90Test : public TwoFormsTest {
 protected:
  SmallGemmSm90Test() : TwoFormsTest(SmallGemmSm90) {}
};

// Around tiles of 8, 16, 32, 64 and 128 tokens, of 32 weights and of 64 of k, and a ring that is
// passed twice for each.
TEST_P(SmallGemmSm90Test, HasTheBitsOfTheFormForEveryGpu) {
  ExpectEqualBits({{1, 1, 1, 1, true, 7},
                   {1, 70, 72},
                   {8, 33, 27 * 64 + 5, 1, true, 3},
                   {9, 31, 136, 1, false},
                   {16, 5, 22 * 64, 1, true, 8},
                   {17, 64, 40},
                   {32, 20, 17 * 64 + 8, 1, true, 16},
                   {33, 65, 64, 1, false, 8},
                   {64, 9, 14 * 64 + 13, 1, true, 3},
                   {65, 20, 18 * 64 + 13, 1, true, 3},
                   {128, 65, 64, 1, false, 8},
                   {129, 9, 136},
                   {256, 70, 72}});
}

// Segments that end amid a tile of k, with it, and beyond all stages.
TEST_P(SmallGemmSm90Test, FoldsSegmentsToTheSameBits) {
  ExpectEqualBits({{1, 70, 64, 2},
                   {3, 33, 4 * 96, 4, true, 8},
                   {8, 12, 8 * 32, 8},
                   {7, 9, 2 * 14 * 64, 2, false},
                   {12, 20, 8 * 96, 8},
                   {16, 40, 4 * 64, 4, false},
                   {31, 9, 2 * 32, 2},
                   {20, 33, 8 * 32, 8, true, 8},
                   {64, 20, 8 * 64, 8},
                   {50, 34, 4 * 32, 4},
                   {70, 66, 4 * 96, 4, true, 8},
                   {128, 9, 2 * 18 * 64, 2},
                   {200, 20, 8 * 32, 8, false}});
}

// As q alone of the weights of q, k and v.
TEST_P(SmallGemmSm90Test, MultipliesSomeRowsOfTheWeights) {
  ExpectEqualBits({{5, 20, 136, 1, true, 0, 32}, {18, 40, 64, 2, false, 0, 64}});
}

INSTANTIATE_TEST_SUITE_P(Types, SmallGemmSm90Test, testing::ValuesIn(kTwoFormsTypes), NameOfTypes);

// So many rows of weights that blocks have 64 of them, and of more than 64 tokens 128: elsewhere
// they have half as many.
class SmallGemmSm90TilesTest : public SmallGemmSm90Test {};

TEST_P(SmallGemmSm90TilesTest, HaveTheSameBits) {
  ExpectEqualBits({{4, 131 * 64 + 5, 16},
                   {10, 16 * 64 + 40, 8 * 32, 8},
                   {66, 98 * 128 + 5, 16},
                   {129, 6 * 128 + 70, 8 * 32, 8},
                   {65, 12 * 128 + 1, 8 * 6 * 64, 8, false}});
}

INSTANTIATE_TEST_SUITE_P(Types, SmallGemmSm90TilesTest,
                         testing::Values(TwoFormsTypes{DType::kBF16, DType::kF32}), NameOfTypes);

// Each number of tokens, alone and folded.
class SmallGemmSm90RowsTest : public SmallGemmSm90Test {};

TEST_P(SmallGemmSm90RowsTest, AnyNumberOfTokensHasTheSameBits) {
  for (int64_t m = 1; m <= 64; ++m) {
    ExpectEqualBits({{m, 3, 32, m % 2 == 0 ? 1 : 2}});
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SmallGemmSm90RowsTest,
                         testing::Values(TwoFormsTypes{DType::kBF16, DType::kBF16}), NameOfTypes);

struct GatedFormsShape {
  int64_t m, n, k;  // n: of gates.
  bool bias = true;
  int64_t first_row = 0;
  ActivationKind activation = ActivationKind::kSilu;
};

class SmallGatedGemmSm90Test : public DeviceTest, public testing::WithParamInterface<DType> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    emulation::SetGpu("sm90");
    if (!IsSm90()) GTEST_SKIP() << "the device is no sm_90";
  }

  void ExpectEqualBits(const GatedFormsShape& shape) const {
    const DType type = GetParam();
    const int64_t rows = shape.first_row + 2 * shape.n, a_stride = (shape.k + 7) / 8 * 8 + 8;
    const DeviceFloats a(type, RandomFloats(1, shape.m * a_stride));
    const PackedMatrix weights =
        DeviceMatrix(type, Rounded(type, RandomFloats(2, rows * shape.k)), rows, shape.k);
    const DeviceFloats bias(DType::kF32, RandomFloats(3, 2 * shape.n));
    const int64_t out_stride = shape.n + 3;
    std::vector<std::vector<std::byte>> results;
    for (const auto form : {MmaGatedGemm, SmallGatedGemmSm90}) {
      const DeviceFloats out(type, std::vector<float>(shape.m * out_stride, 7));
      const GatedGemmArgs args{.product = {.a = a,
                                           .a_stride = a_stride,
                                           .m = shape.m,
                                           .weights = &weights,
                                           .bias = shape.bias ? bias.f32() : nullptr,
                                           .out = out,
                                           .first_row = shape.first_row},
                               .activation = shape.activation,
                               .round_to = type,
                               .out = out,
                               .out_stride = out_stride};
      EXPECT_TRUE(GatedGemmServes(args));
      EXPECT_EQ(form(args, nullptr), cudaSuccess);
      results.push_back(out.ReadBytes());
    }
    EXPECT_TRUE(results[0] == results[1]) << shape.m << " x " << shape.n << " x " << shape.k;
  }
};

TEST_P(SmallGatedGemmSm90Test, HasTheBitsOfTheFormForEveryGpu) {
  ExpectEqualBits({.m = 1, .n = 8, .k = 1});
  ExpectEqualBits({.m = 3, .n = 40, .k = 136, .bias = false});
  ExpectEqualBits({.m = 9, .n = 24, .k = 11 * 64 + 8, .activation = ActivationKind::kGelu});
  ExpectEqualBits({.m = 30, .n = 16, .k = 72, .first_row = 32});
  ExpectEqualBits({.m = 64, .n = 72, .k = 64, .activation = ActivationKind::kGeluTanh});
  ExpectEqualBits({.m = 65, .n = 40, .k = 136});
  ExpectEqualBits({.m = 150, .n = 24, .k = 72, .bias = false});
}

// Blocks of 32 and of 64 gates and their ups.
TEST_P(SmallGatedGemmSm90Test, HasThemWithLargerTiles) {
  ExpectEqualBits({.m = 2, .n = 66 * 64 + 8, .k = 8});
  ExpectEqualBits({.m = 130, .n = 49 * 64 + 8, .k = 8});
}

INSTANTIATE_TEST_SUITE_P(Types, SmallGatedGemmSm90Test, testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(ToString(info.param)); });

#if !defined(BATON_CUDA_DEVICE)
using SmallGemmSm90GridTest = DeviceTest;

// Where blocks of 64 rows are fewer than SMs there are twice as many, of 32.
TEST_F(SmallGemmSm90GridTest, FewRowsOfWeightsAreCutForMoreBlocks) {
  const auto blocks = [](int64_t n, int32_t segments) {
    const int64_t k = 32 * segments;
    const DeviceFloats a(DType::kBF16, std::vector<float>(k));
    const PackedMatrix weights = DeviceMatrix(DType::kBF16, std::vector<float>(n * k), n, k);
    const DeviceFloats out(DType::kF32, n);
    const int64_t before = emulation::GetStatistics().blocks;
    EXPECT_EQ(SmallGemmSm90({.a = a,
                             .a_stride = k,
                             .m = 1,
                             .weights = &weights,
                             .out = out,
                             .out_stride = n,
                             .segments = segments},
                            nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
    return emulation::GetStatistics().blocks - before;
  };
  EXPECT_EQ(blocks(64, 1), 2);
  EXPECT_EQ(blocks(131 * 64, 1), 2 * 131);
  EXPECT_EQ(blocks(131 * 64 + 1, 1), 132);
  EXPECT_EQ(blocks(16 * 64, 8), 2 * 16 * 8);
  EXPECT_EQ(blocks(16 * 64 + 1, 8), 17 * 8);
}
#endif

}  // namespace
}  // namespace baton::cuda
