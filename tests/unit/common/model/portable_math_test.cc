#include "common/model/portable_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/make_device.h"
#include "tests/kernels/kernel_sets.h"

namespace baton {
namespace {

TEST(PortableMathTest, ExpIsWithinTwoUlpAndEndsInZero) {
  for (double x = -700; x <= 700; x += 0.37) {
    EXPECT_NEAR(PortableExp(x) / std::exp(x), 1.0, 5e-16) << x;
  }
  for (double x = -1; x <= 1; x += 0.001) {
    EXPECT_NEAR(PortableExp(x) / std::exp(x), 1.0, 5e-16) << x;
  }
  EXPECT_EQ(PortableExp(0), 1.0);
  EXPECT_EQ(PortableExp(-800), 0.0);
  EXPECT_EQ(PortableExp(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_TRUE(std::isnan(PortableExp(std::nan(""))));
}

TEST(PortableMathTest, TheExponentialsOfEveryKernelSetAreThisOne) {
  std::vector<float> x = {0, -0.0f, -1e-30f, -707.99f, -708, -708.01f, -1e30f, -INFINITY};
  for (float value = -1e-4f; value > -720; value *= 1.0007f) x.push_back(value);
  for (const std::string& set : KernelSets()) {
    const auto kernels = *MakeKernels({.kernels = set});
    for (const double temperature : {1.0, 0.37}) {
      std::vector<double> weights(x.size());
      kernels->row_math().exp_weights(x.data(), static_cast<int64_t>(x.size()), 0, temperature,
                                         weights.data());
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint64_t>(weights[i]),
                  std::bit_cast<uint64_t>(PortableExp(x[i] / temperature)))
            << x[i] << " at " << temperature << " by " << set;
      }
    }
  }
}

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
