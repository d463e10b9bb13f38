// Random arguments of the operators of experts, plausible and hostile: a correct result or a
// Status, never a read of poison or a write outside the destination. BATON_FUZZ_SEED and
// BATON_FUZZ_CASES choose others.
#include "tests/kernels/fuzz_fixture.h"
#include "tests/kernels/moe_problem.h"

namespace baton {
namespace {

class MoeFuzzTest : public FuzzTest {
 protected:
  struct Shape {
    int64_t tokens, experts, k, dim, ffn;
  };

  Shape RandomShape() {
    Shape s{Below(Chance(20) ? 300 : 12), 1 + Below(Chance(20) ? 100 : 12), 0, 1 + Below(70),
            1 + Below(40)};
    s.k = 1 + Below(std::min<int64_t>(s.experts, 8));
    return s;
  }
  // Without pointers to outputs; borrows logits_ and bias_.
  MoeRoutingArgs RandomRouting(const Shape& s, uint64_t seed) {
    logits_ = RandomFloats(seed, s.tokens * s.experts);
    bias_ = RandomFloats(seed + 1, s.experts);
    MoeRoutingArgs args{.logits = logits_.data(),
                        .logits_stride = s.experts,
                        .num_tokens = s.tokens,
                        .num_experts = s.experts,
                        .top_k = s.k,
                        .scoring = static_cast<MoeScoring>(Below(2)),
                        .renormalize = Chance(50),
                        .selection_bias = Chance(50) ? bias_.data() : nullptr,
                        .scaling_factor = Chance(50) ? 1.0f : 2.5f};
    const int64_t groups = 1 + Below(6);
    if (s.experts % groups == 0) {
      args.num_groups = groups;
      args.top_groups = (s.k * groups + s.experts - 1) / s.experts;
      args.top_groups += Below(groups - args.top_groups + 1);
    }
    return args;
  }
  // With `of_magnitudes` the sums of the products' magnitudes.
  std::vector<double> Rows(const std::vector<float>& w, int64_t e, int64_t n, int64_t k,
                           const std::vector<double>& x, bool of_magnitudes = false) {
    std::vector<double> out(n);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t d = 0; d < k; ++d) {
        const double product = double{w[(e * n + j) * k + d]} * x[d];
        out[j] += of_magnitudes ? std::fabs(product) : product;
      }
    }
    return out;
  }

  std::vector<float> logits_, bias_;
};

