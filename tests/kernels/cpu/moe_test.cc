#include "kernels/cpu/moe.h"

#include "tests/kernels/fuzz_fixture.h"
#include "tests/kernels/moe_problem.h"

namespace baton {
namespace {

// On all devices.
class MoeTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<CpuKernels> kernels_ = MakeFuzzed(GetParam());
};

// Ids between canaries.
struct GuardedIds {
  std::vector<int32_t> memory;

  explicit GuardedIds(int64_t n) : memory(n + 2, kCanary) {}
  int32_t* data() { return memory.data() + 1; }
  bool GuardsIntact() const { return memory.front() == kCanary && memory.back() == kCanary; }

  static constexpr int32_t kCanary = -77;
};

class MoeRoutingTest : public MoeTest {
 protected:
  // Runs `args` (without pointers to outputs) over rows of `logits` with a gap of NaN between them.
  void Route(MoeRoutingArgs args, const std::vector<float>& logits) {
    const int64_t tokens = std::ssize(logits) / args.num_experts, stride = args.num_experts + 3;
    std::vector<float> rows(tokens * stride, NAN);
    for (int64_t i = 0; i < std::ssize(logits); ++i) {
      rows[i / args.num_experts * stride + i % args.num_experts] = logits[i];
    }
    args.logits = rows.data();
    args.logits_stride = stride;
    args.num_tokens = tokens;
    ids_ = GuardedIds(tokens * args.top_k);
    weights_ = GuardedFloats(tokens * args.top_k);
    args.expert_ids = ids_.data();
    args.weights = weights_.data();
    const absl::Status status = kernels_->MoeRouting(args);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(ids_.GuardsIntact() && weights_.GuardsIntact());
  }

  void ExpectAgreesWithDoubles(const MoeRoutingArgs& args, const std::vector<float>& logits) {
    Route(args, logits);
    for (int64_t t = 0; t < std::ssize(logits) / args.num_experts; ++t) {
      const RoutingReference want = ReferenceRouting(args, logits.data() + t * args.num_experts);
      for (int64_t c = 0; c < args.top_k; ++c) {
        ASSERT_EQ(ids_.data()[t * args.top_k + c], want.ids[c]) << t << ", " << c;
        ASSERT_NEAR(weights_.data()[t * args.top_k + c], want.weights[c],
                    1e-6 * std::fabs(want.weights[c]) + 1e-30);
      }
    }
  }

