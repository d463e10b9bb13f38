#include "kernels/api/model_ops.h"

#include <vector>

#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

constexpr int64_t kRows = 3, kDim = 8;

class ModelOpsTest : public testing::Test {
 protected:
  CpuKernels ops_{*SelectKernelSet("portable"), 1};
};

// A device without kernels for them: what the operators apart give, and of refused arguments none.
TEST_F(ModelOpsTest, AGatedProductIsTheProductAndThenItsActivation) {
  const std::vector<float> a = RandomFloats(1, kRows * kDim), w = RandomFloats(2, 2 * kDim * kDim);
  const auto bytes = Encode(DType::kF32, w);
  const WeightRows part{bytes.data(), DType::kF32, 2 * kDim};
  const PackedMatrix weights = *ops_.PackWeights({.parts = &part, .num_parts = 1, .k = kDim});
  std::vector<float> between(kRows * 2 * kDim, 7), out(kRows * kDim, 7);
  GatedGemmArgs args{.product = {.a = a.data(),
                                 .a_stride = kDim,
                                 .m = kRows,
                                 .weights = &weights,
                                 .out = between.data(),
                                 .out_stride = 2 * kDim},
                     .activation = ActivationKind::kGelu,
                     .out = out.data(),
                     .out_stride = kDim - 1};
  EXPECT_FALSE(ops_.GatedGemm(args).ok());
  EXPECT_EQ(between, std::vector<float>(between.size(), 7));
  args.out_stride = kDim;
  ASSERT_EQ(ops_.GatedGemm(args), absl::OkStatus());
  std::vector<float> product(between.size()), expected(out.size());
  args.product.out = product.data();
  ASSERT_EQ(ops_.Gemm(args.product), absl::OkStatus());
  ASSERT_EQ(ops_.ActivationAndMul({.gate_up = product.data(),
                                   .num_tokens = kRows,
                                   .dim = kDim,
                                   .activation = ActivationKind::kGelu,
                                   .out = expected.data()}),
            absl::OkStatus());
  EXPECT_EQ(out, expected);
}

TEST_F(ModelOpsTest, AProductWithANormIsTheProductAndThenTheNormOfItsSumWithTheResidual) {
  const std::vector<float> a = RandomFloats(1, kRows * kDim), w = RandomFloats(2, kDim * kDim);
  const std::vector<float> weight = RandomFloats(5, kDim);
  const auto bytes = Encode(DType::kF32, w);
  const WeightRows part{bytes.data(), DType::kF32, kDim};
  const PackedMatrix weights = *ops_.PackWeights({.parts = &part, .num_parts = 1, .k = kDim});
  std::vector<float> between(kRows * kDim, 7), out = between,
                                               residual = RandomFloats(6, kRows * kDim);
  std::vector<float> product = between, expected = between, sum = residual;
  GemmAndNormArgs args{.product = {.a = a.data(),
                                   .a_stride = kDim,
                                   .m = kRows,
                                   .weights = &weights,
                                   .out = between.data(),
                                   .out_stride = kDim},
                       .weight = weight.data(),
                       .one_plus_weight = true,
                       .eps = 1e-5f,
                       .residual = residual.data(),
                       .residual_stride = kDim,
                       .out = out.data(),
                       .out_stride = kDim - 1};
  EXPECT_FALSE(ops_.GemmAndNorm(args).ok());
  EXPECT_EQ(between, std::vector<float>(between.size(), 7));
  args.out_stride = kDim;
  ASSERT_EQ(ops_.GemmAndNorm(args), absl::OkStatus());
  args.product.out = product.data();
  ASSERT_EQ(ops_.Gemm(args.product), absl::OkStatus());
  ASSERT_EQ(ops_.RmsNorm({.x = product.data(),
                          .x_stride = kDim,
                          .num_tokens = kRows,
                          .dim = kDim,
                          .weight = weight.data(),
                          .one_plus_weight = true,
                          .eps = 1e-5f,
                          .residual = sum.data(),
                          .residual_stride = kDim,
                          .out = expected.data(),
                          .out_stride = kDim}),
            absl::OkStatus());
  EXPECT_EQ(out, expected);
  EXPECT_EQ(residual, sum);
}

TEST_F(ModelOpsTest, RopeAndCacheTurnsQueriesAndKeysAndThenWrites) {
  const std::vector<float> angles = RandomFloats(3, kRows * kDim);
  const std::vector<int64_t> slots = {2, -1, 0};
  // Rows of keys, values and two heads of queries.
  const int64_t stride = 4 * kDim;
  for (const int64_t rotary_dim : {int64_t{0}, kDim - 2}) {
    for (const bool has_q : {false, true}) {
      std::vector<float> rows = RandomFloats(4, kRows * stride), apart = rows;
      std::vector<float> k(4 * kDim, 7), v = k, k_apart = k, v_apart = k;
      const auto args = [&](std::vector<float>& x, std::vector<float>& keys,
                            std::vector<float>& values) {
        const CachePlane plane{.num_blocks = 2,
                               .num_heads = 1,
                               .block_size = 2,
                               .dim = kDim,
                               .block_stride = 2 * kDim};
        RopeAndCacheArgs args{.q = has_q ? x.data() + 2 * kDim : nullptr,
                              .q_stride = stride,
                              .num_heads = 2,
                              .key = x.data(),
                              .key_stride = stride,
                              .value = x.data() + kDim,
                              .value_stride = stride,
                              .num_tokens = kRows,
                              .rotary_dim = rotary_dim,
                              .cos = angles.data(),
                              .sin = angles.data() + 2,
                              .slot_mapping = slots.data(),
                              .k_cache = plane,
                              .v_cache = plane};
        args.k_cache.data = reinterpret_cast<std::byte*>(keys.data());
        args.v_cache.data = reinterpret_cast<std::byte*>(values.data());
        return args;
      };
      ASSERT_EQ(ops_.RopeAndCache(args(rows, k, v)), absl::OkStatus());
      const RopeAndCacheArgs of_apart = args(apart, k_apart, v_apart);
      ASSERT_TRUE(!has_q || ops_.Rope(of_apart.RopeOfQ()).ok());
      ASSERT_EQ(ops_.Rope(of_apart.RopeOfKey()), absl::OkStatus());
      ASSERT_EQ(ops_.ReshapeAndCache(of_apart.Write()), absl::OkStatus());
      EXPECT_EQ(rows, apart);
      EXPECT_EQ(k, k_apart);
      EXPECT_EQ(v, v_apart);
    }
  }
}

}  // namespace
}  // namespace baton
