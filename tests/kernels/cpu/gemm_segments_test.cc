#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/product_order.h"

namespace baton {
namespace {

// A product whose k is cut into segments: in the order that the numerics id stands for.
struct Shape {
  int64_t m, n, k;
  int32_t segments;

  std::string Name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " in " +
           std::to_string(segments);
  }
};

class SegmentsOrderTest : public KernelTest {
 protected:
  void Fill(const Shape& shape, const ProductTypes& types) {
    shape_ = shape;
    types_ = types;
    a_ = Rounded(types.activations, RandomFloats(shape.m + 1, shape.m * shape.k));
    b_ = Rounded(types.weights, RandomFloats(shape.k, shape.n * shape.k));
    stored_ = Encode(types.weights, b_);
    bias_ = RandomFloats(shape.n, shape.n);
  }

  std::vector<float> Multiply(CpuKernels& kernels) const {
    const WeightRows rows{stored_.data(), types_.weights, shape_.n};
    const PackedMatrix packed =
        *kernels.PackWeights({.parts = &rows, .num_parts = 1, .k = shape_.k});
    GuardedFloats out(shape_.m * shape_.n);
    EXPECT_EQ(kernels.Gemm({.a = a_.data(),
                            .a_stride = shape_.k,
                            .m = shape_.m,
                            .a_rounded_to = types_.activations,
                            .weights = &packed,
                            .bias = bias_.data(),
                            .out = out.data(),
                            .out_stride = shape_.n,
                            .segments = shape_.segments}),
              absl::OkStatus());
    EXPECT_TRUE(out.GuardsIntact());
    return out.values();
  }
  std::vector<float> Whole() const { return Multiply(*kernels_); }

  // Of some outputs: among them the first and last of every tile's and panel's.
  void ExpectOrder(const std::vector<float>& out) const {
    const std::string_view numerics = kernels_->numerics(types_.activations);
    for (int64_t i = 0; i < shape_.m; i += shape_.m > 14 ? 11 : 1) {
      for (int64_t j = 0; j < shape_.n; j += shape_.k > 2000 ? 15 : 3) {
        const float sum = SumOfProducts(numerics, a_.data() + i * shape_.k,
                                        b_.data() + j * shape_.k, shape_.k, shape_.segments);
        ASSERT_EQ(out[i * shape_.n + j], sum + bias_[j]) << i << ", " << j;
      }
    }
  }

  Shape shape_;
  ProductTypes types_;
  std::vector<float> a_, b_, bias_;
  std::vector<std::byte> stored_;
};

// Segments of one step of k and of several; that lie in a block of the cache together, that end
// with it, and that are longer; as many rows as a tile has at most, and several tiles.
TEST_P(SegmentsOrderTest, FoldsSegmentsAsATreeAndThenAddsTheBias) {
  for (const ProductTypes& types : kProductTypes) {
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 40}) {
      for (const auto& [n, k, segments] : {std::tuple{33, 64, 2},
                                           {17, 128, 4},
                                           {70, 256, 8},
                                           {97, 768, 8},
                                           {31, 192, 2},
                                           {37, 4096, 8}}) {
        if (k == 4096 && m != 1 && m != 7 && m != 13) continue;
        const Shape shape = {m, n, k, segments};
        SCOPED_TRACE(shape.Name());
        Fill(shape, types);
        ExpectOrder(Whole());
      }
    }
  }
}

TEST_P(SegmentsOrderTest, SegmentsMayBeLongerThanABlock) {
  for (const ProductTypes& types : kProductTypes) {
    for (const Shape& shape :
         {Shape{13, 35, 2 * 2176, 2}, {13, 35, 8 * 2176, 8}, {2, 35, 8 * 2176, 8}}) {
      SCOPED_TRACE(shape.Name());
      Fill(shape, types);
      ExpectOrder(Whole());
    }
  }
}

TEST_P(SegmentsOrderTest, RowHasTheSameBitsAloneAndAmongOthersAndOnAnyThread) {
  for (const ProductTypes& types : kProductTypes) {
    Fill({530, 83, 2048, 8}, types);
    const std::vector<float> all = Whole();
    const auto threads = MakeTestKernels(GetParam(), 3);
    EXPECT_EQ(Multiply(*threads), all);
    const std::vector<float> a = a_;
    for (const int64_t row : {0, 1, 6, 11, 12, 41, 503, 504, 511, 512, 529}) {
      a_.assign(a.begin() + row * shape_.k, a.begin() + (row + 1) * shape_.k);
      shape_.m = 1;
      const std::vector<float> one = Whole();
      EXPECT_EQ(std::memcmp(one.data(), all.data() + row * shape_.n, shape_.n * 4), 0) << row;
      shape_.m = 530;
    }
  }
}

BATON_FOR_EACH_KERNEL_SET(SegmentsOrderTest);

}  // namespace
}  // namespace baton
