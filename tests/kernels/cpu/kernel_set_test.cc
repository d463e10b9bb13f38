#include "kernels/cpu/kernel_set.h"

#include <functional>
#include <numeric>

#include "tests/kernels/moe_problem.h"

namespace baton {
namespace {

// Runs one operator on the portable set with one thread and on every set with several threads; the
// bits must be equal.
void ExpectSameBits(const std::string& what,
                    const std::function<std::vector<float>(CpuKernels&)>& run) {
  const std::vector<float> expected = run(*MakeTestKernels("portable"));
  for (const std::string& set : KernelSets()) {
    for (const int threads : {1, 3}) {
      const std::vector<float> got = run(*MakeTestKernels(set, threads));
      ASSERT_EQ(got.size(), expected.size());
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
          << what << " on " << set << " with " << threads << " threads";
    }
  }
}

TEST(KernelSetTest, MatrixProductsHaveTheSameBitsOnEverySet) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const int64_t m = 40, n = 75, k = 130;
    const std::vector<float> a = RandomFloats(1, m * k);
    const std::vector<std::byte> b = Encode(dtype, RandomFloats(2, n * k));
    ExpectSameBits("gemm", [&](CpuKernels& kernels) {
      const WeightRows part{b.data(), dtype, n};
      const PackedMatrix packed = *kernels.PackWeights({.parts = &part, .num_parts = 1, .k = k});
      std::vector<float> out(m * n);
      EXPECT_TRUE(kernels
                      .Gemm({.a = a.data(),
                             .a_stride = k,
                             .m = m,
                             .weights = &packed,
                             .out = out.data(),
                             .out_stride = n})
                      .ok());
      return out;
    });
  }
}

TEST(KernelSetTest, SubnormalProductsHaveTheSameBitsOnEverySet) {
  const int64_t m = 3, n = 20, k = 9;
  std::vector<float> a = RandomFloats(3, m * k);
  std::vector<float> b = RandomFloats(4, n * k);
  for (float& x : a) x *= 0x1p-75f;
  for (float& x : b) x *= 0x1p-70f;
  ExpectSameBits("subnormal gemm", [&](CpuKernels& kernels) {
    const WeightRows part{reinterpret_cast<const std::byte*>(b.data()), DType::kF32, n};
    const PackedMatrix packed = *kernels.PackWeights({.parts = &part, .num_parts = 1, .k = k});
    std::vector<float> out(m * n);
    EXPECT_TRUE(kernels
                    .Gemm({.a = a.data(),
                           .a_stride = k,
                           .m = m,
                           .weights = &packed,
                           .out = out.data(),
                           .out_stride = n})
                    .ok());
    return out;
  });
}

TEST(KernelSetTest, NormsRotationsAndActivationsHaveTheSameBitsOnEverySet) {
  const int64_t tokens = 300, dim = 45;
  const std::vector<float> x = RandomFloats(5, tokens * 2 * dim);
  const std::vector<float> weight = RandomFloats(6, dim);
  ExpectSameBits("rms_norm", [&](CpuKernels& kernels) {
    std::vector<float> out(tokens * dim);
    EXPECT_TRUE(kernels
                    .RmsNorm({.x = x.data(),
                              .x_stride = dim,
                              .num_tokens = tokens,
                              .dim = dim,
                              .weight = weight.data(),
                              .eps = 1e-5f,
                              .out = out.data(),
                              .out_stride = dim})
                    .ok());
    return out;
  });
  ExpectSameBits("rope", [&](CpuKernels& kernels) {
    std::vector<float> out(x.begin(), x.begin() + tokens * 44);
    EXPECT_TRUE(kernels
                    .Rope({.x = out.data(),
                           .x_stride = 44,
                           .num_tokens = tokens,
                           .num_heads = 1,
                           .head_dim = 44,
                           .rotary_dim = 44,
                           .cos = x.data(),
                           .sin = x.data() + 22 * tokens})
                    .ok());
    return out;
  });
  for (const auto activation : {ActivationKind::kSilu, ActivationKind::kGelu,
                                ActivationKind::kGeluTanh, ActivationKind::kRelu}) {
    ExpectSameBits("activation", [&](CpuKernels& kernels) {
      std::vector<float> out(tokens * dim);
      EXPECT_TRUE(kernels
                      .ActivationAndMul({.gate_up = x.data(),
                                         .num_tokens = tokens,
                                         .dim = dim,
                                         .activation = activation,
                                         .round_to = DType::kBF16,
                                         .out = out.data()})
                      .ok());
      return out;
    });
  }
}

