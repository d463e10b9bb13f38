#include "kernels/cpu/sampling/weighted_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "kernels/make_device.h"

namespace baton {
namespace {

const RowMath& Math() {
  static const auto kKernels = *MakeCpuKernels({});
  return kKernels->row_math();
}

constexpr double kLog2E = 1.44269504088896338700;  // The scale of temperature 1.

// Parts of 1 as Reset and KeepTopP take them.
uint64_t Weight(double w) { return static_cast<uint64_t>(std::llround(w * 0x1p44)); }
uint64_t TopP(double p) { return std::max<uint64_t>(1, static_cast<uint64_t>(p * 0x1p63)); }

// What a plain loop in fp64 says: weights in units of 2^-44, what is kept, and where each token's
// share lies.
class Oracle {
 public:
  Oracle(const std::vector<float>& values, double temperature) {
    const double max = *std::ranges::max_element(values);
    for (const float value : values) {
      weights_.push_back(std::nearbyint(std::exp((value - max) / temperature) * 0x1p44) * 0x1p-44);
    }
    kept_.resize(values.size());
    std::iota(kept_.begin(), kept_.end(), 0);
  }
  void KeepAtLeast(double weight) {
    std::erase_if(kept_, [&](int32_t i) { return weights_[i] < weight; });
  }
  void KeepTopP(double p) {
    std::stable_sort(kept_.begin(), kept_.end(),
                     [&](int32_t a, int32_t b) { return weights_[a] > weights_[b]; });
    const double total = Total();
    double sum = 0;
    size_t count = 0;
    while (count < kept_.size() && sum < p * total) sum += weights_[kept_[count++]];
    kept_.resize(count);
    std::ranges::sort(kept_);
  }
  double Total() const {
    double total = 0;
    for (const int32_t i : kept_) total += weights_[i];
    return total;
  }
  const std::vector<int32_t>& kept() const { return kept_; }
  double weight(int32_t id) const { return weights_[id]; }

