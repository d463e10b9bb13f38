#include "common/checkpoint/tensor_view.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace baton {
namespace {

// The tensor lies at an odd address, as it may in a file.
std::vector<float> Convert(DType dtype, const std::vector<uint16_t>& halves) {
  std::string storage(1 + halves.size() * 2, '\0');
  std::memcpy(storage.data() + 1, halves.data(), halves.size() * 2);
  const TensorView view{.dtype = dtype,
                        .shape = {static_cast<int64_t>(halves.size())},
                        .bytes = std::as_bytes(std::span<const char>(storage)).subspan(1)};
  std::vector<float> out(halves.size());
  ConvertToF32(view, 0, out);
  return out;
}

TEST(TensorViewTest, HalvesConvertExactly) {
  EXPECT_EQ(Convert(DType::kF16, {0x3c00, 0xc000, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x7c00}),
            (std::vector<float>{1, -2, 0x1p-24f, 1023 * 0x1p-24f, 0x1p-14f, 65504,
                                std::numeric_limits<float>::infinity()}));
  EXPECT_TRUE(std::signbit(Convert(DType::kF16, {0x8000})[0]));
  EXPECT_TRUE(std::isnan(Convert(DType::kF16, {0x7e00})[0]));
  EXPECT_EQ(Convert(DType::kBF16, {0x3f80, 0xc000, 0x0001}),
            (std::vector<float>{1, -2, std::bit_cast<float>(0x00010000u)}));
}

TEST(TensorViewTest, ReadsTheRangeAsked) {
  const std::vector<float> values = {1, 2, 3, 4};
  const TensorView view{
      .dtype = DType::kF32, .shape = {4}, .bytes = std::as_bytes(std::span(values))};
  std::vector<float> out(2);
  ConvertToF32(view, 1, out);
  EXPECT_EQ(out, (std::vector<float>{2, 3}));
}

// Rows 0 .. 11 of two: groups of two, every third of which is meant.
TEST(TensorViewTest, GroupsOfRowsAreReadAsOneTensor) {
  std::vector<float> values;
  for (int row = 0; row < 12; ++row) values.insert(values.end(), {row * 1.f, row * 10.f});
  const TensorView all{
      .dtype = DType::kF32, .shape = {12, 2}, .bytes = std::as_bytes(std::span(values))};
  const TensorView last = EveryGroup(all, 2, 2, 3);
  EXPECT_EQ(last.shape, (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(last.bytes.data() + last.bytes.size(), all.bytes.data() + all.bytes.size());
  const auto rows = [](const std::vector<TensorView>& runs) {
    std::vector<std::vector<float>> out;
    for (const TensorView& run : runs) {
      std::vector<float> floats(run.NumElements());
      ConvertToF32(run, 0, floats);
      out.push_back(floats);
    }
    return out;
  };
  using Rows = std::vector<std::vector<float>>;
  EXPECT_EQ(rows(DenseRuns(last, 0, 4)), (Rows{{4, 40, 5, 50}, {10, 100, 11, 110}}));
  EXPECT_EQ(rows(DenseRuns(last, 1, 2)), (Rows{{5, 50}, {10, 100}}));
  EXPECT_EQ(rows(DenseRuns(last, 2, 1)), (Rows{{10, 100}}));
  EXPECT_EQ(rows(DenseRuns(all, 3, 2)), (Rows{{3, 30, 4, 40}}));
  EXPECT_TRUE(DenseRuns(all, 12, 0).empty());
  EXPECT_FALSE(EveryGroup({}, 2, 2, 3).present());
}

TEST(TensorViewTest, GroupsOfAVectorAreConvertedAcrossTheirEnds) {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const TensorView all{
      .dtype = DType::kF32, .shape = {12}, .bytes = std::as_bytes(std::span(values))};
  const TensorView middle = EveryGroup(all, 2, 1, 3);
  std::vector<float> out(3);
  ConvertToF32(middle, 1, out);
  EXPECT_EQ(middle.NumElements(), 4);
  EXPECT_EQ(out, (std::vector<float>{3, 8, 9}));
}

TEST(TensorViewDeathTest, ReadingPastTheEndIsABug) {
  const std::vector<float> values = {1, 2};
  const TensorView view{
      .dtype = DType::kF32, .shape = {2}, .bytes = std::as_bytes(std::span(values))};
  std::vector<float> out(2);
  EXPECT_DEATH(ConvertToF32(view, 1, out), "check failed");
}

}  // namespace
}  // namespace baton
