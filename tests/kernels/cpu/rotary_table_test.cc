#include <cmath>

#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

class RotaryTableTest : public KernelTest {
 protected:
  struct Table {
    std::vector<float> cos, sin;
  };
  Table Fill(const std::vector<int32_t>& positions, const std::vector<float>& inv_freq,
             float scaling) {
    const auto num_tokens = static_cast<int64_t>(positions.size());
    const auto half = static_cast<int64_t>(inv_freq.size());
    Table table{std::vector<float>(num_tokens * half), std::vector<float>(num_tokens * half)};
    EXPECT_TRUE(kernels_
                    ->RotaryTable({.positions = positions.data(),
                                   .num_tokens = num_tokens,
                                   .inv_freq = inv_freq.data(),
                                   .half = half,
                                   .attention_scaling = scaling,
                                   .cos = table.cos.data(),
                                   .sin = table.sin.data()})
                    .ok());
    return table;
  }
};

TEST_P(RotaryTableTest, AngleIsRoundedToFloatAndBothPartsAreScaled) {
  const std::vector<float> inv_freq = {1.0f, 0.1f, 1.0f / 3};
  const std::vector<int32_t> positions = {0, 7, 131071};
  const Table table = Fill(positions, inv_freq, 1.25f);
  for (size_t p = 0; p < positions.size(); ++p) {
    for (size_t i = 0; i < 3; ++i) {
      const float angle = static_cast<float>(positions[p]) * inv_freq[i];
      EXPECT_EQ(table.cos[p * 3 + i], static_cast<float>(std::cos(double{angle})) * 1.25f);
      EXPECT_EQ(table.sin[p * 3 + i], static_cast<float>(std::sin(double{angle})) * 1.25f);
    }
  }
}

TEST_P(RotaryTableTest, APositionMayAskForTheOtherFrequencies) {
  const std::vector<float> inv_freq = {1.0f, 0.5f}, other = {0.25f, 0.125f};
  const std::vector<int32_t> positions = {3, OtherRotation(3), OtherRotation(0), 7};
  std::vector<float> cos(8), sin(8);
  ASSERT_TRUE(kernels_
                  ->RotaryTable({.positions = positions.data(),
                                 .num_tokens = 4,
                                 .inv_freq = inv_freq.data(),
                                 .other_inv_freq = other.data(),
                                 .half = 2,
                                 .cos = cos.data(),
                                 .sin = sin.data()})
                  .ok());
  const Table plain = Fill({3, 3, 0, 7}, inv_freq, 1), others = Fill({3, 3, 0, 7}, other, 1);
  for (size_t i = 0; i < 8; ++i) {
    const Table& want = i / 2 == 1 || i / 2 == 2 ? others : plain;
    EXPECT_EQ(cos[i], want.cos[i]) << i;
    EXPECT_EQ(sin[i], want.sin[i]) << i;
  }
  EXPECT_NE(cos[0], cos[2]);
}

TEST_P(RotaryTableTest, PositionHasTheSameRotationWhereverItStands) {
  std::vector<float> inv_freq(32);
  for (int i = 0; i < 32; ++i) inv_freq[i] = std::pow(10000.0f, -static_cast<float>(i) / 32);
  std::vector<int32_t> positions(600);
  for (int i = 0; i < 600; ++i) positions[i] = i * 7 % 601;
  const Table all = Fill(positions, inv_freq, 1);
  for (size_t t = 0; t < positions.size(); ++t) {
    const Table one = Fill({positions[t]}, inv_freq, 1);
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(all.cos[t * 32 + i], one.cos[i]);
      EXPECT_EQ(all.sin[t * 32 + i], one.sin[i]);
    }
  }
  EXPECT_TRUE(Fill({}, inv_freq, 1).cos.empty());
}

BATON_FOR_EACH_KERNEL_SET(RotaryTableTest);

}  // namespace
}  // namespace baton
