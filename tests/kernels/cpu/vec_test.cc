#include "kernels/cpu/vec.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/lane_math.h"
#include "tests/kernels/kernel_fixture.h"

// This file is compiled for the baseline, so it sees the emulated fma of the portable set.

namespace baton {
namespace {

float EmulatedFma(float a, float b, float c) {
  float out[kLanes];
  Store(out, Fma(Broadcast(a), Broadcast(b), Broadcast(c)));
  return out[3];
}

void ExpectExact(float a, float b, float c) {
  const float expected = std::fma(a, b, c);
  const float got = EmulatedFma(a, b, c);
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got)) << a << " * " << b << " + " << c;
  } else {
    EXPECT_EQ(FloatBits(got), FloatBits(expected)) << a << " * " << b << " + " << c;
  }
}

TEST(VecTest, FmaRoundsOnceWhereDoubleRoundingWouldGoWrong) {
  // 24929 * 673 = 2^24 + 1 lies in the middle of two floats. A c too small for a double's last bit
  // decides the direction.
  for (const float sign : {1.0f, -1.0f}) {
    EXPECT_EQ(EmulatedFma(sign * 24929.0f, 673.0f, sign * 0x1p-60f), sign * 0x1.000002p24f);
    EXPECT_EQ(EmulatedFma(sign * 24929.0f, 673.0f, sign * -0x1p-60f), sign * 0x1p24f);
    EXPECT_EQ(EmulatedFma(sign * 24929.0f, 673.0f, 0.0f), sign * 0x1p24f);
  }
  Random random(3);
  int ties = 0;
  for (int i = 0; i < 100000; ++i) {
    const uint64_t a = random.Below(4096) * 2 + 4097, b = random.Below(4096) * 2 + 1;
    const uint64_t product = a * b;
    ties += product >> 24 == 1 ? 1 : 0;
    for (const float tiny : {0x1p-60f, -0x1p-60f, 0x1p-149f, -0x1p-149f, 0.0f}) {
      ExpectExact(static_cast<float>(a), static_cast<float>(b), tiny);
      ExpectExact(-static_cast<float>(a), static_cast<float>(b), tiny);
    }
  }
  EXPECT_GT(ties, 10000);
}

TEST(VecTest, FmaAgreesWithTheCLibraryForRandomBits) {
  Random random(1);
  for (int i = 0; i < 200000; ++i) {
    const uint64_t ab = random.Next();
    const auto a = BitsFloat(static_cast<uint32_t>(ab));
    const auto b = BitsFloat(static_cast<uint32_t>(ab >> 32));
    ExpectExact(a, b, BitsFloat(static_cast<uint32_t>(random.Next())));
  }
}

TEST(VecTest, FmaAgreesWithTheCLibraryAroundCancellationAndTies) {
  Random random(2);
  for (int i = 0; i < 200000; ++i) {
    // Few significant bits: exact ties are common.
    const float a = static_cast<float>(random.Below(4096)) * 0x1p-12f;
    const float b = static_cast<float>(random.Below(8192)) * 0x1p-12f;
    const float c = std::fma(-a, b, static_cast<float>(random.Below(3)) * 0x1p-30f);
    ExpectExact(a, b, c);
    ExpectExact(a, b, c * 0x1p20f);
    ExpectExact(a * 0x1p-70f, b * 0x1p-70f, c * 0x1p-126f);
  }
}

TEST(VecTest, FmaKeepsInfinitiesAndSignedZeros) {
  const float inf = std::numeric_limits<float>::infinity();
  ExpectExact(inf, 1.0f, 1.0f);
  ExpectExact(inf, 0.0f, 1.0f);
  ExpectExact(inf, 1.0f, -inf);
  ExpectExact(1.0f, 1.0f, -inf);
  ExpectExact(3e38f, 3e38f, 0.0f);
  ExpectExact(-0.0f, 1.0f, -0.0f);
  ExpectExact(0.0f, 1.0f, -0.0f);
  ExpectExact(1e-45f, 0.5f, 0.0f);
}

