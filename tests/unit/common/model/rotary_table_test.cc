#include "common/model/rotary_table.h"

#include <gtest/gtest.h>

#include <cmath>

namespace baton {
namespace {

TEST(RotaryTableTest, AngleIsRoundedToFloatAndBothPartsAreScaled) {
  const RopeFrequencies frequencies{.inv_freq = {1.0f, 0.1f, 1.0f / 3}, .attention_scaling = 1.25f};
  const std::vector<int32_t> positions = {0, 7, 131071};
  std::vector<float> cos(9), sin(9);
  FillRotaryTable(frequencies, positions, cos, sin);
  for (size_t p = 0; p < positions.size(); ++p) {
    for (size_t i = 0; i < 3; ++i) {
      const float angle = static_cast<float>(positions[p]) * frequencies.inv_freq[i];
      EXPECT_EQ(cos[p * 3 + i], static_cast<float>(std::cos(double{angle})) * 1.25f);
      EXPECT_EQ(sin[p * 3 + i], static_cast<float>(std::sin(double{angle})) * 1.25f);
    }
  }
}

TEST(RotaryTableTest, PositionHasTheSameRotationWhereverItStands) {
  const RopeFrequencies frequencies =
      ComputeRopeFrequencies({.theta = 10000, .scaling = RopeLinear{.factor = 4}}, 10);
  std::vector<float> cos_all(5 * 5), sin_all(5 * 5), cos(5), sin(5);
  FillRotaryTable(frequencies, std::vector<int32_t>{3, 900, 4, 3, 77}, cos_all, sin_all);
  FillRotaryTable(frequencies, std::vector<int32_t>{3}, cos, sin);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(cos_all[i], cos[i]);
    EXPECT_EQ(cos_all[15 + i], cos[i]);
    EXPECT_EQ(sin_all[15 + i], sin[i]);
  }
}

}  // namespace
}  // namespace baton
