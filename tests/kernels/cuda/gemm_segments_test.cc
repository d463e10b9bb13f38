#include <vector>

#include "kernels/cuda/gemm.h"
#include "tests/kernels/cuda/device_fixture.h"

// Scratch memory for the sums of segments; ../gemm_test.cc has what they fold to.
namespace baton::cuda {
namespace {

using GemmScratchTest = DeviceCaseTest;

constexpr int64_t kRows = 70, kColumns = 13, kK = 256;
constexpr int32_t kSegments = 8;

// With room for the sums of so many rows.
std::vector<float> Fold(const DeviceCase& types, int64_t scratch_rows) {
  const DeviceFloats a(types.in, Rounded(types.in, RandomFloats(1, kRows * kK)));
  const DeviceFloats bias(DType::kF32, RandomFloats(3, kColumns));
  const int64_t sums = kSegments * scratch_rows * kColumns;
  const DeviceFloats scratch(DType::kF32, sums), out(types.out, kRows * kColumns);
  const PackedMatrix weights =
      DeviceMatrix(types.in, Rounded(types.in, RandomFloats(2, kColumns * kK)), kColumns, kK);
  EXPECT_EQ(MmaGemm({.a = a,
                     .a_stride = kK,
                     .m = kRows,
                     .weights = &weights,
                     .bias = bias.f32(),
                     .out = out,
                     .out_stride = kColumns,
                     .segments = kSegments},
                    {scratch.f32(), static_cast<size_t>(sums)}, nullptr),
            cudaSuccess);
  scratch.Read();  // For its guards.
  return out.Read();
}

TEST_P(GemmScratchTest, RowsGoInPiecesWhereItIsShort) {
  const std::vector<float> whole = Fold(GetParam(), kRows);
  for (const int64_t rows : {1, 7, 16, 35, 69}) EXPECT_EQ(Fold(GetParam(), rows), whole) << rows;
}

INSTANTIATE_TEST_SUITE_P(Types, GemmScratchTest,
                         testing::Values(DeviceCase{DType::kBF16, DType::kF32, 1},
                                         DeviceCase{DType::kBF16, DType::kBF16, 2},
                                         DeviceCase{DType::kF16, DType::kF32, 3}),
                         NameOfCase);

using GemmNoScratchTest = DeviceTest;

TEST_F(GemmNoScratchTest, NoRoomForARowIsSaid) {
  const DeviceFloats a(DType::kBF16, RandomFloats(1, 2 * 64)), out(DType::kF32, 2 * 16);
  const DeviceFloats scratch(DType::kF32, 2 * 16 - 1);
  const PackedMatrix weights = DeviceMatrix(DType::kBF16, RandomFloats(2, 16 * 64), 16, 64);
  EXPECT_EQ(MmaGemm({.a = a,
                     .a_stride = 64,
                     .m = 2,
                     .weights = &weights,
                     .out = out,
                     .out_stride = 16,
                     .segments = 2},
                    {scratch.f32(), 2 * 16 - 1}, nullptr),
            cudaErrorMemoryAllocation);
}

}  // namespace
}  // namespace baton::cuda
