#include "kernels/cpu/packed_panels.h"

#include <gtest/gtest.h>

#include <set>

namespace baton {
namespace {

TEST(PackedPanelsTest, EveryElementHasAPlaceOfItsOwnWithinTheMemory) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Panels m(70, 7, dtype);
    EXPECT_EQ(m.num_panels(), 3);
    EXPECT_EQ(m.size_bytes(), 96 * (dtype == DType::kBF16 ? 8 : 7) * SizeOf(dtype));
    std::set<int64_t> places;
    for (int64_t row = 0; row < 96; ++row) {
      for (int64_t column = 0; column < m.padded_k(); ++column) {
        const int64_t at = m.IndexOf(row, column);
        EXPECT_GE(at, 0);
        EXPECT_LT(at * SizeOf(dtype), m.size_bytes());
        EXPECT_TRUE(places.insert(at).second) << row << ", " << column;
      }
    }
  }
}

TEST(PackedPanelsTest, PairsOfBf16LieSideBySide) {
  const Panels m(40, 6, DType::kBF16);
  EXPECT_EQ(m.IndexOf(33, 5), m.IndexOf(33, 4) + 1);
  EXPECT_EQ(m.IndexOf(34, 4), m.IndexOf(33, 4) + 2);
}

TEST(PackedPanelsTest, ColumnsLieWhereTheMatrixHasThem) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const PackedMatrix m = *AllocatePanels(70, 96, dtype);
    const Panels all(m), columns = all.Columns(32, 64);
    EXPECT_EQ(columns.data(), m.data() + all.IndexOf(0, 32) * SizeOf(dtype));
    EXPECT_EQ(columns.k(), 64);
    EXPECT_EQ(columns.panel_bytes(), 64 * 32 * SizeOf(dtype));
    EXPECT_EQ(columns.data() + columns.panel_stride(),
              m.data() + all.IndexOf(32, 32) * SizeOf(dtype));
    EXPECT_EQ(columns.Rows(64, 6).data(), m.data() + all.IndexOf(64, 32) * SizeOf(dtype));
  }
}

TEST(PackedPanelsTest, MemoryIsAlignedToTheLinesOfTheCache) {
  for (const int64_t k : {1, 100, 100'000}) {
    const PackedMatrix m = *AllocatePanels(33, k, DType::kBF16);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(m.data()) % 64, 0u);
    EXPECT_EQ(m.size_bytes(), Panels(m).size_bytes());
  }
}

TEST(PackedPanelsTest, AMatrixOfAnotherDeviceIsOurBug) {
  const PackedMatrix other(1, 1, DType::kF32, WeightFormat::kCuda, *AllocateHost(128));
  EXPECT_DEATH(Panels{other}, "check failed");
  EXPECT_DEATH(Panels{PackedMatrix()}, "check failed");
}

}  // namespace
}  // namespace baton