  GuardedIds ids_{0};
  GuardedFloats weights_{0};
};

// Multiples of 1/8, so that many are equal.
std::vector<float> CoarseLogits(uint64_t seed, int64_t n) {
  std::vector<float> out = RandomFloats(seed, n);
  for (float& x : out) x = std::round(x * 40) / 8;
  return out;
}

TEST_P(MoeRoutingTest, AgreesWithDoublesForEveryScoringAndManyShapes) {
  uint64_t seed = 1;
  for (const auto scoring : {MoeScoring::kSoftmax, MoeScoring::kSigmoid}) {
    for (const bool renormalize : {false, true}) {
      for (const auto& [experts, k] : {std::pair{1, 1}, {7, 7}, {8, 2}, {64, 8}, {129, 5}}) {
        MoeRoutingArgs args{.num_experts = experts,
                            .top_k = k,
                            .scoring = scoring,
                            .renormalize = renormalize,
                            .scaling_factor = 1.5f};
        ExpectAgreesWithDoubles(args, RandomFloats(++seed, 9 * experts));
        ExpectAgreesWithDoubles(args, CoarseLogits(++seed, 9 * experts));
        const std::vector<float> bias = RandomFloats(++seed, experts);
        args.selection_bias = bias.data();
        ExpectAgreesWithDoubles(args, RandomFloats(++seed, 9 * experts));
      }
    }
  }
}

TEST_P(MoeRoutingTest, OnlyExpertsOfTheBestGroupsAreChosen) {
  for (const auto& [groups, top] : {std::pair{2, 1}, {4, 2}, {8, 3}, {24, 6}}) {
    MoeRoutingArgs args{.num_experts = 24, .top_k = 6, .num_groups = groups, .top_groups = top};
    ExpectAgreesWithDoubles(args, RandomFloats(groups, 24 * 11));
    ExpectAgreesWithDoubles(args, CoarseLogits(groups, 24 * 11));
    args.scoring = MoeScoring::kSigmoid;
    args.renormalize = true;
    const std::vector<float> bias = RandomFloats(groups + 50, 24);
    args.selection_bias = bias.data();
    ExpectAgreesWithDoubles(args, RandomFloats(groups, 24 * 11));
  }
}

// Group 1 has the greatest expert, group 0 the greatest pair.
TEST_P(MoeRoutingTest, GroupsAreRankedByPairsWithABiasAndByTheirBestWithout) {
  const std::vector<float> logits = {1, 1, 2, -9};
  const std::vector<float> bias(4, 0.0f);
  MoeRoutingArgs args{.num_experts = 4,
                      .top_k = 1,
                      .scoring = MoeScoring::kSigmoid,
                      .num_groups = 2,
                      .top_groups = 1};
  Route(args, logits);
  EXPECT_EQ(ids_.data()[0], 2);
  args.selection_bias = bias.data();
  Route(args, logits);
  EXPECT_EQ(ids_.data()[0], 0);
}

TEST_P(MoeRoutingTest, TheBiasChoosesButDoesNotWeigh) {
  const std::vector<float> bias = {0, 0, 5};
  Route({.num_experts = 3,
         .top_k = 1,
         .scoring = MoeScoring::kSigmoid,
         .selection_bias = bias.data()},
        {1, 2, 0});
  EXPECT_EQ(ids_.data()[0], 2);
  EXPECT_EQ(weights_.data()[0], 0.5f);
}

TEST_P(MoeRoutingTest, EqualLogitsGoToTheLowerIndex) {
  const std::vector<float> zero(40, 0.0f);
  for (const auto scoring : {MoeScoring::kSoftmax, MoeScoring::kSigmoid}) {
    for (const float* bias : {static_cast<const float*>(nullptr), zero.data()}) {
      Route({.num_experts = 40,
             .top_k = 6,
             .scoring = scoring,
             .selection_bias = bias,
             .num_groups = 4,
             .top_groups = 2},
            std::vector<float>(40, 0.25f));
      for (int32_t c = 0; c < 6; ++c) EXPECT_EQ(ids_.data()[c], c);
    }
  }
}

// Their softmax rounds to the same float, or to nothing.
TEST_P(MoeRoutingTest, LogitsWhoseScoresRoundToEqualAreStillToldApart) {
  Route({.num_experts = 4, .top_k = 4}, {-300, 0x1.000002p-30f, 0x1p-30f, -200});
  const std::vector<int32_t> want = {1, 2, 3, 0};
  EXPECT_EQ(std::vector<int32_t>(ids_.data(), ids_.data() + 4), want);
  EXPECT_EQ(weights_.data()[3], 0.0f);
}

TEST_P(MoeRoutingTest, InfinitiesAndNansGiveDifferentExpertsAndStayInTheirToken) {
  const float inf = INFINITY;
  const std::vector<float> logits = {-inf, 1,    -inf, 0,     // Masked experts.
                                     NAN,  -inf, NAN,  1,     // NaN is behind -inf.
                                     NAN,  NAN,  NAN,  NAN,   //
                                     inf,  0,    inf,  1,     //
                                     -inf, -inf, -inf, -inf,  //
                                     0,    3,    1,    2};
  const std::vector<int32_t> want = {1, 3, 0, 3, 1, 0, 0, 1, 2, 0, 2, 3, 0, 1, 2, 1, 3, 2};
  for (const auto scoring : {MoeScoring::kSoftmax, MoeScoring::kSigmoid}) {
    Route({.num_experts = 4, .top_k = 3, .scoring = scoring, .renormalize = true}, logits);
    EXPECT_EQ(std::vector<int32_t>(ids_.data(), ids_.data() + 18), want);
    const float* w = weights_.data();
    EXPECT_NEAR(w[0] + w[1], 1, 1e-6);
    EXPECT_NEAR(w[2], 0, 1e-30);
    for (int i = 3; i < 9; ++i) EXPECT_TRUE(std::isnan(w[i])) << i;
    EXPECT_NEAR(w[15] + w[16] + w[17], 1, 1e-6);
    if (scoring == MoeScoring::kSigmoid) {
      EXPECT_NEAR(w[9] + w[10] + w[11], 1, 1e-6);
    } else {
      for (int i = 9; i < 15; ++i) EXPECT_TRUE(std::isnan(w[i])) << i;
    }
  }
}

TEST_P(MoeRoutingTest, ATokenHasTheSameBitsAloneAndAmongOthersWithAnyThreads) {
  const int64_t tokens = 600, experts = 60, k = 6;
  const std::vector<float> logits = RandomFloats(3, tokens * experts);
  std::vector<int32_t> ids(tokens * k), one_id(k);
  std::vector<float> weights(tokens * k), one(k);
  MoeRoutingArgs args{.logits = logits.data(),
                      .logits_stride = experts,
                      .num_tokens = tokens,
                      .num_experts = experts,
                      .top_k = k,
                      .renormalize = true,
                      .expert_ids = ids.data(),
                      .weights = weights.data()};
  ASSERT_TRUE(MakeFuzzed(GetParam(), 3)->MoeRouting(args).ok());
  args.num_tokens = 1;
  args.expert_ids = one_id.data();
  args.weights = one.data();
  for (int64_t t = 0; t < tokens; t += 37) {
    args.logits = logits.data() + t * experts;
    ASSERT_TRUE(kernels_->MoeRouting(args).ok());
    EXPECT_EQ(std::memcmp(one.data(), weights.data() + t * k, k * 4), 0);
    EXPECT_TRUE(std::equal(one_id.begin(), one_id.end(), ids.begin() + t * k));
  }
}

class MoeCombineTest : public MoeTest {};

TEST_P(MoeCombineTest, AddsInAscendingOrderOfExpertsAndSkipsRowsOfOthers) {
  const int64_t tokens = 5, k = 4, dim = 37, rows = 9;
  std::vector<float> y = RandomFloats(1, rows * (dim + 2));
  std::vector<float> weights = RandomFloats(2, tokens * k);
  const std::vector<float> shared = RandomFloats(3, tokens * dim);
  const std::vector<int32_t> ids = {9, 2, 5, 0, 1, 2, 3, 4, 7, 7, 1, 0, 3, 2, 1, 0, -1, -1, -1, -1};
  const std::vector<int32_t> positions = {3, 1,  -1, 0, 8, 7,  6,  5,  0,  1,
                                          2, -5, -1, 4, 4, -1, -1, -1, -1, -1};
  // Rows that nobody names, and weights of rows that are not here.
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0) weights[i] = NAN;
  }
  for (int64_t r = 0; r < rows; ++r) y[r * (dim + 2) + dim] = y[r * (dim + 2) + dim + 1] = NAN;
  for (const bool has_shared : {false, true}) {
    GuardedFloats out(tokens * (dim + 1));
    ASSERT_TRUE(kernels_
                    ->MoeCombine({.y = y.data(),
                                  .y_stride = dim + 2,
                                  .num_rows = rows,
                                  .expert_ids = ids.data(),
                                  .row_positions = positions.data(),
                                  .weights = weights.data(),
                                  .num_tokens = tokens,
                                  .top_k = k,
                                  .dim = dim,
                                  .shared = has_shared ? shared.data() : nullptr,
                                  .out = out.data(),
                                  .out_stride = dim + 1})
                    .ok());
    EXPECT_TRUE(out.GuardsIntact());
    // By expert id; of equal ones the first.
    const int orders[5][4] = {{3, 1, 2, 0}, {0, 1, 2, 3}, {3, 2, 0, 1}, {3, 2, 1, 0}, {0, 1, 2, 3}};
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t d = 0; d < dim; ++d) {
        float sum = 0;
        for (const int c : orders[t]) {
          const int32_t row = positions[t * k + c];
          if (row >= 0) sum = std::fma(weights[t * k + c], y[row * (dim + 2) + d], sum);
        }
        if (has_shared) sum += shared[t * dim + d];
        ASSERT_EQ(out.data()[t * (dim + 1) + d], sum) << t << ", " << d;
      }
      EXPECT_EQ(out.data()[t * (dim + 1) + dim], GuardedFloats::kCanary);
    }
  }
}

