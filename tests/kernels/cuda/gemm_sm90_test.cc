#include "kernels/cuda/gemm_sm90.h"

#include <vector>

#include "kernels/cuda/gemm.h"
#include "tests/kernels/cuda/two_gemm_forms.h"

namespace baton::cuda {
namespace {

class GemmSm90Test : public TwoFormsTest {
 protected:
  GemmSm90Test() : TwoFormsTest(GemmSm90) {}
};

// Around tiles of 128 tokens, 128 weights and 64 of k, and more of them than there are stages.
TEST_P(GemmSm90Test, HasTheBitsOfTheFormForEveryGpu) {
  ExpectEqualBits({{1, 1, 1, 1, true, 7},
                   {64, 70, 64},
                   {65, 129, 72, 1, false},
                   {128, 128, 8, 1, true, 8},
                   {130, 20, 136},
                   {70, 9, 5 * 64, 1, true, 16},
                   {129, 130, 9 * 64 + 13, 1, true, 3},
                   {300, 5, 24}});
}

// More tiles than blocks, some of which pass all stages, of more rows than are in a group; results
// of which two can be stored at once and of which the last column has no other.
TEST_P(GemmSm90Test, TakesTilesInTurn) {
  ExpectEqualBits({{260, 389, 5 * 64}, {17 * 128 + 1, 257, 24, 1, false}, {130, 513, 8 * 32, 8}});
}

// Segments that end amid a tile of k, with it, and beyond all stages.
TEST_P(GemmSm90Test, FoldsSegmentsToTheSameBits) {
  ExpectEqualBits({{66, 70, 64, 2},
                   {130, 20, 8 * 96, 8},
                   {65, 130, 4 * 32, 4, false},
                   {64, 12, 2 * 320, 2, true, 8},
                   {129, 9, 8 * 64, 8}});
}

// As q alone of the weights of q, k and v.
TEST_P(GemmSm90Test, MultipliesSomeRowsOfTheWeights) {
  ExpectEqualBits({{130, 20, 136, 1, true, 0, 32}, {66, 70, 64, 2, false, 0, 64}});
}

INSTANTIATE_TEST_SUITE_P(Types, GemmSm90Test, testing::ValuesIn(kTwoFormsTypes), NameOfTypes);

// Tiles of 256 weights, of which blocks have none, one and several.
class WideGemmSm90Test : public TwoFormsTest {
 protected:
  WideGemmSm90Test() : TwoFormsTest(WideGemmSm90) {}
};

TEST_P(WideGemmSm90Test, HasTheBitsOfTheFormForEveryGpu) {
  ExpectEqualBits({{1, 1, 1, 1, true, 7},
                   {64, 255, 64},
                   {65, 257, 72, 1, false},
                   {130, 20, 136},
                   {129, 300, 9 * 64 + 13, 1, true, 3},
                   {300, 513, 5 * 64, 1, false}});
}

INSTANTIATE_TEST_SUITE_P(Types, WideGemmSm90Test, testing::ValuesIn(kTwoFormsTypes), NameOfTypes);

using GemmSm90ChoiceTest = DeviceTest;

// What no tensor copy can load, and what has no room in scratch for the other form.
TEST_F(GemmSm90ChoiceTest, TakesRowsThatBeginAtSixteenBytes) {
  const auto takes = [](int64_t k, int64_t stride, int32_t segments = 1, size_t shift = 0) {
    const DeviceFloats a(DType::kBF16, int64_t{16}, shift);
    const PackedMatrix weights = DeviceMatrix(DType::kBF16, std::vector<float>(k), 1, k);
    return GemmSm90Takes(
        {.a = a, .a_stride = stride, .m = 1, .weights = &weights, .segments = segments});
  };
  EXPECT_TRUE(takes(64, 64));
  EXPECT_TRUE(takes(13, 16));
  EXPECT_TRUE(takes(16, 16, 2));
  EXPECT_FALSE(takes(0, 16));
  EXPECT_FALSE(takes(13, 13));
  EXPECT_FALSE(takes(8, 8, 2));
  EXPECT_FALSE(takes(64, 64, 1, 1));
}

#if !defined(BATON_CUDA_DEVICE)
// Sm_90 alone has forms that need no scratch, which that for every GPU says it lacks; for prompts
// another than for few rows.
TEST_F(GemmSm90ChoiceTest, IsForPromptsOnSm90) {
  const auto run = [](std::string_view gpu, int64_t m) {
    emulation::SetGpu(gpu);
    const DeviceFloats a(DType::kBF16, std::vector<float>(m * 64));
    const PackedMatrix weights = DeviceMatrix(DType::kBF16, std::vector<float>(64), 1, 64);
    const DeviceFloats out(DType::kF32, m);
    const GemmArgs args{.a = a,
                        .a_stride = 64,
                        .m = m,
                        .weights = &weights,
                        .out = out,
                        .out_stride = 1,
                        .segments = 2};
    const cudaError_t expected =
        FormOf(args) == GemmForm::kMma ? cudaErrorMemoryAllocation : cudaSuccess;
    EXPECT_EQ(Gemm(args, {}, nullptr), expected);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
    return FormOf(args);
  };
  EXPECT_EQ(run("sm90", 257), GemmForm::kManyRowsSm90);
  EXPECT_EQ(run("sm90", 65), GemmForm::kFewRowsSm90);
  EXPECT_EQ(run("sm90", 1), GemmForm::kFewRowsSm90);
  for (const int64_t m : {1, 65, 257}) {
    EXPECT_EQ(run("sm80", m), GemmForm::kMma);
    EXPECT_EQ(run("sm100", m), GemmForm::kMma);
  }
  emulation::SetGpu("sm90");
}

// Where tiles of 128 x 128 are as many as SMs, or half as many if no segments give others more.
TEST_F(GemmSm90ChoiceTest, IsForSomeRowsWhereItHasABlockForEachSm) {
  emulation::SetGpu("sm90");
  const PackedMatrix weights =
      DeviceMatrix(DType::kBF16, std::vector<float>(132 * 128 * 16), 132 * 128, 16);
  const DeviceFloats a(DType::kBF16, std::vector<float>(256 * 16));
  const auto form = [&](int64_t m, int64_t n, int32_t segments) {
    return FormOf(
        {.a = a, .a_stride = 16, .m = m, .weights = &weights, .segments = segments, .num_rows = n});
  };
  for (const auto& [segments, tiles] : {std::pair{1, 66}, std::pair{2, 132}}) {
    EXPECT_EQ(form(64, tiles * 128, segments), GemmForm::kFewRowsSm90);
    EXPECT_EQ(form(65, (tiles - 1) * 128, segments), GemmForm::kFewRowsSm90);
    EXPECT_EQ(form(65, (tiles - 1) * 128 + 1, segments), GemmForm::kManyRowsSm90);
    EXPECT_EQ(form(128, (tiles - 1) * 128, segments), GemmForm::kFewRowsSm90);
    EXPECT_EQ(form(129, (tiles / 2 - 1) * 128, segments),
              segments == 1 ? GemmForm::kFewRowsSm90 : GemmForm::kManyRowsSm90);
    EXPECT_EQ(form(256, (tiles / 2 - 1) * 128 + 1, segments), GemmForm::kManyRowsSm90);
  }
}

// As many blocks as SMs, or as tiles: of 256 weights where that takes fewer rounds than it costs.
TEST_F(GemmSm90ChoiceTest, HasABlockForEachSmAndWideTilesWhereTheyPay) {
  emulation::SetGpu("sm90");
  const auto count = [](int64_t m, int64_t n) {
    const DeviceFloats a(DType::kBF16, std::vector<float>(m * 16));
    const PackedMatrix weights = DeviceMatrix(DType::kBF16, std::vector<float>(n * 16), n, 16);
    const DeviceFloats out(DType::kF32, m * n);
    const emulation::Statistics before = emulation::GetStatistics();
    const GemmArgs args{
        .a = a, .a_stride = 16, .m = m, .weights = &weights, .out = out, .out_stride = n};
    EXPECT_EQ(GemmSm90(args, nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
    const emulation::Statistics after = emulation::GetStatistics();
    // Of each tile four steps of k by each of two warpgroups.
    return std::pair((after.products - before.products) / 8, after.blocks - before.blocks);
  };
  EXPECT_EQ(count(1, 256), std::pair(int64_t{2}, int64_t{2}));  // One round, not one of twice that.
  EXPECT_EQ(count(1, 512), std::pair(int64_t{2}, int64_t{2}));  // One in place of two.
  EXPECT_EQ(count(1, 768), std::pair(int64_t{3}, int64_t{3}));
  EXPECT_EQ(count(129, 512), std::pair(int64_t{8}, int64_t{3}));  // Three, not two of twice that.
}
#endif

}  // namespace
}  // namespace baton::cuda
