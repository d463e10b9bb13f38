#include "kernels/api/operands.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace baton {
namespace {

// No way back to a float* but f32().
static_assert(!std::is_convertible_v<Floats, float*>);
static_assert(!std::is_convertible_v<ConstFloats, const float*>);
static_assert(!std::is_convertible_v<ConstFloats, Floats>);
static_assert(!std::is_constructible_v<Floats, const float*>);
static_assert(std::is_trivially_copyable_v<Floats>);

TEST(OperandsTest, FloatsOfAPointerAreF32) {
  float values[4] = {};
  EXPECT_EQ(Floats(values).f32(), values);
  EXPECT_EQ(ConstFloats(values).f32(), values);
  EXPECT_EQ(ConstFloats(Floats(values, DType::kBF16)).dtype, DType::kBF16);
  EXPECT_TRUE(Floats(values));
  EXPECT_FALSE(Floats());
  EXPECT_FALSE(ConstFloats(nullptr));
}

TEST(OperandsTest, ElementsAreCountedInTheirType) {
  float values[4] = {};
  EXPECT_EQ(Floats(values).At(3).f32(), values + 3);
  EXPECT_EQ(ConstFloats(values).At(3).f32(), values + 3);
  const Floats halves(values, DType::kF16);
  EXPECT_EQ(halves.At(4).data, values + 2);
  EXPECT_EQ(halves.At(4).dtype, DType::kF16);
  EXPECT_EQ(ConstFloats(halves).At(2).data, values + 1);
  EXPECT_EQ(Floats(values, DType::kFp8E4M3).At(4).data, values + 1);
}

TEST(OperandsDeathTest, AHalfTypeIsNotReadAsAFloat) {
  float values[4] = {};
  EXPECT_DEATH((void)Floats(values, DType::kBF16).f32(), "dtype == DType::kF32");
  EXPECT_DEATH((void)ConstFloats(values, DType::kF16).f32(), "dtype == DType::kF32");
}

}  // namespace
}  // namespace baton
