#include "kernels/emulation/tensor_map.h"

#include "tests/kernels/emulation/async_fixture.h"

namespace baton::emulation {
namespace {

// A box within an array, at its edges and before it: the chunks of row r trade places by r.
TEST(TensorMapTest, BoxesAreSwizzledAndZeroOutsideTheArray) {
  ResetDevice();
  constexpr int kBoxColumns = 75, kBoxRows = 6, kLayers = 2, kStride = 80;
  std::vector<uint16_t> data(kLayers * kBoxRows * kStride, 0xffff);
  for (int z = 0; z < kLayers; ++z) {
    for (int y = 0; y < kBoxRows; ++y) {
      for (int x = 0; x < kBoxColumns; ++x) {
        data[(z * kBoxRows + y) * kStride + x] = static_cast<uint16_t>(1000 * z + 100 * y + x + 1);
      }
    }
  }
  const auto* array = static_cast<uint16_t*>(UploadBytes(data.data(), 2 * data.size()));
  std::vector<uint16_t> got(4 * 64);
  auto* out = static_cast<uint16_t*>(UploadBytes(got.data(), 2 * got.size()));
  const int places[][3] = {{0, 0, 0}, {64, 1, 1}, {0, 4, 0}, {-8, -2, 1}, {0, 0, 2}, {72, 5, 1}};
  for (const auto& [x, y, z] : places) {
    ASSERT_EQ(detectors::RunBox({array, kBoxColumns, kBoxRows, kLayers, 2 * kStride, x, y, z, out},
                                nullptr),
              cudaSuccess);
    ASSERT_EQ(cudaMemcpy(got.data(), out, 2 * got.size(), cudaMemcpyDeviceToHost), cudaSuccess)
        << LastMessage();
    for (int row = 0; row < 4; ++row) {
      for (int column = 0; column < 64; ++column) {
        const int from_x = x + column, from_y = y + row;
        const bool is_inside =
            from_x >= 0 && from_x < kBoxColumns && from_y >= 0 && from_y < kBoxRows && z < kLayers;
        EXPECT_EQ(got[row * 64 + (column / 8 ^ row) * 8 + column % 8],
                  is_inside ? data[(z * kBoxRows + from_y) * kStride + from_x] : 0)
            << x << " " << y << " " << z << ": " << row << " " << column;
      }
    }
  }
  EXPECT_EQ(cudaFree(const_cast<uint16_t*>(array)), cudaSuccess);
  EXPECT_EQ(cudaFree(out), cudaSuccess);
}

TEST(TensorMapTest, ArraysThatNoMapCanDescribeAreRefused) {
  alignas(16) uint16_t data[64];
  using Numbers64 = std::vector<uint64_t>;
  const auto encode = [&](const void* from, const Numbers64& sizes, const Numbers64& strides,
                          const std::vector<uint32_t>& box) {
    TensorMap map;
    return EncodeTensorMap(map, from, sizes, strides, box);
  };
  EXPECT_EQ(encode(data, {8, 4}, {16}, {64, 4}), cudaSuccess);
  EXPECT_EQ(encode(data + 1, {8, 4}, {16}, {64, 4}), cudaErrorInvalidValue);
  EXPECT_EQ(encode(nullptr, {8, 4}, {16}, {64, 4}), cudaErrorInvalidValue);
  EXPECT_EQ(encode(data, {8, 4}, {18}, {64, 4}), cudaErrorInvalidValue);
  EXPECT_EQ(encode(data, {8, 4}, {uint64_t{1} << 40}, {64, 4}), cudaErrorInvalidValue);
  EXPECT_EQ(encode(data, {8, 0}, {16}, {64, 4}), cudaErrorInvalidValue);
  EXPECT_EQ(encode(data, {8, (uint64_t{1} << 32) + 1}, {16}, {64, 4}), cudaErrorInvalidValue);
  EXPECT_EQ(encode(data, {8, 4}, {16}, {64, 257}), cudaErrorInvalidValue);
  EXPECT_EQ(encode(data, {8, 4}, {16}, {72, 4}), cudaErrorInvalidValue);
  EXPECT_EQ(encode(data, {8, 4}, {16}, {60, 4}), cudaErrorInvalidValue);
  EXPECT_EQ(encode(data, {8, 4}, {16, 16}, {64, 4}), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace baton::emulation
