#include "kernels/cpu/sampling/likeliest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/base/random.h"
#include "kernels/make_device.h"

namespace baton {
namespace {

std::vector<int32_t> Likeliest(const std::vector<float>& x, int32_t count) {
  static const auto kKernels = *MakeCpuKernels({});
  std::vector<float> maxima((x.size() + RowMath::kMaxBlock - 1) / RowMath::kMaxBlock);
  kKernels->row_math().block_max(x.data(), static_cast<int64_t>(x.size()), maxima.data());
  std::vector<int32_t> indexes = {99};
  RankLikeliest(x, maxima, count, indexes);
  std::vector<int32_t> selected = {99};
  SelectLikeliest(x, maxima, count, selected);
  std::vector<int32_t> ascending = indexes;  // A permutation test would be quadratic.
  std::ranges::sort(ascending);
  EXPECT_EQ(selected, ascending);
  return indexes;
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
  for (const int32_t count : {0, 1, 2, 5, 20, 63, 64, 65, 1000, size - 1, size}) {
    if (count < 0 || count > size) continue;
    EXPECT_EQ(Likeliest(x, count), BySorting(x, count)) << count << " of " << size;
  }
}

TEST(LikeliestTest, AreThoseOfAFullSortOfAnyRow) {
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

TEST(LikeliestTest, ManyInOneBlockAreAllFound) {
  std::vector<float> x(6400, 0.0f);
  for (int i = 0; i < 64; ++i) x[640 + i] = static_cast<float>(i + 1);
  ExpectAsSorted(x);
}

TEST(LikeliestTest, MaskedTokensComeLast) {
  std::vector<float> x(300, -std::numeric_limits<float>::infinity());
  ExpectAsSorted(x);
  x[200] = 1;
  EXPECT_EQ(Likeliest(x, 3), (std::vector<int32_t>{200, 0, 1}));
  ExpectAsSorted(x);
}

// A value that counts how often one is compared.
struct Counted {
  float value = 0;
  static inline int64_t comparisons = 0;
  bool operator>(const Counted& other) const {
    ++comparisons;
    return value > other.value;
  }
};

TEST(LikeliestTest, SelectingManyIsLinear) {
  constexpr int32_t kSize = 1 << 17;
  Random random(5);
  std::vector<Counted> values(kSize);
  for (Counted& counted : values) counted.value = static_cast<float>(random.Unit());
  for (const int32_t count : {1, 5000, kSize / 2, kSize - 1, kSize}) {
    Counted::comparisons = 0;
    EXPECT_EQ(std::ssize(SelectGreatest<Counted>(values, count)), count);
    EXPECT_LT(Counted::comparisons, int64_t{10} * kSize) << count;
  }
}

}  // namespace
}  // namespace baton