TEST(VecTest, SumOfLanesAddsHalvesInOneOrder) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = std::ldexp(1.0f, i % 4 == 0 ? i * 3 : -i);
  float expected[kLanes];
  std::memcpy(expected, lanes, sizeof(lanes));
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) expected[i] += expected[i + half];
  }
  EXPECT_EQ(SumLanes(Load(lanes)), expected[0]);
}

TEST(LaneMathTest, ExpIsWithinTwoUlp) {
  for (double x = -87.0; x < 87.9; x += 0.0137) {
    float out[kLanes];
    Store(out, Exp(Broadcast(static_cast<float>(x))));
    const double expected = std::exp(static_cast<double>(static_cast<float>(x)));
    EXPECT_NEAR(out[0], expected, expected * 2.4e-7) << x;
  }
}

TEST(LaneMathTest, ExpOfMinusInfinityIsZeroOfZeroIsOneAndOfNanIsNan) {
  float out[kLanes];
  Store(out, Exp(Broadcast(-std::numeric_limits<float>::infinity())));
  EXPECT_EQ(out[0], 0.0f);
  Store(out, Exp(Broadcast(0.0f)));
  EXPECT_EQ(out[0], 1.0f);
  Store(out, Exp(Broadcast(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(out[0]));
}

TEST(LaneMathTest, TanhSiluAndGeluFollowTheirFormulas) {
  for (double x = -12; x <= 12; x += 0.037) {
    const float f = static_cast<float>(x);
    const double d = f;
    float out[kLanes];
    Store(out, Tanh(Broadcast(f)));
    EXPECT_NEAR(out[0], std::tanh(d), 3e-7) << x;
    Store(out, Silu(Broadcast(f)));
    EXPECT_NEAR(out[0], d / (1 + std::exp(-d)), 1e-6) << x;
    Store(out, GeluTanh(Broadcast(f)));
    const double inner = std::sqrt(2 / M_PI) * (d + 0.044715 * d * d * d);
    EXPECT_NEAR(out[0], 0.5 * d * (1 + std::tanh(inner)), 2e-6) << x;
  }
}

TEST(LaneConvertTest, Bf16RoundsToNearestEvenAndReadsBackExactly) {
  EXPECT_EQ(ToBf16(1.0f), 0x3f80);
  EXPECT_EQ(ToBf16(BitsFloat(0x3f808000u)), 0x3f80);  // A tie goes to the even one below.
  EXPECT_EQ(ToBf16(BitsFloat(0x3f818000u)), 0x3f82);  // And to the even one above.
  EXPECT_EQ(ToBf16(BitsFloat(0x3f808001u)), 0x3f81);
  EXPECT_TRUE(std::isnan(FromBf16(ToBf16(std::numeric_limits<float>::quiet_NaN()))));
  for (uint32_t h = 0; h < 0x7f80; ++h) ASSERT_EQ(ToBf16(FromBf16(static_cast<uint16_t>(h))), h);
}

TEST(LaneConvertTest, F16CoversSubnormalsTiesAndOverflow) {
  EXPECT_EQ(FromF16(0x0001), 0x1p-24f);
  EXPECT_EQ(FromF16(0x3c00), 1.0f);
  EXPECT_EQ(FromF16(0x7bff), 65504.0f);
  EXPECT_EQ(ToF16(65519.99f), 0x7bff);
  EXPECT_EQ(ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(ToF16(0x1p-25f), 0x0000);  // A tie goes to even, here zero.
  EXPECT_EQ(ToF16(0x1.8p-24f), 0x0002);
  EXPECT_EQ(ToF16(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(ToF16(1.0f + 0x1.8p-10f), 0x3c02);
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    ASSERT_EQ(ToF16(FromF16(static_cast<uint16_t>(h))), h);
    ASSERT_EQ(ToF16(-FromF16(static_cast<uint16_t>(h))), h | 0x8000);
  }
}

}  // namespace
}  // namespace baton