TEST(KernelSetTest, LayerNormAndSoftcapHaveTheSameBitsOnEverySet) {
  const int64_t tokens = 300, dim = 45;
  const std::vector<float> x = RandomFloats(5, tokens * dim);
  const std::vector<float> weight = RandomFloats(6, dim);
  ExpectSameBits("layer_norm", [&](CpuKernels& kernels) {
    std::vector<float> out(tokens * dim);
    EXPECT_TRUE(kernels
                    .LayerNorm({.x = x.data(),
                                .x_stride = dim,
                                .num_tokens = tokens,
                                .dim = dim,
                                .weight = weight.data(),
                                .bias = weight.data(),
                                .eps = 1e-5f,
                                .out = out.data(),
                                .out_stride = dim})
                    .ok());
    return out;
  });
  ExpectSameBits("softcap", [&](CpuKernels& kernels) {
    std::vector<float> out = x;
    EXPECT_TRUE(
        kernels
            .Softcap(
                {.x = out.data(), .x_stride = dim, .num_tokens = tokens, .dim = dim, .cap = 0.5f})
            .ok());
    return out;
  });
}

TEST(KernelSetTest, LayersOfExpertsHaveTheSameBitsOnEverySet) {
  const int64_t tokens = 50, experts = 20, dim = 45, ffn = 21;
  const std::vector<float> x = RandomFloats(7, tokens * dim);
  const std::vector<float> logits = RandomFloats(8, tokens * experts);
  for (const auto scoring : {MoeScoring::kSoftmax, MoeScoring::kSigmoid}) {
    ExpectSameBits("layer of experts", [&](CpuKernels& kernels) {
      const auto weights = [&](int64_t n, int64_t k) {
        return PackExperts(kernels, n, k, DType::kBF16, RandomFloats(n, experts * n * k));
      };
      MoeLayer layer{
          .dim = dim, .ffn = ffn, .gate_up = weights(2 * ffn, dim), .down = weights(dim, ffn)};
      std::vector<float> out(tokens * dim);
      EXPECT_TRUE(layer
                      .Run(kernels,
                           {.logits = logits.data(),
                            .logits_stride = experts,
                            .num_tokens = tokens,
                            .num_experts = experts,
                            .top_k = 5,
                            .scoring = scoring,
                            .renormalize = true,
                            .selection_bias = x.data()},
                           x.data(), x.data(), out.data())
                      .ok());
      out.insert(out.end(), layer.weights.begin(), layer.weights.end());
      return out;
    });
  }
}

TEST(KernelSetTest, CacheWritesAndAttentionHaveTheSameBitsOnEverySet) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const int32_t heads = 6, kv_heads = 2, dim = 20, tokens = 560, block_size = 16;
    const std::vector<float> q = RandomFloats(7, tokens * heads * dim);
    const std::vector<float> k = RandomFloats(8, tokens * kv_heads * dim);
    const std::vector<float> v = RandomFloats(9, tokens * kv_heads * dim);
    std::vector<int64_t> slots(tokens);
    std::iota(slots.begin(), slots.end(), 0);
    std::vector<int32_t> table(tokens / block_size);
    std::iota(table.begin(), table.end(), 0);
    const int32_t cu[] = {0, tokens};
    const int32_t lens[] = {tokens};
    ExpectSameBits("attention", [&](CpuKernels& kernels) {
      CachePlane k_plane{.dtype = dtype,
                         .num_blocks = tokens / block_size,
                         .num_heads = kv_heads,
                         .block_size = block_size,
                         .dim = dim,
                         .block_stride = kv_heads * block_size * dim};
      CachePlane v_plane = k_plane;
      std::vector<std::byte> k_bytes(k.size() * 4), v_bytes(v.size() * 4);
      k_plane.data = k_bytes.data();
      v_plane.data = v_bytes.data();
      EXPECT_TRUE(kernels
                      .ReshapeAndCache({.key = k.data(),
                                        .key_stride = kv_heads * dim,
                                        .value = v.data(),
                                        .value_stride = kv_heads * dim,
                                        .slot_mapping = slots.data(),
                                        .num_tokens = tokens,
                                        .k_cache = k_plane,
                                        .v_cache = v_plane})
                      .ok());
      std::vector<float> out(q.size());
      EXPECT_TRUE(kernels
                      .VarlenAttention({.q = q.data(),
                                        .q_stride = heads * dim,
                                        .num_heads = heads,
                                        .num_seqs = 1,
                                        .cu_seqlens_q = cu,
                                        .seq_lens = lens,
                                        .block_table = table.data(),
                                        .max_blocks = static_cast<int64_t>(table.size()),
                                        .k_cache = k_plane,
                                        .v_cache = v_plane,
                                        .scores = {.scale = 1.7f},
                                        .out = out.data(),
                                        .out_stride = heads * dim})
                      .ok());
      return out;
    });
  }
}

}  // namespace
}  // namespace baton