TEST_P(MoeCombineTest, SharedMayBeTheOutputWhichIsRounded) {
  const std::vector<float> y = {1.0f, 2.0f};
  const int32_t id = 3, position = 0;
  const float weight = 0.3333333f;
  std::vector<float> out = {10, 20};
  ASSERT_TRUE(kernels_
                  ->MoeCombine({.y = y.data(),
                                .y_stride = 2,
                                .num_rows = 1,
                                .expert_ids = &id,
                                .row_positions = &position,
                                .weights = &weight,
                                .num_tokens = 1,
                                .top_k = 1,
                                .dim = 2,
                                .shared = out.data(),
                                .round_to = DType::kBF16,
                                .out = out.data(),
                                .out_stride = 2})
                  .ok());
  EXPECT_EQ(out, Rounded(DType::kBF16, {10.3333333f, 20.6666666f}));
}

TEST_P(MoeCombineTest, TokensWithoutExpertsHereBecomeZero) {
  const std::vector<int32_t> ids = {1, 0}, positions = {-1, -1};
  const std::vector<float> weights = {1, 1};
  GuardedFloats out(3);
  ASSERT_TRUE(kernels_
                  ->MoeCombine({.expert_ids = ids.data(),
                                .row_positions = positions.data(),
                                .weights = weights.data(),
                                .num_tokens = 1,
                                .top_k = 2,
                                .dim = 3,
                                .out = out.data(),
                                .out_stride = 3})
                  .ok());
  EXPECT_EQ(out.values(), std::vector<float>(3, 0.0f));
}

