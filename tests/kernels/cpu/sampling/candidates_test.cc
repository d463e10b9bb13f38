#include "kernels/cpu/sampling/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/base/random.h"
#include "kernels/make_device.h"

namespace baton {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

const RowMath& BestMath() {
  static const auto kKernels = *MakeCpuKernels({});
  return kKernels->row_math();
}

std::vector<float> BlockMaxima(const std::vector<float>& x) {
  std::vector<float> maxima((x.size() + RowMath::kMaxBlock - 1) / RowMath::kMaxBlock);
  BestMath().block_max(x.data(), std::ssize(x), maxima.data());
  return maxima;
}

void ExpectValuesAreThoseOf(const Candidates& candidates, const std::vector<float>& x) {
  ASSERT_EQ(candidates.values().size(), candidates.tokens().size());
  for (size_t i = 0; i < candidates.tokens().size(); ++i) {
    ASSERT_EQ(candidates.values()[i], x[candidates.tokens()[i]]);
  }
}

std::vector<int32_t> Tokens(const Candidates& candidates) {
  return {candidates.tokens().begin(), candidates.tokens().end()};
}

// The `count` greatest, ranked. One object for all rows, as in a sampler.
std::vector<int32_t> Greatest(const std::vector<float>& x, int32_t count) {
  static Candidates candidates(&BestMath());
  candidates.FindGreatest(x, BlockMaxima(x), count);
  ExpectValuesAreThoseOf(candidates, x);
  const std::vector<int32_t> ascending = Tokens(candidates);
  candidates.Rank(x);
  ExpectValuesAreThoseOf(candidates, x);
  const std::vector<int32_t> ranked = Tokens(candidates);
  std::vector<int32_t> sorted = ranked;  // A permutation test would be quadratic.
  std::ranges::sort(sorted);
  EXPECT_EQ(ascending, sorted);
  return ranked;
}

std::vector<int32_t> BySorting(const std::vector<float>& x, int32_t count) {
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return x[a] > x[b]; });
  order.resize(count);
  return order;
}

void ExpectAsSorted(const std::vector<float>& x) {
  const auto size = static_cast<int32_t>(x.size());
  for (const int32_t count : {0, 1, 2, 5, 20, 63, 64, 65, 1000, size / 2, size - 1, size}) {
    if (count < 0 || count > size) continue;
    EXPECT_EQ(Greatest(x, count), BySorting(x, count)) << count << " of " << size;
  }
}

TEST(CandidatesTest, AreThoseOfAFullSortOfAnyRow) {
  Random random(3);
  for (const int32_t size : {1, 2, 64, 65, 1000, 30000}) {
    std::vector<float> x(size);
    for (float& value : x) value = static_cast<float>(random.Unit());
    ExpectAsSorted(x);
    // A few values only, so that most are equal to others.
    for (float& value : x) value = static_cast<float>(random.Below(4));
    ExpectAsSorted(x);
    std::iota(x.begin(), x.end(), -100.0f);
    ExpectAsSorted(x);
    std::ranges::reverse(x);
    ExpectAsSorted(x);
  }
}

TEST(CandidatesTest, ManyInOneBlockAreAllFound) {
  std::vector<float> x(6400, 0.0f);
  for (int i = 0; i < 64; ++i) x[640 + i] = static_cast<float>(i + 1);
  ExpectAsSorted(x);
}

TEST(CandidatesTest, MaskedTokensComeLast) {
  std::vector<float> x(300, -kInf);
  ExpectAsSorted(x);
  x[200] = 1;
  EXPECT_EQ(Greatest(x, 3), (std::vector<int32_t>{200, 0, 1}));
  ExpectAsSorted(x);
}

TEST(CandidatesTest, AnyFloatHasItsPlaceInTheOrder) {
  std::vector<float> x = {0.0f, -0.0f, 1e-45f, -1e-45f, 3e38f, -3e38f, -kInf, 1, -1, 0.0f, -0.0f};
  ExpectAsSorted(x);
  for (int32_t count = 0; count <= 11; ++count) {
    EXPECT_EQ(Greatest(x, count), BySorting(x, count)) << count;
  }
  for (int i = 0; i < 5000; ++i) x.push_back(x[(i * 7) % 11]);
  for (const int32_t count : {400, 455, 456, 457, 1000, 2000, 3000, 4999}) {
    EXPECT_EQ(Greatest(x, count), BySorting(x, count)) << count;
  }
}

TEST(CandidatesTest, AtLeastABoundAreThatAndTheGreater) {
  const std::vector<float> x = {3, 1, 2, 2, -kInf};
  Candidates candidates(&BestMath());
  candidates.FindAtLeast(x, 2);
  EXPECT_EQ(Tokens(candidates), (std::vector<int32_t>{0, 2, 3}));
  ExpectValuesAreThoseOf(candidates, x);
  candidates.FindAtLeast(x, -kInf);
  EXPECT_EQ(candidates.tokens().size(), 5u);
  candidates.FindAtLeast(x, 4);
  EXPECT_TRUE(candidates.tokens().empty());
}

// Counts the values that are looked at.
class CountedMath {
 public:
  CountedMath() : math_(BestMath()) {
    math_.count_at_least = [](const float* x, int64_t n, float bound) {
      looked_at += n;
      return BestMath().count_at_least(x, n, bound);
    };
    math_.find_at_least = [](const float* x, int64_t n, float bound, int32_t* indexes,
                             float* found) {
      looked_at += n;
      return BestMath().find_at_least(x, n, bound, indexes, found);
    };
  }
  const RowMath* math() const { return &math_; }
  static inline int64_t looked_at = 0;

 private:
  RowMath math_;
};

// As there are 2^32 floats, 32 passes over the row, one that collects, 33 over what was found.
TEST(CandidatesTest, FindingManyTakesABoundedNumberOfPasses) {
  constexpr int32_t kSize = 1 << 17;
  Random random(5);
  std::vector<float> x(kSize);
  for (float& value : x) value = static_cast<float>(random.Unit() - 0.5);
  const CountedMath counted;
  Candidates candidates(counted.math());
  for (const int32_t count : {1, 1000, 2048, 2049, kSize / 2, kSize - 1, kSize}) {
    CountedMath::looked_at = 0;
    candidates.FindGreatest(x, BlockMaxima(x), count);
    EXPECT_EQ(std::ssize(candidates.tokens()), count);
    EXPECT_LE(CountedMath::looked_at, int64_t{33} * kSize + int64_t{33} * std::max(count, 20000))
        << count;
  }
}

}  // namespace
}  // namespace baton
