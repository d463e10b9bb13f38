#include "kernels/api/row_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/base/random.h"
#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
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

// The order that RowMath promises, written down once more.
double SumInLanes(const std::vector<double>& x) {
  double lanes[16] = {};
  for (size_t i = 0; i < x.size(); ++i) lanes[i % 16] += x[i];
  for (int half : {8, 4, 2, 1}) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

class RowMathTest : public KernelTest {
 protected:
  std::vector<double> Weights(const std::vector<float>& x, float max, double temperature) const {
    std::vector<double> out(x.size() + 1, -5);
    math_.exp_weights(x.data(), Size(x), max, temperature, out.data());
    EXPECT_EQ(out.back(), -5) << "written behind the end";
    out.pop_back();
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
    math_.block_max(x.data(), n, out.data());
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
  math_.block_max(none.data(), 70, out);
  EXPECT_EQ(out[0], -kInf);
  EXPECT_EQ(out[1], -kInf);
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

TEST_P(RowMathTest, WeightsAreAccurateToTwoUnitsInTheLastPlace) {
  for (const double temperature : {1.0, 0.3, 2.0, 1e-30}) {
    std::vector<float> x = Logits(4099);
    x[5] = -kInf;
    x[6] = kNan;
    x[7] = -3e38f;
    const float max = 30;
    const std::vector<double> weights = Weights(x, max, temperature);
    for (size_t i = 0; i < x.size(); ++i) {
      const double scaled = (double{x[i]} - max) / temperature;
      const double expected = std::isnan(scaled) || scaled < -708 ? 0 : std::exp(scaled);
      ASSERT_NEAR(weights[i], expected, expected * 5e-16) << x[i] << " at " << temperature;
    }
    EXPECT_EQ(Weights({max, max}, max, temperature), (std::vector<double>{1, 1}));
  }
}

TEST_P(RowMathTest, SumsHaveSixteenLanesWhateverTheLength) {
  for (const int64_t n : kSizes) {
    const std::vector<float> x = Logits(n);
    const float max = MaxOf(x);
    const std::vector<double> weights = Weights(x, max, 1);
    EXPECT_EQ(math_.sum_exp(x.data(), n, max), SumInLanes(weights)) << n;
    std::vector<double> sums((n + 1023) / 1024 + 1, 77);
    math_.block_sums(weights.data(), n, 0, sums.data());
    for (int64_t b = 0; b * 1024 < n; ++b) {
      const auto begin = weights.begin() + b * 1024;
      const auto end = weights.begin() + std::min(n, b * 1024 + 1024);
      EXPECT_EQ(sums[b], SumInLanes({begin, end})) << n << " block " << b;
    }
    EXPECT_EQ(sums.back(), 77);
    // An independent oracle of the sum itself.
    long double plain = 0;
    for (const float value : x) plain += std::exp(static_cast<long double>(value) - max);
    EXPECT_NEAR(math_.sum_exp(x.data(), n, max) / static_cast<double>(plain), 1, 1e-14) << n;
  }
}

TEST_P(RowMathTest, ANanLogitMakesTheSumANan) {
  std::vector<float> x = Logits(100);
  x[99] = kNan;
  EXPECT_TRUE(std::isnan(math_.sum_exp(x.data(), 100, 40)));
}

TEST_P(RowMathTest, SumAtLeastSumsAndCountsWhatReachesTheBound) {
  for (const int64_t n : kSizes) {
    const std::vector<float> x = Logits(n);
    const std::vector<double> weights = Weights(x, MaxOf(x), 1);
    for (const double bound : {0.0, 1e-9, weights[n / 2], 1.0, 2.0}) {
      std::vector<double> kept(weights);
      int64_t count = 0;
      for (double& w : kept) {
        if (w < bound) w = 0;
        if (w >= bound) ++count;
      }
      const WeightSum sum = math_.sum_at_least(weights.data(), n, bound);
      EXPECT_EQ(sum.sum, SumInLanes(kept)) << n << " from " << bound;
      EXPECT_EQ(sum.count, count) << n << " from " << bound;
      std::vector<double> sums((n + 1023) / 1024 + 1, 77);
      math_.block_sums(weights.data(), n, bound, sums.data());
      for (int64_t b = 0; b * 1024 < n; ++b) {
        const auto end = kept.begin() + std::min(n, b * 1024 + 1024);
        EXPECT_EQ(sums[b], SumInLanes({kept.begin() + b * 1024, end})) << n << " block " << b;
      }
      EXPECT_EQ(sums.back(), 77);
    }
  }
}

TEST_P(RowMathTest, FindBetweenFindsTheHalfOpenRangeInOrder) {
  for (const int64_t n : kSizes) {
    const std::vector<float> x = Logits(n);
    const std::vector<double> weights = Weights(x, MaxOf(x), 1);
    const double middle = weights[n / 2];
    for (const auto& [low, high] : std::vector<std::pair<double, double>>{
             {0, 2}, {middle, 2}, {0, middle}, {middle, middle}, {middle, middle * 1.1}}) {
      std::vector<int32_t> expected;
      for (int64_t i = 0; i < n; ++i) {
        if (weights[i] >= low && weights[i] < high) expected.push_back(static_cast<int32_t>(i));
      }
      std::vector<int32_t> out(expected.size() + 1, -7);
      math_.find_between(weights.data(), n, low, high, out.data());
      EXPECT_EQ(out.back(), -7);
      out.pop_back();
      EXPECT_EQ(out, expected) << n << " in [" << low << ", " << high << ")";
    }
  }
}

TEST_P(RowMathTest, AllSetsGiveTheSameBits) {
  const auto portable = MakeTestKernels("portable");
  std::vector<float> x = Logits(151936, 5);
  for (int i = 0; i < 2000; ++i) x[i] = -0.36f * static_cast<float>(i);  // Down to weights of 0.
  const float max = MaxOf(x);
  for (const double temperature : {1.0, 0.7, 1.9}) {
    std::vector<double> expected(x.size());
    portable->row_math().exp_weights(x.data(), Size(x), max, temperature, expected.data());
    const std::vector<double> weights = Weights(x, max, temperature);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint64_t>(weights[i]), std::bit_cast<uint64_t>(expected[i])) << x[i];
    }
  }
}

BATON_FOR_EACH_KERNEL_SET(RowMathTest);

}  // namespace
}  // namespace baton
