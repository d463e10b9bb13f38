#include "kernels/cpu/sampling/row_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/base/random.h"
#include "kernels/api/sample_args.h"
#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint64_t kAll = ~uint64_t{0};
constexpr int64_t kSizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 1000, 1024, 1025, 4099, 151936};

// About normal, with equal values among them.
std::vector<float> Logits(int64_t n, uint64_t seed = 1) {
  Random random(seed);
  std::vector<float> x(n);
  for (float& value : x) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += random.Unit();
    value = static_cast<float>(std::round(sum * 3 * 4096) / 4096);
  }
  return x;
}

float MaxOf(const std::vector<float>& x) { return *std::max_element(x.begin(), x.end()); }

class RowMathTest : public KernelTest {
 protected:
  std::vector<uint64_t> Weights(const std::vector<float>& x, float max, double temperature) const {
    std::vector<uint64_t> out(x.size() + 1, 5);
    const uint64_t sum =
        math_.weights(x.data(), Size(x), max, 1.44269504088896338700 / temperature, out.data());
    EXPECT_EQ(out.back(), 5) << "written behind the end";
    out.pop_back();
    EXPECT_EQ(std::accumulate(out.begin(), out.end(), uint64_t{0}), sum);
    EXPECT_EQ(math_.weights(x.data(), Size(x), max, 1.44269504088896338700 / temperature, nullptr),
              sum);
    return out;
  }
  template <typename T>
  static int64_t Size(const std::vector<T>& x) {
    return static_cast<int64_t>(x.size());
  }

  const RowMath& math_ = kernels_->row_math();
};

TEST_P(RowMathTest, BlockMaxIsTheGreatestThatIsANumber) {
  for (const int64_t n : kSizes) {
    std::vector<float> x = Logits(n);
    for (int64_t i = 3; i < n; i += 7) x[i] = kNan;
    const int64_t blocks = (n + 63) / 64;
    std::vector<float> out(blocks + 1, 77);
    EXPECT_EQ(math_.block_max(x.data(), n, out.data()), n <= 3);
    for (int64_t b = 0; b < blocks; ++b) {
      float greatest = -kInf;
      for (int64_t i = b * 64; i < std::min(n, b * 64 + 64); ++i) {
        if (x[i] > greatest) greatest = x[i];
      }
      EXPECT_EQ(out[b], greatest) << n << " block " << b;
    }
    EXPECT_EQ(out.back(), 77);
  }
  const std::vector<float> none(70, kNan);
  float out[2];
  EXPECT_FALSE(math_.block_max(none.data(), 70, out));
  EXPECT_EQ(out[0], -kInf);
  EXPECT_EQ(out[1], -kInf);
}

TEST_P(RowMathTest, BlockMaxSeesANanInAnyPlace) {
  std::vector<float> x = Logits(200);
  x[7] = kInf;
  x[9] = -kInf;
  std::vector<float> out(4);
  EXPECT_TRUE(math_.block_max(x.data(), 200, out.data()));
  for (int64_t i = 0; i < 200; ++i) {
    for (const float nan : {kNan, -kNan}) {
      std::vector<float> bad = x;
      bad[i] = nan;
      EXPECT_FALSE(math_.block_max(bad.data(), 200, out.data())) << i;
    }
  }
}

TEST_P(RowMathTest, RankCountsTheGreaterOnesAndEqualOnesBefore) {
  for (const int64_t n : {1, 17, 1000, 4099}) {
    const std::vector<float> x = Logits(n);
    std::vector<int64_t> order(n);
    for (int64_t i = 0; i < n; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[a] > x[b]; });
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(math_.rank(x.data(), n, order[i]), i + 1);
  }
}

TEST_P(RowMathTest, WeightsAreWithinOneUnit) {
  for (const double temperature : {1.0, 0.3, 2.0, 1e-30, 1e30}) {
    std::vector<float> x = Logits(4099);
    x[5] = -kInf;
    x[6] = kNan;
    x[7] = -3e38f;
    const float max = 30;
    const std::vector<uint64_t> weights = Weights(x, max, temperature);
    for (size_t i = 0; i < x.size(); ++i) {
      const long double scaled = (static_cast<long double>(x[i]) - max) / temperature;
      const long double expected = std::isnan(scaled) ? 0 : std::exp(scaled) * kWeightOne;
      ASSERT_LE(std::abs(static_cast<long double>(weights[i]) - expected), 0.6L)
          << x[i] << " at " << temperature;
    }
    EXPECT_EQ(Weights({max, max}, max, temperature),
              (std::vector<uint64_t>{kWeightOne, kWeightOne}));
  }
}

TEST_P(RowMathTest, TheSumOfARowIsThatOfItsSoftmax) {
  for (const int64_t n : kSizes) {
    const std::vector<float> x = Logits(n);
    const float max = MaxOf(x);
    long double plain = 0;
    for (const float value : x) plain += std::exp(static_cast<long double>(value) - max);
    const auto sum =
        static_cast<long double>(math_.weights(x.data(), n, max, 1.44269504088896338700, nullptr));
    EXPECT_NEAR(static_cast<double>(sum / kWeightOne / plain), 1, 1e-8) << n;
  }
}