 private:
  std::vector<double> weights_;
  std::vector<int32_t> kept_;
};

// A share of all weights in units of 2^-64.
uint64_t Share(double part) { return static_cast<uint64_t>(part * 0x1p64); }

// Every token that is kept is drawn in the middle of its share, and at both its ends, unless the
// share is too narrow to tell.
void ExpectDraws(WeightedTokens& tokens, const Oracle& oracle, const std::string& what) {
  const double total = oracle.Total();
  double before = 0;
  for (const int32_t id : oracle.kept()) {
    const double share = oracle.weight(id) / total;
    for (const double at : {0.001, 0.5, 0.999}) {
      if (share > 1e-9) {
        ASSERT_EQ(tokens.Draw(Share(before / total + at * share)), id) << what << " at " << at;
      }
    }
    before += oracle.weight(id);
  }
}

std::vector<float> Values(int32_t n, double width, uint64_t seed = 1) {
  Random random(seed);
  std::vector<float> values(n);
  for (float& value : values) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += random.Unit();
    value = static_cast<float>(sum * width);
  }
  return values;
}

TEST(WeightedTokensTest, DrawsHaveTheSharesOfThePlainSoftmax) {
  for (const int32_t n : {1, 5, 1024, 1025, 5000}) {
    const std::vector<float> values = Values(n, 3);
    WeightedTokens tokens(&Math());
    tokens.Reset(values, {}, *std::ranges::max_element(values), kLog2E / 0.8, 0);
    ExpectDraws(tokens, Oracle(values, 0.8), std::to_string(n));
  }
}

TEST(WeightedTokensTest, TopPAndMinPKeepWhatAFullSortKeeps) {
  for (const double width : {0.01, 1.0, 4.0}) {
    for (const double p : {1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 1e-9}) {
      for (const double min_p : {0.0, 0.02}) {
        const std::vector<float> values = Values(6000, width, 7);
        WeightedTokens tokens(&Math());
        tokens.Reset(values, {}, *std::ranges::max_element(values), kLog2E, Weight(min_p));
        Oracle oracle(values, 1);
        oracle.KeepAtLeast(min_p);
        tokens.KeepTopP(TopP(p));
        oracle.KeepTopP(p);
        ExpectDraws(tokens, oracle,
                    absl::StrCat("width ", width, " p ", p, " min_p ", min_p));
      }
    }
  }
}

TEST(WeightedTokensTest, OfEqualWeightsTopPKeepsTheLowerIds) {
  // 4,000 equal ones, of which 1,000 reach a quarter; one above and one below.
  std::vector<float> values(4000, 1.0f);
  values[3999] = 1.0f + 1e-6f;
  values[0] = -5;
  WeightedTokens tokens(&Math());
  tokens.Reset(values, {}, values[3999], kLog2E, 0);
  Oracle oracle(values, 1);
  tokens.KeepTopP(TopP(0.25));
  oracle.KeepTopP(0.25);
  ASSERT_EQ(oracle.kept().size(), 1000u);
  ExpectDraws(tokens, oracle, "equal weights");
}

// Values of a long row that are few numbers only: hundreds of tokens have the weight of the edge,
// wherever the share falls among them.
TEST(WeightedTokensTest, TheEdgeMayLieAmongManyEqualWeights) {
  Random random(11);
  std::vector<float> values(9000);
  for (float& value : values) value = -static_cast<float>(random.Below(20));
  const float max = *std::ranges::max_element(values);
  for (const double p : {0.01, 0.3, 0.6, 0.632, 0.64, 0.8, 0.864, 0.87, 0.95, 0.99, 0.9999}) {
    WeightedTokens tokens(&Math());
    tokens.Reset(values, {}, max, kLog2E, 0);
    tokens.KeepTopP(TopP(p));
    Oracle oracle(values, 1);
    oracle.KeepTopP(p);
    ExpectDraws(tokens, oracle, absl::StrCat("p ", p));
  }
}

// The first look at a long row is a sample, the first eight of every 256 tokens. Here they tell
// nothing of the others: they have no weight, or all of it, or the weights between are elsewhere.
TEST(WeightedTokensTest, ASampleThatMisleadsChangesNothing) {
  constexpr float kNone = -20;
  for (const std::array<float, 2> sampled : {std::array{kNone, kNone}, {1, 1}, {1, kNone}}) {
    for (const double p : {0.05, 0.5, 0.95, 0.999}) {
      Random random(12);
      std::vector<float> values(20000);
      for (int i = 0; i < 20000; ++i) {
        const float other = sampled[1] == 1 ? kNone : static_cast<float>(random.Unit());
        values[i] = i % 256 < 8 ? sampled[i % 2] : other;
      }
      WeightedTokens tokens(&Math());
      tokens.Reset(values, {}, *std::ranges::max_element(values), kLog2E, 0);
      tokens.KeepTopP(TopP(p));
      Oracle oracle(values, 1);
      oracle.KeepTopP(p);
      ExpectDraws(tokens, oracle, absl::StrCat(sampled[0], " ", sampled[1], " p ", p));
    }
  }
}

TEST(WeightedTokensTest, TopPKeepsNoMoreOnceItIsReachedExactly) {
  const std::vector<float> values = {0, 0, 0, 0};
  WeightedTokens tokens(&Math());
  tokens.Reset(values, {}, 0, kLog2E, 0);
  tokens.KeepTopP(TopP(0.5));
  EXPECT_EQ(tokens.Draw(Share(0.99)), 1);
}

// Two tokens with weights w and 1 share the line at exactly w / (w + 1).
TEST(WeightedTokensTest, AShareIsExactToItsLastUnit) {
  const std::vector<float> values = {-1, 0};
  uint64_t weights[2];
  const uint64_t total = Math().weights(values.data(), 2, 0, kLog2E, weights);
  WeightedTokens tokens(&Math());
  tokens.Reset(values, {}, 0, kLog2E, 0);
  // The least share whose product with the total reaches the first weight.
  const auto edge = static_cast<uint64_t>(
      ((static_cast<unsigned __int128>(weights[0]) << 64) + total - 1) / total);
  EXPECT_EQ(tokens.Draw(edge - 1), 0);
  EXPECT_EQ(tokens.Draw(edge), 1);
}

// Of n equal tokens p keeps the least number that is at least p n, however p n rounds.
TEST(WeightedTokensTest, TopPOfEqualTokensKeepsTheLeastNumberThatReachesIt) {
  const std::vector<float> values(700, 3.0f);
  for (const float p : {1e-38f, 1e-12f, 1e-3f, 0.1f, 0.29f, 0.5f, 0.57f, 0.7f, 0.999999f}) {
    WeightedTokens tokens(&Math());
    tokens.Reset(values, {}, 3, kLog2E, 0);
    tokens.KeepTopP(TopP(p));
    const double kept = std::max(std::ceil(double{p} * 700), 1.0);
    EXPECT_EQ(tokens.Draw(~uint64_t{0}), kept - 1) << p;
  }
}

TEST(WeightedTokensTest, IdsAreThoseGiven) {
  const std::vector<float> values = {1, 3, 2};
  const std::vector<int32_t> ids = {10, 20, 40};
  WeightedTokens tokens(&Math());
  tokens.Reset(values, ids, 3, kLog2E, 0);
  EXPECT_EQ(tokens.Draw(0), 10);
  EXPECT_EQ(tokens.Draw(Share(0.5)), 20);
  EXPECT_EQ(tokens.Draw(Share(0.9999)), 40);
  tokens.Reset(values, ids, 3, kLog2E, Weight(0.3));
  EXPECT_EQ(tokens.Draw(0), 20);
  tokens.Reset(values, {}, 3, kLog2E, 0);
  EXPECT_EQ(tokens.Draw(Share(0.5)), 1);
}

TEST(WeightedTokensTest, NoShareDrawsATokenWithoutWeight) {
  std::vector<float> values(3000, -1000.0f);
  values[1500] = 0;
  WeightedTokens tokens(&Math());
  tokens.Reset(values, {}, 0, kLog2E, 0);
  EXPECT_EQ(tokens.Draw(~uint64_t{0}), 1500);
  EXPECT_EQ(tokens.Draw(0), 1500);
}

}  // namespace
}  // namespace baton
