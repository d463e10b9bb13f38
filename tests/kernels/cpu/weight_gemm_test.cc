#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/product_order.h"

namespace baton {
namespace {

struct Product {
  int64_t m, n, k;
  DType dtype = DType::kF32;
  DType a_rounded_to = DType::kF32;
  std::vector<float> a, bias;
  std::vector<float> b;  // [n, k], as stored.
  PackedMatrix packed;

  Product(CpuKernels& kernels, int64_t m, int64_t n, int64_t k, DType dtype,
          DType a_rounded_to = DType::kF32)
      : m(m),
        n(n),
        k(k),
        dtype(dtype),
        a_rounded_to(a_rounded_to),
        a(Rounded(a_rounded_to, RandomFloats(m + 1, m * k))),
        bias(RandomFloats(n, n)) {
    b = Rounded(dtype, RandomFloats(k, n * k));
    const std::vector<std::byte> stored = Encode(dtype, b);
    const WeightRows rows{stored.data(), dtype, n};
    packed = *kernels.PackWeights({.parts = &rows, .num_parts = 1, .k = k});
  }

  GemmArgs Args(float* out) const {
    return {.a = a.data(),
            .a_stride = k,
            .m = m,
            .a_rounded_to = a_rounded_to,
            .weights = &packed,
            .bias = bias.data(),
            .out = out,
            .out_stride = n};
  }
};

// What only the CPU has; gemm_test.cc has what every device does.
using WeightGemmTest = KernelTest;

TEST_P(WeightGemmTest, AddsProductsInTheOrderThatItsNumericsStand) {
  for (const ProductTypes& types : kProductTypes) {
    const std::string_view numerics = kernels_->numerics(types.activations);
    for (const float scale : {1.0f, 0x1p-63f}) {  // The second makes subnormal products.
      Product p(*kernels_, 14, 37, 1301, types.weights, types.activations);
      for (float& x : p.a) x *= scale;
      std::vector<std::byte> stored;
      if (types.weights != DType::kF16) {
        for (float& x : p.b) x *= scale;
        stored = Encode(types.weights, p.b);
        const WeightRows rows{stored.data(), types.weights, p.n};
        p.packed = *kernels_->PackWeights({.parts = &rows, .num_parts = 1, .k = p.k});
      }
      GuardedFloats out(p.m * p.n);
      GemmArgs args = p.Args(out.data());
      args.bias = nullptr;
      ASSERT_TRUE(kernels_->Gemm(args).ok());
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
          const float* a = p.a.data() + i * p.k;
          const float* b = p.b.data() + j * p.k;
          ASSERT_EQ(out.data()[i * p.n + j], SumOfProducts(numerics, a, b, p.k)) << i << ", " << j;
        }
      }
    }
  }
}

TEST_P(WeightGemmTest, ThreadsDoNotChangeBits) {
  const Product p(*kernels_, 200, 130, 64, DType::kBF16, DType::kBF16);
  GuardedFloats one(p.m * p.n);
  ASSERT_TRUE(kernels_->Gemm(p.Args(one.data())).ok());
  for (const int threads : {2, 3, 5}) {
    GuardedFloats many(p.m * p.n);
    ASSERT_TRUE(MakeTestKernels(GetParam(), threads)->Gemm(p.Args(many.data())).ok());
    EXPECT_EQ(many.values(), one.values()) << threads;
  }
}

TEST_P(WeightGemmTest, PackingJoinsPartsAndWidensMixedTypes) {
  const std::vector<float> first = RandomFloats(1, 5 * 3);
  const std::vector<float> second = Rounded(DType::kBF16, RandomFloats(2, 14 * 3));
  const std::vector<std::byte> stored = Encode(DType::kBF16, second);
  const WeightRows parts[] = {{reinterpret_cast<const std::byte*>(first.data()), DType::kF32, 5},
                              {stored.data(), DType::kBF16, 14}};
  auto packed = kernels_->PackWeights({.parts = parts, .num_parts = 2, .k = 3});
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(packed->n(), 19);
  EXPECT_EQ(packed->dtype(), DType::kF32);
  std::vector<float> expected = first;
  expected.insert(expected.end(), second.begin(), second.end());
  std::vector<int32_t> rows(19);
  for (int i = 0; i < 19; ++i) rows[i] = i;
  GuardedFloats out(19 * 3);
  ASSERT_TRUE(
      kernels_
          ->Embedding(
              {.shards = {&*packed}, .tokens = rows.data(), .num_tokens = 19, .out = out.data()})
          .ok());
  EXPECT_EQ(out.values(), expected);
}

TEST_P(WeightGemmTest, PackingReadsWeightsAtAnyAlignment) {
  const std::vector<float> values = RandomFloats(3, 4 * 5);
  std::vector<std::byte> shifted(values.size() * 4 + 1);
  std::memcpy(shifted.data() + 1, values.data(), values.size() * 4);
  const WeightRows part{shifted.data() + 1, DType::kF32, 4};
  auto packed = kernels_->PackWeights({.parts = &part, .num_parts = 1, .k = 5});
  ASSERT_TRUE(packed.ok());
  const int32_t token = 3;
  GuardedFloats out(5);
  ASSERT_TRUE(
      kernels_
          ->Embedding({.shards = {&*packed}, .tokens = &token, .num_tokens = 1, .out = out.data()})
          .ok());
  EXPECT_EQ(out.values(), std::vector<float>(values.begin() + 15, values.end()));
}

BATON_FOR_EACH_KERNEL_SET(WeightGemmTest);

}  // namespace
}  // namespace baton
