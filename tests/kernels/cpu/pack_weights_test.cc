#include "kernels/cpu/pack_weights.h"

#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

std::vector<float> Rows(const Panels& m, int64_t count) {
  std::vector<float> out(count * m.k());
  for (int64_t r = 0; r < count; ++r) UnpackRow(m, r, out.data() + r * m.k());
  return out;
}

TEST(PackWeightsTest, RowsPackedInAnyPiecesReadBackAsTheyWere) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t k : {1, 2, 15, 64, 97}) {
      const int64_t n = 75;
      const std::vector<float> values = Rounded(dtype, RandomFloats(k, n * k));
      const std::vector<std::byte> stored = Encode(dtype, values);
      const PackedMatrix matrix = *AllocatePanels(n, k, dtype);
      const Panels packed(matrix);
      std::memset(packed.data(), 0xff, packed.size_bytes());
      // Two parts, the second beginning amid a panel, each in two pieces.
      const WeightRows first{stored.data(), dtype, 21};
      const WeightRows second{stored.data() + 21 * k * SizeOf(dtype), dtype, n - 21};
      PackRows(first, 9, 21, 0, packed);
      PackRows(first, 0, 9, 0, packed);
      PackRows(second, 0, 30, 21, packed);
      PackRows(second, 30, n - 21, 21, packed);
      EXPECT_EQ(Rows(packed, n), values) << ToString(dtype) << " " << k;
    }
  }
}

// As a rank reads its columns of a matrix: what lies beside them is not touched.
TEST(PackWeightsTest, ColumnsOfAWiderMatrixReadBackAsTheyWere) {
  const int64_t n = 37, width = 75;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::vector<float> values = Rounded(dtype, RandomFloats(1, n * width));
    const std::vector<std::byte> stored = Encode(dtype, values);
    for (const auto& [first, k] : {std::pair{0, 32}, {32, 43}, {7, 1}, {10, 65}}) {
      std::vector<float> expected;
      for (int64_t row = 0; row < n; ++row) {
        const auto at = values.begin() + row * width + first;
        expected.insert(expected.end(), at, at + k);
      }
      const WeightRows part{stored.data() + first * SizeOf(dtype), dtype, n, width};
      for (const DType to : {dtype, DType::kF32}) {
        const PackedMatrix matrix = *AllocatePanels(n, k, to);
        const Panels packed(matrix);
        PackRows(part, 0, 20, 0, packed);
        PackRows(part, 20, n, 0, packed);
        EXPECT_EQ(Rows(packed, n), expected) << ToString(dtype) << " " << first << ", " << k;
      }
    }
  }
}

TEST(PackWeightsTest, WhatFillsUpPanelsAndPairsIsZero) {
  const int64_t n = 33, k = 5;
  const std::vector<std::byte> stored = Encode(DType::kBF16, RandomFloats(1, n * k));
  const PackedMatrix matrix = *AllocatePanels(n, k, DType::kBF16);
  const Panels packed(matrix);
  std::memset(packed.data(), 0xff, packed.size_bytes());
  PackRows({stored.data(), DType::kBF16, n}, 0, n, 0, packed);
  PackZeroRows(n, packed);
  for (int64_t row = 0; row < 64; ++row) {
    for (int64_t column = 0; column < 6; ++column) {
      if (row < n && column < k) continue;
      EXPECT_EQ(LoadOne<DType::kBF16>(packed.data(), packed.IndexOf(row, column)), 0.0f);
    }
  }
}

TEST(PackWeightsTest, OtherTypesWidenToFloat) {
  const int64_t n = 3, k = 4;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const std::vector<float> values = Rounded(dtype, RandomFloats(2, n * k));
    const std::vector<std::byte> stored = Encode(dtype, values);
    const PackedMatrix matrix = *AllocatePanels(n, k, DType::kF32);
    const Panels packed(matrix);
    PackRows({stored.data(), dtype, n}, 0, n, 0, packed);
    EXPECT_EQ(Rows(packed, n), values);
  }
}

}  // namespace
}  // namespace baton