// A whole layer against doubles, for the experts that `map` keeps.
TEST_P(MoeFuzzTest, PlausibleLayersAreCorrect) {
  const int64_t cases = FuzzCases();
  const int64_t first = FirstFuzzSeed();
  auto threaded = MakeFuzzed(GetParam(), 3);
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    const Shape s = RandomShape();
    const MoeRoutingArgs routing = RandomRouting(s, seed);
    const DType compute = ComputeOf(*threaded);
    // Of what is rounded between the products.
    const double unit = compute == DType::kF32 ? 0 : compute == DType::kF16 ? 0x1p-11 : 0x1p-8;
    const auto x = Rounded(compute, RandomFloats(seed + 2, s.tokens * s.dim));
    const auto gate_up =
        Rounded(compute, RandomFloats(seed + 3, s.experts * 2 * s.ffn * s.dim));
    const auto down = Rounded(compute, RandomFloats(seed + 4, s.experts * s.dim * s.ffn));
    MoeLayer layer{.dim = s.dim, .ffn = s.ffn, .compute = compute};
    const auto slice = [](const std::vector<float>& all, int64_t e, int64_t size) {
      return std::vector<float>(all.begin() + e * size, all.begin() + (e + 1) * size);
    };
    const bool mapped = Chance(40);
    for (int64_t e = 0; e < s.experts; ++e) {
      const bool local = !mapped || Chance(60);
      if (mapped) {
        layer.expert_map.push_back(local ? static_cast<int32_t>(layer.gate_up.size()) : -1);
      }
      if (!local) continue;
      for (auto& m : PackExperts(*threaded, 2 * s.ffn, s.dim, DType::kF32,
                                 slice(gate_up, e, 2 * s.ffn * s.dim))) {
        layer.gate_up.push_back(std::move(m));
      }
      for (auto& m :
           PackExperts(*threaded, s.dim, s.ffn, DType::kF32, slice(down, e, s.dim * s.ffn))) {
        layer.down.push_back(std::move(m));
      }
    }
    GuardedFloats out(s.tokens * s.dim);
    const absl::Status status = layer.Run(*threaded, routing, x.data(), nullptr, out.data());
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(out.GuardsIntact());
    for (int64_t t = 0; t < s.tokens; ++t) {
      const RoutingReference want = ReferenceRouting(routing, logits_.data() + t * s.experts);
      std::vector<double> sum(s.dim), rounding(s.dim);
      for (int64_t c = 0; c < s.k; ++c) {
        const int32_t e = want.ids[c];
        ASSERT_EQ(layer.ids[t * s.k + c], e) << t << ", " << c;
        if (mapped && layer.expert_map[e] < 0) continue;
        const std::vector<double> token(x.begin() + t * s.dim, x.begin() + (t + 1) * s.dim);
        const auto h = Rows(gate_up, e, 2 * s.ffn, s.dim, token);
        std::vector<double> a(s.ffn);
        for (int64_t i = 0; i < s.ffn; ++i) a[i] = h[i] / (1 + std::exp(-h[i])) * h[s.ffn + i];
        const auto y = Rows(down, e, s.dim, s.ffn, a);
        const auto most = Rows(down, e, s.dim, s.ffn, a, /*of_magnitudes=*/true);
        for (int64_t d = 0; d < s.dim; ++d) {
          sum[d] += want.weights[c] * y[d];
          rounding[d] += want.weights[c] * unit * most[d];
        }
      }
      for (int64_t d = 0; d < s.dim; ++d) {
        const double bound = 1e-4 * (1 + std::fabs(sum[d])) + rounding[d];
        ASSERT_NEAR(out.data()[t * s.dim + d], sum[d], bound) << t << ", " << d;
      }
    }
  }
}

