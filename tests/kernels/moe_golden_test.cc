// Layers of experts against the eager code of transformers: tests/golden/moe.json.
#include "tests/golden/golden_file.h"
#include "tests/kernels/hashed_floats.h"
#include "tests/kernels/moe_problem.h"

namespace baton {
namespace {

// As in make_moe_goldens.py.
constexpr int64_t kTokens = 20, kHidden = 32, kFfn = 24;
enum Seed { kInput = 1, kRouter, kGateUp, kDown, kBias, kSharedGate, kSharedUp, kSharedDown };

std::vector<float> Scaled(Seed seed, int64_t n, float scale) {
  std::vector<float> out = HashedFloats(seed, n);
  for (float& x : out) x *= scale;
  return out;
}

class MoeGoldenTest : public KernelTest {
 protected:
  PackedMatrix Pack(int64_t n, int64_t k, const std::vector<float>& values) {
    return std::move(PackExperts(*kernels_, n, k, DType::kF32, values)[0]);
  }
  std::vector<float> Multiply(const std::vector<float>& a, const PackedMatrix& weights) {
    const int64_t m = std::ssize(a) / weights.k();
    std::vector<float> out(m * weights.n());
    EXPECT_TRUE(kernels_
                    ->Gemm({.a = a.data(),
                            .a_stride = weights.k(),
                            .m = m,
                            .weights = &weights,
                            .out = out.data(),
                            .out_stride = weights.n()})
                    .ok());
    return out;
  }
  std::vector<float> SharedExpert() {
    std::vector<float> gate_up = Scaled(kSharedGate, kFfn * kHidden, 0.5f);
    const std::vector<float> up = Scaled(kSharedUp, kFfn * kHidden, 0.5f);
    gate_up.insert(gate_up.end(), up.begin(), up.end());
    const std::vector<float> h = Multiply(x_, Pack(2 * kFfn, kHidden, gate_up));
    std::vector<float> a(kTokens * kFfn);
    EXPECT_TRUE(kernels_
                    ->ActivationAndMul(
                        {.gate_up = h.data(), .num_tokens = kTokens, .dim = kFfn, .out = a.data()})
                    .ok());
    return Multiply(a, Pack(kHidden, kFfn, Scaled(kSharedDown, kHidden * kFfn, 0.5f)));
  }

  // The ids in the order of the golden file: by descending weight.
  void ExpectRouting(const MoeLayer& layer, int64_t k, const nlohmann::json& golden) {
    const std::vector<int32_t> ids = golden.at("ids");
    const std::vector<float> weights = golden.at("weights");
    ASSERT_EQ(std::ssize(ids), kTokens * k);
    for (int64_t t = 0; t < kTokens; ++t) {
      std::vector<int64_t> order(k);
      std::iota(order.begin(), order.end(), t * k);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return layer.weights[a] > layer.weights[b]; });
      for (int64_t c = 0; c < k; ++c) {
        EXPECT_EQ(layer.ids[order[c]], ids[t * k + c]) << t;
        EXPECT_NEAR(layer.weights[order[c]], weights[t * k + c], 2e-6 * weights[t * k + c]) << t;
      }
    }
  }

  // The whole layer, from the router's product to the sum.
  void Check(const std::string& name, MoeRoutingArgs routing, bool has_shared) {
    SCOPED_TRACE(name);
    const nlohmann::json golden = ReadGoldenJson("moe.json").at(name);
    const int64_t experts = routing.num_experts;
    const std::vector<float> logits =
        Multiply(x_, Pack(experts, kHidden, Scaled(kRouter, experts * kHidden, 1)));
    routing.logits = logits.data();
    routing.logits_stride = experts;
    routing.num_tokens = kTokens;
    MoeLayer layer{.dim = kHidden,
                   .ffn = kFfn,
                   .gate_up = PackExperts(*kernels_, 2 * kFfn, kHidden, DType::kF32,
                                          Scaled(kGateUp, experts * 2 * kFfn * kHidden, 0.5f)),
                   .down = PackExperts(*kernels_, kHidden, kFfn, DType::kF32,
                                       Scaled(kDown, experts * kHidden * kFfn, 0.5f))};
    const std::vector<float> shared = has_shared ? SharedExpert() : std::vector<float>();
    GuardedFloats out(kTokens * kHidden);
    ASSERT_TRUE(
        layer.Run(*kernels_, routing, x_.data(), has_shared ? shared.data() : nullptr, out.data())
            .ok());
    EXPECT_TRUE(out.GuardsIntact());
    ExpectRouting(layer, routing.top_k, golden);
    if (!golden.contains("out")) return;
    const std::vector<float> want = golden.at("out");
    for (int64_t i = 0; i < kTokens * kHidden; ++i) ASSERT_NEAR(out.data()[i], want[i], 3e-6) << i;
  }

  const std::vector<float> x_ = HashedFloats(kInput, kTokens* kHidden);
};

TEST_P(MoeGoldenTest, LayersOfMixtralQwenAndOlmoeAreThoseOfTransformers) {
  Check("mixtral", {.num_experts = 8, .top_k = 2, .renormalize = true}, false);
  Check("qwen3_moe", {.num_experts = 16, .top_k = 4, .renormalize = true}, false);
  Check("olmoe", {.num_experts = 16, .top_k = 8}, false);
}

TEST_P(MoeGoldenTest, LayersOfDeepseekWithGroupsAndSharedExpertsAreThoseOfTransformers) {
  Check("deepseek_v2",
        {.num_experts = 16, .top_k = 3, .num_groups = 4, .top_groups = 2, .scaling_factor = 1.5f},
        true);
  const std::vector<float> bias = Scaled(kBias, 16, 0.25f);
  Check("deepseek_v3",
        {.num_experts = 16,
         .top_k = 4,
         .scoring = MoeScoring::kSigmoid,
         .renormalize = true,
         .selection_bias = bias.data(),
         .num_groups = 4,
         .top_groups = 2,
         .scaling_factor = 2.5f},
        true);
}

TEST_P(MoeGoldenTest, SoftmaxOverTheChosenIsSoftmaxRenormalised) {
  Check("gpt_oss", {.num_experts = 16, .top_k = 4, .renormalize = true}, false);
}

BATON_FOR_EACH_KERNEL_SET(MoeGoldenTest);

}  // namespace
}  // namespace baton
