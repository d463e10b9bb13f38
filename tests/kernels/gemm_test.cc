// Gemm of every device, and what ranks make of their parts of it.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tests/kernels/product_cases.h"

namespace baton {
namespace {

// A matrix with `gap` elements behind each row, which are NaN: nobody may read them.
std::vector<float> WithGaps(const std::vector<float>& dense, int64_t columns, int64_t gap) {
  std::vector<float> out;
  for (int64_t at = 0; at < std::ssize(dense); at += columns) {
    out.insert(out.end(), dense.begin() + at, dense.begin() + at + columns);
    out.insert(out.end(), gap, NAN);
  }
  return out;
}

struct ProductLayout {
  int64_t gap = 0;   // Behind each row of `a`.
  size_t shift = 0;  // Elements by which `a` is shifted.
  bool has_bias = true;
  int64_t out_gap = 3;
};

class ProductTest : public testing::TestWithParam<ProductCase> {
 protected:
  void Fill(const ProductSize& size) {
    size_ = size;
    a_ = Rounded(types_.activations, RandomFloats(types_.seed + size.m, size.m * size.k));
    b_ = Rounded(types_.weights, RandomFloats(types_.seed + size.k, size.n * size.k));
    bias_ = RandomFloats(types_.seed + size.n, size.n);
    weights_ = Columns(0, 1);
  }

  // Part `index` of `count` of k.
  PackedMatrix Columns(int64_t index, int64_t count) const {
    const int64_t k = size_.k / count;
    const std::vector<std::byte> stored = Encode(types_.weights, b_);
    const WeightRows part{stored.data() + index * k * SizeOf(types_.weights), types_.weights,
                          size_.n, size_.k};
    return *ops_->PackWeights({.parts = &part, .num_parts = 1, .k = k});
  }

  GemmArgs Args(const float* a, int64_t m, float* out) const {
    return {.a = a,
            .a_stride = size_.k,
            .m = m,
            .a_rounded_to = types_.activations == DType::kBF16 ? DType::kBF16 : DType::kF32,
            .weights = &weights_,
            .bias = bias_.data(),
            .out = out,
            .out_stride = size_.n,
            .segments = size_.segments};
  }

  // Rows `a`, dense, by the weights; what lies behind rows of the result stays.
  std::vector<float> Multiply(const std::vector<float>& a, const ProductLayout& layout = {}) {
    const int64_t m = std::ssize(a) / size_.k, out_stride = size_.n + layout.out_gap;
    const auto moved = Behind(layout.shift, WithGaps(a, size_.k, layout.gap));
    GuardedFloats out = Sevens(m * out_stride);
    GemmArgs args = Args(moved.data() + layout.shift, m, out.data());
    args.a_stride += layout.gap;
    args.out_stride = out_stride;
    if (!layout.has_bias) args.bias = nullptr;
    EXPECT_EQ(ops_->Gemm(args), absl::OkStatus());
    EXPECT_TRUE(out.GuardsIntact());
    const std::vector<float> padded = out.values();
    std::vector<float> dense;
    for (int64_t i = 0; i < m; ++i) {
      const auto row = padded.begin() + i * out_stride;
      dense.insert(dense.end(), row, row + size_.n);
      EXPECT_EQ(std::count(row + size_.n, row + out_stride, 7.0f), layout.out_gap)
          << "behind row " << i;
    }
    return dense;
  }
  std::vector<float> Rows(int64_t first, int64_t m) const {
    return Cut(a_, first * size_.k, m * size_.k);
  }
  std::vector<float> RowsOf(const std::vector<float>& product, int64_t first, int64_t m) const {
    return Cut(product, first * size_.n, m * size_.n);
  }

  template <typename Sum>
  std::vector<Sum> Loop(bool has_bias) const {
    std::vector<Sum> out;
    for (int64_t i = 0; i < size_.m; ++i) {
      for (int64_t j = 0; j < size_.n; ++j) {
        Sum sum = 0;
        for (int64_t d = 0; d < size_.k; ++d) {
          sum += Sum{a_[i * size_.k + d]} * Sum{b_[j * size_.k + d]};
        }
        out.push_back(sum + (has_bias ? Sum{bias_[j]} : 0));
      }
    }
    return out;
  }

