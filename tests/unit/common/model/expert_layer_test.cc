#include "common/model/expert_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/random.h"
#include "kernels/make_device.h"

namespace baton {
namespace {

constexpr int64_t kTokens = 6, kHidden = 10, kExperts = 4, kTopK = 2, kFfn = 256;
// Of these not all segments are computed at once.
constexpr int64_t kManyTokens = 130;

std::vector<float> RandomNumbers(uint64_t seed, int64_t count) {
  Random random(seed);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(random.Unit() - 0.5);
  return out;
}

// The sum over k of a[k] * b[k].
double Dot(const float* a, const float* b, int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += double{a[i]} * b[i];
  return sum;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Experts of one rank that holds them all, with the down products in so many segments.
class ExpertLayerTest : public testing::TestWithParam<int32_t> {
 protected:
  ExpertLayerTest() {
    ModelConfig config{.hidden_size = kHidden};
    config.experts = {.count = kExperts, .top_k = kTopK, .ffn_size = kFfn, .renormalize = true};
    layer_ = *ExpertLayer::Create(
        {.config = config,
         .shape = {.expert_ffn_size = kFfn, .expert_down_segments = GetParam()},
         .device = cpu_.device.get(),
         .max_tokens = kManyTokens});
    packed_.router = Pack(router_, kExperts, kHidden);
    packed_.shared_gate = Pack(shared_gate_, 1, kHidden);
    for (int64_t e = 0; e < kExperts; ++e) {
      gate_up_.push_back(RandomNumbers(10 + e, 2 * kFfn * kHidden));
      down_.push_back(RandomNumbers(20 + e, kHidden * kFfn));
      packed_.gate_up.push_back(Pack(gate_up_[e], 2 * kFfn, kHidden));
      packed_.down.push_back(Pack(down_[e], kHidden, kFfn));
    }
  }

  PackedMatrix Pack(const std::vector<float>& values, int64_t rows, int64_t k) {
    const WeightRows all{.data = reinterpret_cast<const std::byte*>(values.data()),
                         .dtype = DType::kF32,
                         .num_rows = rows};
    return *cpu_.device->Pack({.parts = &all, .num_parts = 1, .k = k});
  }

  // What expert `e` makes of token `t`.
  std::vector<double> OfExpert(int64_t e, int64_t t) const {
    std::vector<float> ffn(kFfn);
    for (int64_t i = 0; i < kFfn; ++i) {
      const double gate = Dot(&gate_up_[e][i * kHidden], &x_[t * kHidden], kHidden);
      const double up = Dot(&gate_up_[e][(kFfn + i) * kHidden], &x_[t * kHidden], kHidden);
      ffn[i] = static_cast<float>(gate * Sigmoid(gate) * up);
    }
    std::vector<double> out(kHidden);
    for (int64_t i = 0; i < kHidden; ++i) out[i] = Dot(&down_[e][i * kFfn], ffn.data(), kFfn);
    return out;
  }

  std::vector<double> Expected(int64_t t) const {
    std::vector<std::pair<double, int64_t>> scores;
    for (int64_t e = 0; e < kExperts; ++e) {
      scores.push_back({-std::exp(Dot(&router_[e * kHidden], &x_[t * kHidden], kHidden)), e});
    }
    std::ranges::sort(scores);
    double sum = 0;
    for (int64_t c = 0; c < kTopK; ++c) sum += scores[c].first;
    std::vector<double> out(kHidden);
    for (int64_t c = 0; c < kTopK; ++c) {
      const std::vector<double> one = OfExpert(scores[c].second, t);
      for (int64_t i = 0; i < kHidden; ++i) out[i] += scores[c].first / sum * one[i];
    }
    return out;
  }

  const Processors cpu_ = *MakeDevice({});
  const std::vector<float> router_ = RandomNumbers(1, kExperts * kHidden);
  const std::vector<float> shared_gate_ = RandomNumbers(2, kHidden);
  std::vector<float> x_ = RandomNumbers(3, kManyTokens* kHidden);
  std::vector<std::vector<float>> gate_up_, down_;
  PackedExperts packed_;
  std::unique_ptr<ExpertLayer> layer_;
};

INSTANTIATE_TEST_SUITE_P(Segments, ExpertLayerTest, testing::Values(1, 2, 8));

TEST_P(ExpertLayerTest, ATokenGetsTheWeightedSumOfItsExperts) {
  for (const int64_t tokens : {kTokens, kManyTokens}) {
    std::vector<float> out(tokens * kHidden, NAN);
    ASSERT_EQ(layer_->Run(packed_, x_.data(), tokens, out.data()), absl::OkStatus());
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<double> expected = Expected(t);
      for (int64_t i = 0; i < kHidden; ++i) {
        EXPECT_NEAR(out[t * kHidden + i], expected[i], 1e-5) << t << " " << i;
      }
    }
  }
}

// Also where the others have their segments a few at a time: of eight, four, two and one.
TEST_P(ExpertLayerTest, ATokenGetsTheSameAloneAndAmongOthers) {
  for (const int64_t tokens : {kTokens, int64_t{64}, int64_t{100}, kManyTokens}) {
    std::vector<float> all(tokens * kHidden), one(kHidden);
    ASSERT_EQ(layer_->Run(packed_, x_.data(), tokens, all.data()), absl::OkStatus());
    for (int64_t t = 0; t < tokens; ++t) {
      ASSERT_EQ(layer_->Run(packed_, &x_[t * kHidden], 1, one.data()), absl::OkStatus());
      EXPECT_THAT(one, testing::ElementsAreArray(&all[t * kHidden], kHidden));
    }
  }
}

TEST_P(ExpertLayerTest, TheSharedExpertIsAddedByItsGate) {
  std::vector<float> shared = RandomNumbers(4, kTokens * kHidden);
  const std::vector<float> before = RandomNumbers(5, kTokens * kHidden);
  std::vector<float> sum = before;
  ASSERT_EQ(layer_->AddShared(packed_, x_.data(), shared.data(), kTokens, sum.data()),
            absl::OkStatus());
  for (int64_t i = 0; i < kTokens * kHidden; ++i) {
    const double gate = Dot(shared_gate_.data(), &x_[i / kHidden * kHidden], kHidden);
    EXPECT_NEAR(sum[i], before[i] + Sigmoid(gate) * shared[i], 1e-6) << i;
  }
}

}  // namespace
}  // namespace baton
