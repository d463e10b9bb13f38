#include "kernels/api/portable_math.h"

#include <gtest/gtest.h>

#include <cmath>

namespace baton {
namespace {

TEST(PortableMathTest, LogIsWithinTwoUlp) {
  for (double x = 1e-300; x < 1e300; x *= 1.37) {
    EXPECT_NEAR(PortableLog(x), std::log(x), std::fabs(std::log(x)) * 4.5e-16) << x;
  }
  for (double x = 0.5; x < 2; x += 0.00097) {
    EXPECT_NEAR(PortableLog(x), std::log(x), 1.5e-16 + std::fabs(std::log(x)) * 4.5e-16) << x;
  }
  EXPECT_EQ(PortableLog(1), 0.0);
}

TEST(PortableMathTest, SinAndCosAreExactToFloatOverAMillionRadians) {
  for (double x = 0; x < 1048576; x = x * 1.013 + 0.0011) {
    const SinCos got = PortableSinCos(x);
    EXPECT_NEAR(got.sin, std::sin(x), 1e-15) << x;
    EXPECT_NEAR(got.cos, std::cos(x), 1e-15) << x;
    EXPECT_NEAR(PortableSinCos(-x).sin, -got.sin, 1e-15) << x;
    EXPECT_NEAR(PortableSinCos(-x).cos, got.cos, 1e-15) << x;
  }
}

}  // namespace
}  // namespace baton
