#include "kernels/cuda/hard_numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/floats.h"

namespace baton::cuda {
namespace {

class HardNumbersTest : public testing::TestWithParam<DType> {
 protected:
  template <size_t kRows, size_t kColumns>
  static std::vector<float> ValuesOf(const uint16_t (&rows)[kRows][kColumns]) {
    std::vector<float> values;
    for (const auto& row : rows) {
      for (const uint16_t bits : row) {
        values.push_back(GetParam() == DType::kBF16 ? ToFloat(Bf16{bits}) : ToFloat(F16{bits}));
      }
    }
    return values;
  }
  // How many are of each kind that there has to be.
  static void ExpectEveryKind(const std::vector<float>& values) {
    const float least = GetParam() == DType::kBF16 ? 0x1p-126f : 0x1p-14f;
    const auto count = [&](const auto& is) { return std::ranges::count_if(values, is) * 100; };
    const int64_t all = std::ssize(values);
    EXPECT_GT(count([&](float x) { return x != 0 && std::fabs(x) < least; }), 5 * all);
    EXPECT_GT(count([](float x) { return std::fabs(x) >= 0x1p5f && std::fabs(x) < 0x1p11f; }),
              5 * all);
    EXPECT_GT(count([](float x) { return std::fabs(x) >= 0x1p-10f && std::fabs(x) < 0x1p-5f; }),
              5 * all);
    EXPECT_GT(count([](float x) { return x > 0; }), 20 * all);
    EXPECT_GT(count([](float x) { return x < 0; }), 20 * all);
  }
  const std::unique_ptr<HardNumbers> numbers_ = std::make_unique<HardNumbers>(GetParam());
};

TEST_P(HardNumbersTest, AreOfEveryKind) {
  ExpectEveryKind(ValuesOf(numbers_->tokens));
  ExpectEveryKind(ValuesOf(numbers_->weights));
  ExpectEveryKind(ValuesOf(numbers_->values));
}

// So that the order of a sum cannot be lost in infinities.
TEST_P(HardNumbersTest, HaveSumsThatAFloatHolds) {
  const auto tokens = ValuesOf(numbers_->tokens), weights = ValuesOf(numbers_->weights);
  int64_t cancelled = 0;
  for (int i = 0; i < HardNumbers::kTokens; ++i) {
    for (int j = 0; j < HardNumbers::kWeights; ++j) {
      double sum = 0, size = 0;
      for (int k = 0; k < HardNumbers::kDepth; ++k) {
        const double product =
            double{tokens[i * HardNumbers::kDepth + k]} * weights[j * HardNumbers::kDepth + k];
        sum += product;
        size += std::fabs(product);
      }
      EXPECT_LT(size, 0x1p40);
      cancelled += size > 0 && std::fabs(sum) < size / 64;
    }
  }
  EXPECT_GT(cancelled, HardNumbers::kTokens * HardNumbers::kWeights / 20);
}

// A query's scores are a column of the keys, whatever way they are added.
TEST_P(HardNumbersTest, ScoresAreOneProductEach) {
  const auto queries = ValuesOf(numbers_->queries);
  for (int i = 0; i < HardNumbers::kTokens; ++i) {
    for (int k = 0; k < HardNumbers::kDim; ++k) {
      EXPECT_EQ(queries[i * HardNumbers::kDim + k], i == k ? 1 : 0);
    }
  }
  const auto keys = ValuesOf(numbers_->keys);
  EXPECT_EQ(std::ranges::max(keys), 0);
  EXPECT_GE(std::ranges::min(keys), -18);
  EXPECT_LT(std::ranges::min(keys), -15);
}

INSTANTIATE_TEST_SUITE_P(Types, HardNumbersTest, testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(ToString(info.param)); });

}  // namespace
}  // namespace baton::cuda