TEST_P(MoeFuzzTest, HostileRoutingAndAlignArgumentsAreRefusedOrHarmless) {
  const int64_t cases = 20 * FuzzCases();
  const int64_t first = FirstFuzzSeed();
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    const Shape s{.tokens = 5, .experts = 12, .k = 3};
    MoeRoutingArgs routing = RandomRouting(s, seed);
    for (float& x : logits_) {
      if (Chance(20)) x = Chance(50) ? NAN : Chance(50) ? INFINITY : -INFINITY;
    }
    constexpr int32_t kCanary = -77;
    std::vector<int32_t> ids(17, kCanary), order(17, kCanary), positions = order, offsets = order;
    GuardedFloats weights(15);
    routing.expert_ids = ids.data() + 1;
    routing.weights = weights.data();
    const int64_t what = Below(16);
    if (what == 0) SpoilDown(routing.num_tokens);
    if (what == 1) SpoilDown(routing.num_experts);
    if (what == 2) SpoilDown(routing.top_k);
    if (what == 3) Spoil(routing.num_groups);
    if (what == 4) Spoil(routing.top_groups);
    if (what == 5) SpoilDown(routing.logits_stride);
    if (what == 6) routing.scaling_factor = Chance(50) ? NAN : INFINITY;
    if (what == 7) routing.scoring = static_cast<MoeScoring>(2 + Below(200));
    const absl::Status routed = kernels_->MoeRouting(routing);
    ASSERT_TRUE(weights.GuardsIntact() && ids.front() == kCanary && ids.back() == kCanary);
    if (!routed.ok()) {
      ASSERT_EQ(routed.code(), absl::StatusCode::kInvalidArgument);
      for (const int32_t id : ids) ASSERT_EQ(id, kCanary);
      continue;
    }
    // Whatever the logits are: different experts.
    for (int64_t t = 0; t < std::min<int64_t>(routing.num_tokens, 5); ++t) {
      const int32_t* of = routing.expert_ids + t * routing.top_k;
      for (int64_t c = 0; c < routing.top_k; ++c) {
        ASSERT_TRUE(of[c] >= 0 && of[c] < routing.num_experts);
        ASSERT_EQ(std::find(of, of + c, of[c]), of + c);
      }
    }
    std::vector<int32_t> map = {0, 3, -1, 1, -1, 2, -1, -1, 5, 4, -1, -1};
    std::fill(ids.begin(), ids.begin() + 1, 0);
    for (int32_t& id : ids) id = std::max(id, -1);
    MoeAlignArgs align{.expert_ids = ids.data() + 1,
                       .num_tokens = 5,
                       .top_k = 3,
                       .num_experts = 12,
                       .expert_map = map.data(),
                       .num_local_experts = 6,
                       .row_order = order.data() + 1,
                       .row_positions = positions.data() + 1,
                       .expert_offsets = offsets.data() + 1};
    if (what == 8) SpoilDown(align.num_tokens);
    if (what == 9) SpoilDown(align.top_k);
    if (what == 10) SpoilDown(align.num_experts);
    if (what == 11) SpoilDown(align.num_local_experts);
    if (what == 12) Spoil(map[Below(12)]);
    if (what == 13) Spoil(ids[1 + Below(15)]);
    const absl::Status status = kernels_->MoeAlign(align);
    for (const auto* v : {&order, &positions}) {
      ASSERT_TRUE(v->front() == kCanary && v->back() == kCanary);
      for (const int32_t x : *v) ASSERT_TRUE(status.ok() || x == kCanary);
    }
    ASSERT_TRUE(offsets[0] == kCanary && offsets[8] == kCanary);
    ASSERT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST_P(MoeFuzzTest, HostileExpertGemmAndCombineArgumentsAreRefusedOrHarmless) {
  const int64_t cases = 20 * FuzzCases();
  const int64_t first = FirstFuzzSeed();
  const int64_t n = 9, k = 7, rows = 6;
  const auto packed = PackExperts(*kernels_, n, k, DType::kF32, RandomFloats(1, 4 * n * k));
  const std::vector<float> a = RandomFloats(2, 3 * k), y = RandomFloats(3, rows * n);
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    std::vector<int32_t> offsets = {0, 2, 2, 5, 6}, order = {0, 5, 1, 2, 3, 4};
    std::vector<int32_t> positions = {4, -1, 0, 2, 5, 1}, ids = {0, 1, 2, 3, 2, 1};
    GuardedFloats out(rows * n);
    ExpertGemmArgs gemm{.a = a.data(),
                        .a_stride = k,
                        .num_a_rows = 3,
                        .row_order = order.data(),
                        .top_k = 2,
                        .expert_offsets = offsets.data(),
                        .num_experts = 4,
                        .weights = packed.data(),
                        .out = out.data(),
                        .out_stride = n};
    MoeCombineArgs combine{.y = y.data(),
                           .y_stride = n,
                           .num_rows = rows,
                           .expert_ids = ids.data(),
                           .row_positions = positions.data(),
                           .weights = y.data(),
                           .num_tokens = 3,
                           .top_k = 2,
                           .dim = n,
                           .out = out.data(),
                           .out_stride = n};
    const int64_t what = Below(16);
    if (what == 0) SpoilDown(gemm.num_a_rows);
    if (what == 1) SpoilDown(gemm.a_stride);
    if (what == 2) Spoil(order[Below(rows)]);
    if (what == 3) Spoil(gemm.top_k);
    if (what == 4) SpoilDown(offsets[Below(5)]);
    if (what == 5) SpoilDown(gemm.num_experts);
    if (what == 6) SpoilDown(gemm.out_stride);
    if (what == 7) gemm.row_order = nullptr;
    if (what == 8) SpoilDown(combine.num_rows);
    if (what == 9) SpoilDown(combine.y_stride);
    if (what == 10) Spoil(positions[Below(rows)]);
    if (what == 11) Spoil(ids[Below(rows)]);
    if (what == 12) SpoilDown(combine.num_tokens);
    if (what == 13) SpoilDown(combine.top_k);
    if (what == 14) SpoilDown(combine.dim);
    if (what == 15) SpoilDown(combine.out_stride);
    const absl::Status status =
        what < 8 ? kernels_->ExpertGemm(gemm) : kernels_->MoeCombine(combine);
    EXPECT_TRUE(out.GuardsIntact());
    for (const float x : out.values()) ASSERT_TRUE(status.ok() || x == GuardedFloats::kCanary);
    ASSERT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
  }
}

BATON_FOR_EACH_FUZZED(MoeFuzzTest);

}  // namespace
}  // namespace baton
