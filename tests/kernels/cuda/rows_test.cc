#include "kernels/cuda/rows.h"

#include <vector>

#include "kernels/cpu/rotary_table.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

class RowsTest : public DeviceTest {};

TEST_F(RowsTest, RotationsAreTheCpusBitByBit) {
  for (const int64_t half : {1, 16, 40, 64}) {
    std::vector<float> inv_freq(half);
    for (int64_t i = 0; i < half; ++i) {
      inv_freq[i] = std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(half));
    }
    std::vector<int32_t> positions;
    for (int32_t p = 0; p < 70; ++p) positions.push_back(p);
    for (const int32_t p : {1000, 4095, 65537, 131071, 999999}) positions.push_back(p);
    for (const int32_t p : {0, 1, 4095}) positions.push_back(OtherRotation(p));
    const std::vector<float> other(half, 0.3f);
    for (const float scaling : {1.0f, 1.1386294f}) {
      const size_t size = positions.size() * half;
      std::vector<float> cos(size), sin(size);
      FillRotaryTable({.positions = positions.data(),
                       .num_tokens = std::ssize(positions),
                       .inv_freq = inv_freq.data(),
                       .other_inv_freq = other.data(),
                       .half = half,
                       .attention_scaling = scaling,
                       .cos = cos.data(),
                       .sin = sin.data()},
                      0, std::ssize(positions));
      const DeviceArray<int32_t> device_positions(positions);
      const DeviceFloats device_inv_freq(DType::kF32, inv_freq);
      const DeviceFloats device_other(DType::kF32, other);
      const DeviceFloats device_cos(DType::kF32, static_cast<int64_t>(size));
      const DeviceFloats device_sin(DType::kF32, static_cast<int64_t>(size));
      ASSERT_EQ(RotaryTable({.positions = device_positions.data(),
                             .num_tokens = std::ssize(positions),
                             .inv_freq = device_inv_freq.f32(),
                             .other_inv_freq = device_other.f32(),
                             .half = half,
                             .attention_scaling = scaling,
                             .cos = device_cos.f32(),
                             .sin = device_sin.f32()},
                            nullptr),
                cudaSuccess);
      EXPECT_EQ(device_cos.Read(), cos) << half;
      EXPECT_EQ(device_sin.Read(), sin) << half;
    }
  }
  EXPECT_EQ(RotaryTable({.num_tokens = 0, .half = 4}, nullptr), cudaSuccess);
}

// What it selects: tests/kernels/select_rows_test.cc.
TEST_F(RowsTest, SelectsRowsOfOneType) {
  const SelectRowsArgs mixed{.from = {nullptr, DType::kF32},
                             .num_rows = 1,
                             .dim = 8,
                             .to = {nullptr, DType::kF16}};
  EXPECT_EQ(SelectRows(mixed, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(SelectRows({.num_rows = 0, .dim = 8}, nullptr), cudaSuccess);
}

class CopyPiecesTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    void* memory = nullptr;
    ASSERT_EQ(cudaHostAlloc(&memory, kMaxPieces * sizeof(CopyPiece), cudaHostAllocDefault),
              cudaSuccess);
    pieces_ = static_cast<CopyPiece*>(memory);
  }
  void TearDown() override {
    DeviceTest::TearDown();
    cudaFreeHost(pieces_);
  }
  static std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
    Random random(seed);
    std::vector<std::byte> bytes(size);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next());
    return bytes;
  }

  static constexpr size_t kMaxPieces = 65600;
  CopyPiece* pieces_ = nullptr;
};

// Pieces of all sizes and alignments, in reverse order, gaps between them.
TEST_F(CopyPiecesTest, CopiesPiecesAndNothingElse) {
  for (const int64_t unit : {8, 16, 24, 120, 128, 4096}) {
    constexpr int64_t kCount = 9;
    const int64_t stride = unit * 3 + 8;
    const std::vector<std::byte> source = RandomBytes(stride * kCount, unit);
    std::vector<std::byte> expected = RandomBytes(stride * kCount, unit + 1);
    const DeviceBytes from(source), to(expected);
    for (int64_t i = 0; i < kCount; ++i) {
      const int64_t at = i * stride, there = (kCount - 1 - i) * stride + 4 * (i & 2);
      const int64_t bytes = unit * (i % 4);
      pieces_[i] = {static_cast<const std::byte*>(from.data()) + at,
                    static_cast<std::byte*>(to.data()) + there, bytes};
      std::copy_n(source.begin() + at, bytes, expected.begin() + there);
    }
    ASSERT_EQ(CopyPieces(pieces_, kCount, nullptr), cudaSuccess);
    EXPECT_TRUE(to.Read() == expected) << unit;
  }
}

TEST_F(CopyPiecesTest, CopiesMorePiecesThanAGridHasRowsAndPiecesLargerThanAGrid) {
  constexpr int64_t kLarge = (3 << 20) + 24;
  const std::vector<std::byte> source = RandomBytes(kLarge, 3);
  const DeviceBytes from(source), to(std::vector<std::byte>(kLarge, std::byte{1}));
  const auto* here = static_cast<const std::byte*>(from.data());
  auto* there = static_cast<std::byte*>(to.data());
  pieces_[0] = {here, there, kLarge};
  ASSERT_EQ(CopyPieces(pieces_, 1, nullptr), cudaSuccess);
  EXPECT_TRUE(to.Read() == source);

  std::vector<std::byte> expected = source;
  for (size_t i = 0; i < kMaxPieces; ++i) {
    pieces_[i] = {here + 8 * (kMaxPieces - 1 - i), there + 8 * i, 8};
    std::copy_n(source.begin() + 8 * (kMaxPieces - 1 - i), 8, expected.begin() + 8 * i);
  }
  ASSERT_EQ(CopyPieces(pieces_, kMaxPieces, nullptr), cudaSuccess);
  EXPECT_TRUE(to.Read() == expected);
}

TEST_F(CopyPiecesTest, OfNothingLaunchesNothing) {
  EXPECT_EQ(CopyPieces(pieces_, 0, nullptr), cudaSuccess);
  pieces_[0] = {};
  EXPECT_EQ(CopyPieces(pieces_, 1, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace baton::cuda