  const ProductCase types_ = GetParam();
  const std::unique_ptr<CpuKernels> ops_ = MakeProductOps(GetParam());
  ProductSize size_ = {};
  std::vector<float> a_, b_, bias_;
  PackedMatrix weights_;
};

std::string NameOfProduct(const testing::TestParamInfo<ProductCase>& info) {
  const ProductCase& types = info.param;
  const bool differ = types.weights != types.activations;
  return types.ops + "_" + std::string(ToString(types.weights)) +
         (differ ? "_by_" + std::string(ToString(types.activations)) : "") + "_to_" +
         std::string(ToString(types.out));
}

using GemmTest = ProductTest;

TEST_P(GemmTest, MultipliesMatricesOfAnySize) {
  for (const ProductSize& size : SizesOfProducts().any) {
    SCOPED_TRACE(size.Name());
    Fill(size);
    const bool has_bias = (size.m + size.n) % 2 == 1;
    const auto got = Multiply(a_, {.has_bias = has_bias, .out_gap = size.m % 3});
    EXPECT_EQ(Rounded(types_.out, got), got);
    ExpectAccurate(got, Rounded(types_.out, Loop<float>(has_bias)), Loop<double>(has_bias),
                   size.Name());
  }
}

TEST_P(GemmTest, BitsDependOnNeitherLayoutNorTile) {
  Fill({140, 70, 136});
  const auto whole = Multiply(a_);
  for (const int64_t m : {1, 2, 8, 16, 17, 33, 64, 65, 128}) {
    for (const int64_t first : {int64_t{0}, 140 - m}) {
      const auto part = Rows(first, m), expected = RowsOf(whole, first, m);
      // Aligned; aligned with gaps; rows that no vector can load.
      EXPECT_EQ(Multiply(part), expected) << m << " from " << first;
      if (m % 8 != 1) continue;
      EXPECT_EQ(Multiply(part, {.gap = 8}), expected) << m;
      EXPECT_EQ(Multiply(part, {.gap = 3, .shift = 1}), expected) << m;
      EXPECT_EQ(Multiply(part, {.gap = 8, .shift = 1}), expected) << m;
    }
  }
}

TEST_P(GemmTest, BitsOfLongRowsDoNotDependOnTheirNumber) {
  Fill({70, 83, SizesOfProducts().long_k});
  const auto whole = Multiply(a_);
  for (const int64_t m : {1, 5, 12, 23, 40}) {
    for (const int64_t first : {int64_t{3}, 70 - m}) {
      EXPECT_EQ(Multiply(Rows(first, m)), RowsOf(whole, first, m)) << m << " from " << first;
    }
  }
}

// Of more rows than two of the tallest tiles have.
TEST_P(GemmTest, BitsDependOnNoNumberOfRows) {
  const int64_t rows = 600, n = 5, k = 24;
  Fill({rows, n, k});
  const auto whole = Multiply(a_);
  ExpectAccurate(whole, Rounded(types_.out, Loop<float>(true)), Loop<double>(true), "600 rows");
  for (const int64_t m : {1, 129, 255, 256, 257, 384, 385, 511, 512, 513, 599}) {
    for (const int64_t first : {int64_t{0}, rows - m}) {
      EXPECT_EQ(Multiply(Rows(first, m)), RowsOf(whole, first, m)) << m << " from " << first;
    }
  }
  std::vector<float> turned, expected;
  for (int64_t i = rows - 1; i >= 0; --i) {
    turned.insert(turned.end(), a_.begin() + i * k, a_.begin() + (i + 1) * k);
    expected.insert(expected.end(), whole.begin() + i * n, whole.begin() + (i + 1) * n);
  }
  EXPECT_EQ(Multiply(turned), expected) << "in the reverse order";
}

// Also with enough work for a pool, and with segments.
TEST_P(GemmTest, SomeRowsOfTheWeightsHaveTheBitsThatTheyHaveAmongAll) {
  const int64_t n = 150;
  for (const ProductSize& size : {ProductSize{1, n, 70},
                                  {3, n, 64},
                                  {3, n, 64, 2},
                                  {13, n, 33},
                                  {40, n, 64, 2},
                                  {40, n, SizesOfProducts().long_k / 2},
                                  {70, n, 64},
                                  {70, n, 64, 2}}) {
    SCOPED_TRACE(size.Name());
    Fill(size);
    const auto all = Multiply(a_);
    for (const auto& [first, rows] : {std::pair{0, 150}, {0, 45}, {32, 40}, {128, 0}, {64, 64}}) {
      GemmArgs args = Args(a_.data(), size.m, nullptr);
      args.first_row = first;
      args.num_rows = rows;
      args.bias += first;
      args.out_stride = args.n();
      ASSERT_EQ(args.n(), rows == 0 ? n - first : rows);
      GuardedFloats some(size.m * args.n());
      args.out = some.data();
      ASSERT_EQ(ops_->Gemm(args), absl::OkStatus());
      EXPECT_TRUE(some.GuardsIntact());
      for (int64_t i = 0; i < size.m; ++i) {
        EXPECT_EQ(Cut(some.values(), i * args.n(), args.n()), Cut(all, i * n + first, args.n()))
            << first << " " << rows << " row " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GemmTest, testing::ValuesIn(ProductCases()), NameOfProduct);

// A product whose k is cut into segments, and perhaps divided among ranks.
class GemmSegmentsTest : public ProductTest {
 protected:
  // Part `index` of `count` of k in so many segments, in f32 and without the bias.
  std::vector<float> Partial(int64_t index, int64_t count, int32_t segments) const {
    const PackedMatrix weights = Columns(index, count);
    GuardedFloats out(size_.m * size_.n);
    GemmArgs args = Args(a_.data() + index * weights.k(), size_.m, out.data());
    args.weights = &weights;
    args.bias = nullptr;
    args.segments = segments;
    EXPECT_EQ(partial_ops_->Gemm(args), absl::OkStatus());
    EXPECT_TRUE(out.GuardsIntact());
    return out.values();
  }

  // The tree of GemmArgs over products of one segment each.
  std::vector<float> Tree() const {
    std::vector<std::vector<float>> sums;
    for (int32_t s = 0; s < size_.segments; ++s) sums.push_back(Partial(s, size_.segments, 1));
    for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
      for (size_t s = 0; 2 * s < sums.size(); ++s) {
        for (size_t i = 0; i < sums[s].size(); ++i) {
          const float sum = sums[2 * s][i] + sums[2 * s + 1][i];
          sums[s][i] = sum;
        }
      }
    }
    for (size_t i = 0; i < sums[0].size(); ++i) sums[0][i] += bias_[i % size_.n];
    return Rounded(types_.out, sums[0]);
  }

  std::vector<float> Divided(int32_t size) const {
    std::vector<std::vector<float>> parts;
    for (int32_t r = 0; r < size; ++r) parts.push_back(Partial(r, size, size_.segments / size));
    FoldPartialsArgs fold{
        .num_parts = size, .num_tokens = size_.m, .dim = size_.n, .bias = bias_.data()};
    for (int32_t r = 0; r < size; ++r) fold.parts[r] = parts[r].data();
    GuardedFloats out(size_.m * size_.n);
    fold.out = out.data();
    EXPECT_EQ(ops_->FoldPartials(fold), absl::OkStatus());
    EXPECT_TRUE(out.GuardsIntact());
    return out.values();
  }

  static ProductCase InF32(ProductCase types) {
    types.out = DType::kF32;
    return types;
  }
  const std::unique_ptr<CpuKernels> partial_ops_ = MakeProductOps(InF32(GetParam()));
};

TEST_P(GemmSegmentsTest, FoldsSegmentsAsATreeAndThenAddsTheBias) {
  for (const ProductSize& size : SizesOfProducts().segmented) {
    SCOPED_TRACE(size.Name());
    Fill(size);
    EXPECT_EQ(Multiply(a_), Tree());
  }
}

TEST_P(GemmSegmentsTest, RanksWithPartsOfKHaveTheBitsOfOne) {
  for (const ProductSize& size : SizesOfProducts().divided) {
    SCOPED_TRACE(size.Name());
    Fill(size);
    const std::vector<float> whole = Multiply(a_);
    for (int32_t ranks = 2; ranks <= size.segments; ranks *= 2) {
      EXPECT_EQ(Divided(ranks), whole) << ranks << " ranks";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GemmSegmentsTest, testing::ValuesIn(ProductCases()), NameOfProduct);

}  // namespace
}  // namespace baton
