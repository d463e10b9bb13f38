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
  template <typename Sum>
  std::vector<Sum> Loop() const {
    std::vector<Sum> out;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        Sum sum = 0;
        for (int64_t d = 0; d < k; ++d) sum += Sum{a[i * k + d]} * Sum{b[j * k + d]};
        out.push_back(sum + Sum{bias[j]});
      }
    }
    return out;
  }
};

class GemmTest : public KernelTest {};

TEST_P(GemmTest, AgreesWithDoubleLoopForEveryRowCountAndOddSizes) {
  for (const ProductTypes& types : kProductTypes) {
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 25, 33}) {
      for (const auto& [n, k] : {std::pair{1, 1}, {16, 8}, {17, 33}, {63, 70}, {80, 129}}) {
        const Product p(*kernels_, m, n, k, types.weights, types.activations);
        GuardedFloats out(m * n);
        ASSERT_TRUE(kernels_->Gemm(p.Args(out.data())).ok());
        EXPECT_TRUE(out.GuardsIntact());
        ExpectAccurate(out.values(), p.Loop<float>(), p.Loop<double>(),
                       std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k));
      }
    }
  }
}

// k passes through several blocks of the cache, rows through several tiles.
TEST_P(GemmTest, RowHasTheSameBitsAloneAndAmongOthers) {
  for (const ProductTypes& types : kProductTypes) {
    for (const int64_t m : {5, 12, 23, 40, 70}) {
      const Product p(*kernels_, m, 83, 2055, types.weights, types.activations);
      GuardedFloats all(p.m * p.n);
      ASSERT_TRUE(kernels_->Gemm(p.Args(all.data())).ok());
      for (int64_t row = 0; row < p.m; row += 3) {
        GuardedFloats one(p.n);
        GemmArgs args = p.Args(one.data());
        args.a = args.a.At(row * p.k);
        args.m = 1;
        ASSERT_TRUE(kernels_->Gemm(args).ok());
        EXPECT_EQ(std::memcmp(one.data(), all.data() + row * p.n, p.n * 4), 0) << row;
      }
    }
  }
}

// Also with enough work for the pool.
TEST_P(GemmTest, SomeRowsOfTheWeightsHaveTheBitsThatTheyHaveAmongAll) {
  for (const ProductTypes& types : kProductTypes) {
    for (const auto& [m, k] : {std::pair{1, 70}, {13, 33}, {40, 1030}}) {
      const Product p(*kernels_, m, 150, k, types.weights, types.activations);
      GuardedFloats all(p.m * p.n);
      ASSERT_TRUE(kernels_->Gemm(p.Args(all.data())).ok());
      for (const auto& [first, rows] : {std::pair{0, 150}, {0, 45}, {32, 40}, {128, 0}, {64, 64}}) {
        GemmArgs args = p.Args(nullptr);
        args.first_row = first;
        args.num_rows = rows;
        const int64_t n = args.n();
        ASSERT_EQ(n, rows == 0 ? 150 - first : rows);
        GuardedFloats some(p.m * n);
        args.out = some.data();
        args.out_stride = n;
        args.bias += first;
        ASSERT_TRUE(kernels_->Gemm(args).ok());
        EXPECT_TRUE(some.GuardsIntact());
        for (int64_t i = 0; i < p.m; ++i) {
          ASSERT_EQ(std::memcmp(some.data() + i * n, all.data() + i * p.n + first, n * 4), 0)
              << first << " " << rows << " row " << i;
        }
      }
    }
  }
}

TEST_P(GemmTest, AddsProductsInTheOrderThatItsNumericsStand) {
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

TEST_P(GemmTest, ThreadsDoNotChangeBits) {
  const Product p(*kernels_, 200, 130, 64, DType::kBF16, DType::kBF16);
  GuardedFloats one(p.m * p.n);
  ASSERT_TRUE(kernels_->Gemm(p.Args(one.data())).ok());
  for (const int threads : {2, 3, 5}) {
    GuardedFloats many(p.m * p.n);
    ASSERT_TRUE(MakeTestKernels(GetParam(), threads)->Gemm(p.Args(many.data())).ok());
    EXPECT_EQ(many.values(), one.values()) << threads;
  }
}

TEST_P(GemmTest, LeavesTheGapBetweenOutputRowsAlone) {
  const Product p(*kernels_, 8, 19, 12, DType::kF32);
  const int64_t stride = 24;
  GuardedFloats out(p.m * stride);
  GemmArgs args = p.Args(out.data());
  args.out_stride = stride;
  ASSERT_TRUE(kernels_->Gemm(args).ok());
  const std::vector<float> dense = p.Loop<float>();
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < stride; ++j) {
      const float got = out.data()[i * stride + j];
      if (j < p.n) {
        EXPECT_NEAR(got, dense[i * p.n + j], 1e-5);
      } else {
        EXPECT_EQ(got, GuardedFloats::kCanary);
      }
    }
  }
}

TEST_P(GemmTest, PackingJoinsPartsAndWidensMixedTypes) {
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

TEST_P(GemmTest, PackingReadsWeightsAtAnyAlignment) {
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

BATON_FOR_EACH_KERNEL_SET(GemmTest);

}  // namespace
}  // namespace baton
