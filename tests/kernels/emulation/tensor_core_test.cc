#include "kernels/emulation/tensor_core.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/random.h"

namespace baton::emulation {
namespace {

constexpr int kBf16 = -126, kF16 = -14;

// d[0][0] of a row of products a[k] * b[k] and c.
float DotProduct(const SumRule& rule, int min_exponent, const float (&a)[16], const float (&b)[16],
                 float c) {
  TileProduct tile = {};
  for (int k = 0; k < 16; ++k) {
    tile.a[0][k] = a[k];
    tile.b[k][0] = b[k];
  }
  tile.c[0][0] = c;
  MultiplyTile(rule, min_exponent, tile);
  return tile.c[0][0];
}
float DotProduct(Architecture architecture, int min_exponent, const float (&a)[16],
                 const float (&b)[16], float c) {
  return DotProduct(RuleOf(architecture), min_exponent, a, b, c);
}

float Sum(const SumRule& rule, const float (&a)[16], float c) {
  float ones[16];
  for (float& one : ones) one = 1;
  return DotProduct(rule, kBf16, a, ones, c);
}
float Sum(Architecture architecture, const float (&a)[16], float c) {
  return Sum(RuleOf(architecture), a, c);
}
float Sum(Deviation deviation, const float (&a)[16], float c) {
  return Sum(RuleOf(deviation), a, c);
}

TEST(TensorCoreTest, KeepsTwentyFiveFractionalBitsOnHopperAndTwentyFourOnAmpere) {
  // 2^-25 twice beside 1 that is taken away again.
  const float a[16] = {1, 0x1p-25f, 0x1p-25f, -1};
  EXPECT_EQ(Sum(Architecture::kHopper, a, 0), 0x1p-24f);
  EXPECT_EQ(Sum(Architecture::kAmpere, a, 0), 0.0f);
  const float b[16] = {1, 0x1p-24f, 0x1p-24f, -1};
  EXPECT_EQ(Sum(Architecture::kAmpere, b, 0), 0x1p-23f);
  const float c[16] = {1, 0x1p-26f, 0x1p-26f, -1};
  EXPECT_EQ(Sum(Architecture::kHopper, c, 0), 0.0f);
}

TEST(TensorCoreTest, DeviationsAreWhatTheySay) {
  const float bits[16] = {1, 0x1p-25f, 0x1p-25f, -1};
  EXPECT_EQ(Sum(Deviation::kNone, bits, 0), 0x1p-24f);
  EXPECT_EQ(Sum(Deviation::kFewerBits, bits, 0), 0.0f);
  const float more[16] = {1, 0x1p-26f, 0x1p-26f, -1};
  EXPECT_EQ(Sum(Deviation::kNone, more, 0), 0.0f);
  EXPECT_EQ(Sum(Deviation::kMoreBits, more, 0), 0x1p-25f);
  const float nearly[16] = {1, 0x1p-24f, 0x1p-25f};
  EXPECT_EQ(Sum(Deviation::kNone, nearly, 0), 1.0f);
  EXPECT_EQ(Sum(Deviation::kNearest, nearly, 0), 1 + 0x1p-23f);
  float first[16] = {0x1p-20f}, last[16] = {};
  first[8] = last[0] = 0x1p10f;
  first[9] = last[1] = -0x1p10f;
  last[8] = 0x1p-20f;
  EXPECT_EQ(Sum(Deviation::kHalves, first, 0), 0.0f);
  EXPECT_EQ(Sum(Deviation::kHalves, last, 0), 0x1p-20f);
  EXPECT_EQ(Sum(Deviation::kSwappedHalves, first, 0), 0x1p-20f);
  EXPECT_EQ(Sum(Deviation::kSwappedHalves, last, 0), 0.0f);
  const float small[16] = {0x1p-127f, 0x1p-126f};
  EXPECT_EQ(Sum(Deviation::kNone, small, 0), 0x1.8p-126f);
  EXPECT_EQ(Sum(Deviation::kFlushes, small, 0), 0x1p-126f);
}

// Each code comes back; between two of them the nearer one, in the middle the even one.
TEST(TensorCoreTest, HalfTypesRoundToTheNearestAndTiesToEven) {
  for (const bool is_bf16 : {true, false}) {
    const uint32_t infinity = is_bf16 ? 0x7f80 : 0x7c00;
    for (uint32_t code = 0; code < infinity; ++code) {
      const float low = HalfToFloat(is_bf16, code);
      ASSERT_EQ(RoundToHalf(is_bf16, low), code);
      ASSERT_EQ(RoundToHalf(is_bf16, -low), code | 0x8000);
      if (code + 1 == infinity) break;
      const double middle = (double{low} + HalfToFloat(is_bf16, code + 1)) / 2;
      const auto exact = static_cast<float>(middle);
      ASSERT_EQ(exact, middle);
      ASSERT_EQ(RoundToHalf(is_bf16, exact), code + code % 2);
      ASSERT_EQ(RoundToHalf(is_bf16, std::nextafter(exact, 0.0f)), code);
      ASSERT_EQ(RoundToHalf(is_bf16, std::nextafter(exact, INFINITY)), code + 1);
    }
    EXPECT_EQ(RoundToHalf(is_bf16, std::numeric_limits<float>::max()), infinity);
    EXPECT_EQ(RoundToHalf(is_bf16, INFINITY), infinity);
    EXPECT_EQ(RoundToHalf(is_bf16, NAN), 0x7fff);
  }
}

TEST(TensorCoreTest, CutsTowardsZeroOnBothSides) {
  const float up[16] = {1, 0x1p-24f};
  EXPECT_EQ(Sum(Architecture::kHopper, up, 0), 1.0f);
  const float down[16] = {-1, -0x1p-24f};
  EXPECT_EQ(Sum(Architecture::kHopper, down, 0), -1.0f);
  // Each summand is cut alone: many small ones never count.
  float small[16];
  for (float& x : small) x = 0x1p-26f;
  EXPECT_EQ(Sum(Architecture::kHopper, small, 1.0f), 1.0f);
}

TEST(TensorCoreTest, SumsInTwoStepsOnAmpere) {
  // The second half's large product does not cut what the first half holds, nor the other way.
  float a[16] = {};
  a[0] = 0x1p-20f;
  a[8] = 0x1p10f;
  a[9] = -0x1p10f;
  EXPECT_EQ(Sum(Architecture::kAmpere, a, 0), 0.0f);
  float b[16] = {};
  b[0] = 0x1p10f;
  b[1] = -0x1p10f;
  b[8] = 0x1p-20f;
  EXPECT_EQ(Sum(Architecture::kAmpere, b, 0), 0x1p-20f);
  EXPECT_EQ(Sum(Architecture::kHopper, b, 0), 0.0f);
}

TEST(TensorCoreTest, AlignsProductsByTheExponentsOfTheirFactors) {
  // 1.5 * 1.5 = 2.25 has the exponent 0 here, so 2^-25 is kept.
  float a[16] = {1.5f, -1.5f, 0x1p-25f}, b[16] = {1.5f, 1.5f, 1};
  EXPECT_EQ(DotProduct(Architecture::kHopper, kBf16, a, b, 0), 0x1p-25f);
  // As one factor 2.25 has the exponent 1.
  float c[16] = {2.25f, -2.25f, 0x1p-25f}, ones[16] = {1, 1, 1};
  EXPECT_EQ(DotProduct(Architecture::kHopper, kBf16, c, ones, 0), 0.0f);
}

TEST(TensorCoreTest, GivesSubnormalFactorsTheLeastExponent) {
  // 2^-24, the least f16, counts as 2^-10 * 2^-14: a product of two cuts at 2^(-28 - 25).
  float a[16] = {0x1p-24f, 0x1p-24f}, b[16] = {0x1p-24f, 0x1p-14f};
  EXPECT_EQ(DotProduct(Architecture::kHopper, kF16, a, b, 0), 0x1p-48f + 0x1p-38f);
  float c[16] = {0x1p-24f, 0x1p-30f}, d[16] = {1, 0x1p-10f};
  EXPECT_EQ(DotProduct(Architecture::kHopper, kF16, c, d, 0), 0x1p-24f);
}

TEST(TensorCoreTest, KeepsInfinitiesAndHasOneNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  const float a[16] = {inf, 1}, b[16] = {inf, -inf}, c[16] = {NAN};
  EXPECT_EQ(Sum(Architecture::kHopper, a, -5), inf);
  EXPECT_EQ(Sum(Architecture::kHopper, {}, -inf), -inf);
  EXPECT_EQ(std::bit_cast<uint32_t>(Sum(Architecture::kHopper, b, 0)), 0x7fffffffu);
  EXPECT_EQ(std::bit_cast<uint32_t>(Sum(Architecture::kHopper, c, 0)), 0x7fffffffu);
  const float large[16] = {0x1p127f, 0x1p127f};
  EXPECT_EQ(Sum(Architecture::kHopper, large, 0), inf);
}

TEST(TensorCoreTest, IsExactWhereNothingIsCut) {
  Random random(1);
  TileProduct tile = {};
  double expected[16][8];
  for (auto& row : tile.a) {
    for (float& x : row) x = static_cast<float>(random.Below(255)) - 127;
  }
  for (auto& row : tile.b) {
    for (float& x : row) x = static_cast<float>(random.Below(63)) - 31;
  }
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      tile.c[i][j] = static_cast<float>(i * 8 + j);
      expected[i][j] = tile.c[i][j];
      for (int k = 0; k < 16; ++k) expected[i][j] += double{tile.a[i][k]} * tile.b[k][j];
    }
  }
  for (const auto architecture : {Architecture::kAmpere, Architecture::kHopper}) {
    TileProduct copy = tile;
    MultiplyTile(architecture, kBf16, copy);
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) EXPECT_EQ(copy.c[i][j], expected[i][j]) << i << " " << j;
    }
  }
}

}  // namespace
}  // namespace baton::emulation
