#include "kernels/cuda/elementwise.h"

#include <vector>

#include "tests/kernels/cuda/device_fixture.h"

// What they compute: tests/kernels/elementwise_test.cc, for all devices.
namespace baton::cuda {
namespace {

class ElementwiseOperandsTest : public DeviceCaseTest {};

TEST_P(ElementwiseOperandsTest, AnEmbeddingTakesTablesOfTheDeviceAlone) {
  const auto [in, out_type, seed] = GetParam();
  const PackedMatrix table = DeviceMatrix(in, {1}, 1, 1);
  const PackedMatrix panels(1, 1, in, WeightFormat::kCpuPanels, {});
  EXPECT_EQ(Embedding({.shards = {&panels}, .num_tokens = 1}, nullptr), cudaErrorInvalidValue);
  const DeviceArray<int32_t> tokens({0});
  EXPECT_EQ(Embedding({.shards = {&table, &panels},
                       .num_shards = 2,
                       .rows_each = 1,
                       .tokens = tokens.data(),
                       .num_tokens = 1},
                      nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(Embedding({}, nullptr), cudaSuccess);  // No tokens.
}

// Which the emulation sees only where no canary lies behind it.
TEST_P(ElementwiseOperandsTest, NothingIsReadBehindABiasAtTheEndOfItsMemory) {
  const DType out_type = GetParam().out;
  const DeviceFloats part(DType::kF32, {1, 2, 3}), sum(out_type, 3);
  void* bias = nullptr;
  ASSERT_EQ(cudaMalloc(&bias, 3 * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(bias, part.data(), 3 * sizeof(float), cudaMemcpyDeviceToDevice),
            cudaSuccess);
  ASSERT_EQ(FoldPartials({.parts = {part.f32()},
                          .num_tokens = 1,
                          .dim = 3,
                          .bias = static_cast<float*>(bias),
                          .out = sum},
                         nullptr),
            cudaSuccess);
  EXPECT_EQ(sum.Read(), (std::vector<float>{2, 4, 6}));
  cudaFree(bias);
}

TEST_P(ElementwiseOperandsTest, RoundsToTheTypeOfTheOutputAndNoOther) {
  const auto [in, out_type, seed] = GetParam();
  const DeviceFloats x(in, RandomFloats(seed, 8)), out(out_type, 4);
  const std::vector<float> values = RandomFloats(seed, 4);
  const DeviceFloats total(DType::kF32, values), copy(out_type, 4);
  FoldPartialsArgs fold{.parts = {total.f32()}, .num_tokens = 1, .dim = 4, .out = copy};
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const cudaError_t expected = type == out_type ? cudaSuccess : cudaErrorInvalidValue;
    EXPECT_EQ(Activation({x, 1, 4, ActivationKind::kRelu, type, out}, nullptr), expected);
    EXPECT_EQ(ActivationAndMul({x, 1, 4, ActivationKind::kRelu, type, out}, nullptr), expected);
    fold.round_to = type;  // f32: whatever the output is.
    EXPECT_EQ(FoldPartials(fold, nullptr), type == DType::kF32 ? cudaSuccess : expected);
  }
  EXPECT_EQ(copy.Read(), Rounded(out_type, values));
  fold.num_parts = 3;
  fold.round_to = DType::kF32;
  EXPECT_EQ(FoldPartials(fold, nullptr), cudaErrorInvalidValue);
}

INSTANTIATE_TEST_SUITE_P(Types, ElementwiseOperandsTest, testing::ValuesIn(DeviceCases()),
                         NameOfCase);

}  // namespace
}  // namespace baton::cuda