// The largest vocabulary that a model may have, all tokens as likely as the likeliest.
TEST_P(RowMathTest, TheLargestSumDoesNotOverflow) {
  const std::vector<float> x(1 << 19, 2.0f);
  const std::vector<uint64_t> weights = Weights(x, 2, 1);
  const WeightSum sum = math_.sum_at_least(weights.data(), Size(x), 0);
  EXPECT_EQ(sum.sum, kWeightOne << 19);
  EXPECT_EQ(sum.count, 1 << 19);
}

TEST_P(RowMathTest, SumAtLeastSumsAndCountsWhatReachesTheBound) {
  for (const int64_t n : kSizes) {
    const std::vector<float> x = Logits(n);
    const std::vector<uint64_t> weights = Weights(x, MaxOf(x), 1);
    for (const uint64_t bound :
         {uint64_t{0}, uint64_t{1}, weights[n / 2], kWeightOne, kWeightOne + 1, kAll}) {
      WeightSum expected;
      for (const uint64_t w : weights) {
        expected.sum += w >= bound ? w : 0;
        expected.count += w >= bound;
      }
      const WeightSum sum = math_.sum_at_least(weights.data(), n, bound);
      EXPECT_EQ(sum.sum, expected.sum) << n << " from " << bound;
      EXPECT_EQ(sum.count, expected.count) << n << " from " << bound;
    }
  }
}

TEST_P(RowMathTest, FindBetweenFindsTheHalfOpenRangeInOrder) {
  for (const int64_t n : kSizes) {
    const std::vector<float> x = Logits(n);
    const std::vector<uint64_t> weights = Weights(x, MaxOf(x), 1);
    const uint64_t middle = weights[n / 2];
    for (const auto& [low, high] : std::vector<std::pair<uint64_t, uint64_t>>{
             {0, kAll}, {middle, kAll}, {0, middle}, {middle, middle}, {middle, middle + 1}}) {
      std::vector<int32_t> expected;
      for (int64_t i = 0; i < n; ++i) {
        if (weights[i] >= low && weights[i] < high) expected.push_back(static_cast<int32_t>(i));
      }
      std::vector<int32_t> out(n, -7);
      out.resize(math_.find_between(weights.data(), n, low, high, out.data()));
      EXPECT_EQ(out, expected) << n << " in [" << low << ", " << high << ")";
    }
    std::vector<int32_t> out(n + 1, -7);
    math_.find_between(weights.data(), n, 0, kAll, out.data());
    EXPECT_EQ(out.back(), -7) << "written behind the end";
  }
}

TEST_P(RowMathTest, CountAtLeastCountsWhatReachesTheBound) {
  for (const int64_t n : kSizes) {
    std::vector<float> x = Logits(n);
    for (int64_t i = 3; i < n; i += 7) x[i] = kNan;
    for (const float bound : {-kInf, -5.0f, x[n / 2], MaxOf(x), 1000.0f}) {
      const auto expected =
          std::count_if(x.begin(), x.end(), [&](float value) { return value >= bound; });
      EXPECT_EQ(math_.count_at_least(x.data(), n, bound), expected) << n << " from " << bound;
    }
  }
}

TEST_P(RowMathTest, FindAtLeastFindsWhatReachesTheBoundInOrder) {
  for (const int64_t n : kSizes) {
    std::vector<float> x = Logits(n);
    for (int64_t i = 3; i < n; i += 7) x[i] = kNan;
    for (const float bound : {-kInf, -5.0f, x[n / 2], MaxOf(x), 1000.0f}) {
      std::vector<int32_t> expected;
      for (int64_t i = 0; i < n; ++i) {
        if (x[i] >= bound) expected.push_back(static_cast<int32_t>(i));
      }
      std::vector<int32_t> out(n + 1, -7);
      std::vector<float> values(out.size(), -7);
      const int64_t count = math_.find_at_least(x.data(), n, bound, out.data(), values.data());
      EXPECT_EQ(out.back(), -7) << "written behind the end";
      EXPECT_EQ(values.back(), -7) << "written behind the end";
      out.resize(count);
      ASSERT_EQ(out, expected) << n << " from " << bound;
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(values[i], x[out[i]]);
    }
  }
}

TEST_P(RowMathTest, AllSetsGiveTheSameWeights) {
  const auto portable = MakeTestKernels("portable");
  std::vector<float> x = Logits(151936, 5);
  for (int i = 0; i < 2000; ++i) x[i] = -0.36f * static_cast<float>(i);  // Down to weights of 0.
  const float max = MaxOf(x);
  for (const double temperature : {1.0, 0.7, 1.9}) {
    std::vector<uint64_t> expected(x.size());
    portable->row_math().weights(x.data(), Size(x), max, 1.44269504088896338700 / temperature,
                                 expected.data());
    EXPECT_EQ(Weights(x, max, temperature), expected) << temperature;
  }
}

BATON_FOR_EACH_KERNEL_SET(RowMathTest);

}  // namespace
}  // namespace baton
