#include "common/checkpoint/alibi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace baton {
namespace {

using testing::ElementsAre;
using testing::FloatEq;

TEST(AlibiTest, APowerOfTwoOfHeadsHasAGeometricSequence) {
  EXPECT_THAT(AlibiSlopes(8), ElementsAre(0x1p-1f, 0x1p-2f, 0x1p-3f, 0x1p-4f, 0x1p-5f, 0x1p-6f,
                                          0x1p-7f, 0x1p-8f));
  EXPECT_THAT(AlibiSlopes(1), ElementsAre(0x1p-8f));
  EXPECT_THAT(AlibiSlopes(2), ElementsAre(0x1p-4f, 0x1p-8f));
}

TEST(AlibiTest, FurtherHeadsTakeEveryOtherOfTheNextSequence) {
  EXPECT_THAT(AlibiSlopes(6),
              ElementsAre(0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-1f, 0x1p-3f));
  // BLOOM 176b has 112.
  const std::vector<float> slopes = AlibiSlopes(112);
  ASSERT_EQ(slopes.size(), 112u);
  EXPECT_THAT(slopes[64], FloatEq(std::exp2(-1.0 / 16)));
  EXPECT_THAT(slopes[111], FloatEq(std::exp2(-95.0 / 16)));
  EXPECT_THAT(slopes[63], FloatEq(0x1p-8f));
}

}  // namespace
}  // namespace baton
