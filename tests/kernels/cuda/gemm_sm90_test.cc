#include "kernels/cuda/gemm_sm90.h"

#include <string>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

struct TwoFormsShape {
  int64_t m, n, k;
  int32_t segments = 1;
  bool bias = true;
  int64_t gap = 0;        // Behind each row of tokens.
  int64_t first_row = 0;  // Of the weights, which have as many more behind the last.

  std::string Name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " in " +
           std::to_string(segments);
  }
};

struct TwoFormsTypes {
  DType in;
  DType out;
};

// The two forms of Gemm that sm_90a has; the other GPUs' is the oracle.
class GemmSm90Test : public DeviceTest, public testing::WithParamInterface<TwoFormsTypes> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    emulation::SetGpu("sm90");
    if (!IsSm90()) GTEST_SKIP() << "the device is no sm_90";
  }

  // Whatever is between rows is NaN: nobody may read it.
  DeviceFloats Tokens(const TwoFormsShape& shape) const {
    const auto dense = RandomFloats(shape.m + shape.k, shape.m * shape.k);
    std::vector<float> rows(shape.m * (shape.k + shape.gap), NAN);
    for (int64_t i = 0; i < shape.m * shape.k; ++i) {
      rows[i / shape.k * (shape.k + shape.gap) + i % shape.k] = dense[i];
    }
    return DeviceFloats(GetParam().in, rows);
  }

  // Both forms' results, with what lies behind their rows.
  std::vector<std::vector<std::byte>> Multiply(const TwoFormsShape& shape) const {
    const DeviceFloats a = Tokens(shape);
    const PackedMatrix weights =
        DeviceMatrix(GetParam().in,
                     Rounded(GetParam().in,
                             RandomFloats(shape.n + 1, (shape.n + 2 * shape.first_row) * shape.k)),
                     shape.n + 2 * shape.first_row, shape.k);
    const DeviceFloats bias(DType::kF32, RandomFloats(shape.n + 2, shape.n));
    const DeviceFloats scratch(DType::kF32, shape.segments * shape.m * shape.n);
    const int64_t out_stride = shape.n + 3;
    std::vector<std::vector<std::byte>> results;
    for (const bool is_sm90 : {false, true}) {
      const DeviceFloats out(GetParam().out, std::vector<float>(shape.m * out_stride, 7));
      const GemmArgs args{.a = a,
                          .a_stride = shape.k + shape.gap,
                          .m = shape.m,
                          .weights = &weights,
                          .bias = shape.bias ? bias.f32() : nullptr,
                          .out = out,
                          .out_stride = out_stride,
                          .segments = shape.segments,
                          .first_row = shape.first_row,
                          .num_rows = shape.n};
      EXPECT_TRUE(GemmSm90Takes(args));
      const auto scratch_size = static_cast<size_t>(shape.segments * shape.m * shape.n);
      EXPECT_EQ(
          is_sm90 ? GemmSm90(args, nullptr) : MmaGemm(args, {scratch.f32(), scratch_size}, nullptr),
          cudaSuccess);
      results.push_back(out.ReadBytes());
    }
    return results;
  }

  void ExpectEqualBits(const std::vector<TwoFormsShape>& shapes) const {
    for (const TwoFormsShape& shape : shapes) {
      SCOPED_TRACE(shape.Name());
      const auto results = Multiply(shape);
      EXPECT_EQ(results[0], results[1]);
      if (HasFailure()) return;
    }
  }
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

INSTANTIATE_TEST_SUITE_P(Types, GemmSm90Test,
                         testing::Values(TwoFormsTypes{DType::kBF16, DType::kF32},
                                         TwoFormsTypes{DType::kBF16, DType::kBF16},
                                         TwoFormsTypes{DType::kF16, DType::kF32},
                                         TwoFormsTypes{DType::kF16, DType::kF16}),
                         [](const auto& info) {
                           return std::string(ToString(info.param.in)) + "_to_" +
                                  std::string(ToString(info.param.out));
                         });

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
// Prompts on sm_90 take it, and nothing else does: a launch of it needs no scratch, which the other
// form says it lacks.
TEST_F(GemmSm90ChoiceTest, IsForPromptsOnSm90) {
  const auto run = [](std::string_view gpu, int64_t m) {
    emulation::SetGpu(gpu);
    const DeviceFloats a(DType::kBF16, std::vector<float>(m * 64));
    const PackedMatrix weights = DeviceMatrix(DType::kBF16, std::vector<float>(64), 1, 64);
    const DeviceFloats out(DType::kF32, m);
    const cudaError_t error = Gemm({.a = a,
                                    .a_stride = 64,
                                    .m = m,
                                    .weights = &weights,
                                    .out = out,
                                    .out_stride = 1,
                                    .segments = 2},
                                   {}, nullptr);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
    return error;
  };
  EXPECT_EQ(run("sm90", 65), cudaSuccess);
  EXPECT_EQ(run("sm90", 64), cudaErrorMemoryAllocation);
  EXPECT_EQ(run("sm80", 65), cudaErrorMemoryAllocation);
  EXPECT_EQ(run("sm100", 65), cudaErrorMemoryAllocation);
  emulation::SetGpu("sm90");
}
#endif

}  // namespace
}  // namespace baton::cuda