class MoeLayerTest : public MoeTest {};

// Ranks with half of the experts each, whose local indexes are in another order.
TEST_P(MoeLayerTest, PartsOfTwoRanksAddUpToTheWholeLayer) {
  const int64_t tokens = 23, experts = 8, k = 3, dim = 20, ffn = 12;
  const std::vector<float> x = RandomFloats(1, tokens * dim);
  const std::vector<float> logits = RandomFloats(2, tokens * experts);
  const std::vector<float> gate_up = RandomFloats(3, experts * 2 * ffn * dim);
  const std::vector<float> down = RandomFloats(4, experts * dim * ffn);
  const MoeRoutingArgs routing{.logits = logits.data(),
                               .logits_stride = experts,
                               .num_tokens = tokens,
                               .num_experts = experts,
                               .top_k = k};
  const auto run = [&](const std::vector<int32_t>& local, std::vector<int32_t> map) {
    MoeLayer layer{.dim = dim,
                   .ffn = ffn,
                   .compute = ComputeOf(*kernels_),
                   .expert_map = std::move(map)};
    for (const int32_t e : local) {
      const auto part = [&](const std::vector<float>& all, int64_t n, int64_t width) {
        const auto begin = all.begin() + e * n * width;
        return std::move(
            PackExperts(*kernels_, n, width, DType::kF32, {begin, begin + n * width})[0]);
      };
      layer.gate_up.push_back(part(gate_up, 2 * ffn, dim));
      layer.down.push_back(part(down, dim, ffn));
    }
    std::vector<float> out(tokens * dim);
    EXPECT_TRUE(layer.Run(*kernels_, routing, x.data(), nullptr, out.data()).ok());
    return out;
  };
  const auto whole = run({0, 1, 2, 3, 4, 5, 6, 7}, {});
  const auto first = run({6, 0, 4, 2}, {1, -1, 3, -1, 2, -1, 0, -1});
  const auto second = run({1, 3, 5, 7}, {-1, 0, -1, 1, -1, 2, -1, 3});
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(first[i] + second[i], whole[i], 1e-5);
  // Where an expert lies does not change the order in which they add.
  EXPECT_EQ(run({7, 6, 5, 4, 3, 2, 1, 0}, {7, 6, 5, 4, 3, 2, 1, 0}), whole);
}

BATON_FOR_EACH_FUZZED(MoeRoutingTest);
BATON_FOR_EACH_FUZZED(MoeCombineTest);
BATON_FOR_EACH_FUZZED(MoeLayerTest);

}  // namespace
}  // namespace baton
