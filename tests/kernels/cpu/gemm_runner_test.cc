#include "kernels/cpu/gemm_runner.h"

#include "tests/kernels/moe_problem.h"

namespace baton {
namespace {

// Experts with the given numbers of rows, gathered in random order from `a`, whose rows are apart.
struct ExpertProduct {
  int64_t n, k, top_k = 3, num_a_rows = 0, a_stride;
  ProductTypes types;
  std::vector<int32_t> offsets = {0}, order;
  std::vector<float> a, b, bias;
  std::vector<PackedMatrix> weights;

  ExpertProduct(CpuKernels& kernels, const std::vector<int32_t>& rows, int64_t n, int64_t k,
                const ProductTypes& types)
      : n(n), k(k), a_stride(k + 5), types(types) {
    for (const int32_t m : rows) offsets.push_back(offsets.back() + m);
    Random random(n + k);
    num_a_rows = offsets.back() / top_k + 1;
    for (int32_t i = 0; i < offsets.back(); ++i) {
      order.push_back(static_cast<int32_t>(random.Below(num_a_rows * top_k)));
    }
    a = Rounded(types.activations, RandomFloats(1, num_a_rows * a_stride));
    for (int64_t r = 0; r < num_a_rows; ++r) {
      for (int64_t i = k; i < a_stride; ++i) a[r * a_stride + i] = NAN;
    }
    const auto experts = std::ssize(rows);
    b = Rounded(types.weights, RandomFloats(2, experts * n * k));
    bias = RandomFloats(3, experts * n);
    weights = PackExperts(kernels, n, k, types.weights, b);
  }

  int64_t num_rows() const { return offsets.back(); }
  int64_t RowOf(int64_t i) const { return order[i] / top_k; }
  int64_t ExpertOf(int64_t i) const {
    return std::upper_bound(offsets.begin(), offsets.end(), i) - offsets.begin() - 1;
  }
  ExpertGemmArgs Args(float* out) const {
    return {.a = a.data(),
            .a_stride = a_stride,
            .num_a_rows = num_a_rows,
            .a_rounded_to = types.activations,
            .row_order = order.data(),
            .top_k = top_k,
            .expert_offsets = offsets.data(),
            .num_experts = std::ssize(weights),
            .weights = weights.data(),
            .bias = bias.data(),
            .out = out,
            .out_stride = n};
  }
  // Row i of the output by Gemm alone.
  std::vector<float> Alone(CpuKernels& kernels, int64_t i) const {
    std::vector<float> out(n);
    EXPECT_TRUE(kernels
                    .Gemm({.a = a.data() + RowOf(i) * a_stride,
                           .a_stride = a_stride,
                           .m = 1,
                           .a_rounded_to = types.activations,
                           .weights = &weights[ExpertOf(i)],
                           .bias = bias.data() + ExpertOf(i) * n,
                           .out = out.data(),
                           .out_stride = n})
                    .ok());
    return out;
  }
  // The rows of the output by columns [first, first + count) alone, in matrices of their own; what
  // is between them and behind the last, up to `size`, is left alone.
  std::vector<float> OfColumns(CpuKernels& kernels, int64_t first, int64_t count, int64_t stride,
                               int64_t size) const {
    std::vector<float> columns;
    for (int64_t row = 0; row < std::ssize(weights) * n; ++row) {
      columns.insert(columns.end(), b.begin() + row * k + first,
                     b.begin() + row * k + first + count);
    }
    const std::vector<PackedMatrix> own = PackExperts(kernels, n, count, types.weights, columns);
    std::vector<float> out(size, GuardedFloats::kCanary);
    ExpertGemmArgs args = Args(out.data());
    args.a = a.data() + first;
    args.weights = own.data();
    args.bias = nullptr;
    args.out_stride = stride;
    EXPECT_TRUE(kernels.ExpertGemm(args).ok());
    return out;
  }
  template <typename Sum>
  std::vector<Sum> Loop() const {
    std::vector<Sum> out;
    for (int64_t i = 0; i < num_rows(); ++i) {
      const int64_t e = ExpertOf(i);
      for (int64_t j = 0; j < n; ++j) {
        Sum sum = 0;
        for (int64_t d = 0; d < k; ++d) {
          sum += Sum{a[RowOf(i) * a_stride + d]} * Sum{b[(e * n + j) * k + d]};
        }
        out.push_back(sum + Sum{bias[e * n + j]});
      }
    }
    return out;
  }
};

class ExpertGemmTest : public KernelTest {};

TEST_P(ExpertGemmTest, AgreesWithDoubleLoopForExpertsOfAnySize) {
  for (const ProductTypes& types : kProductTypes) {
    for (const auto& [n, k] : {std::pair{1, 1}, {17, 33}, {80, 129}}) {
      const ExpertProduct p(*kernels_, {0, 1, 13, 0, 30, 2, 0}, n, k, types);
      GuardedFloats out(p.num_rows() * n);
      ASSERT_TRUE(kernels_->ExpertGemm(p.Args(out.data())).ok());
      EXPECT_TRUE(out.GuardsIntact());
      ExpectAccurate(out.values(), p.Loop<float>(), p.Loop<double>(), std::to_string(n));
    }
  }
}

// Also with enough work for the pool, and with more rows than one task takes.
TEST_P(ExpertGemmTest, ARowHasTheBitsOfGemmAloneWithAnyThreads) {
  const auto threaded = MakeTestKernels(GetParam(), 3);
  for (const ProductTypes& types : kProductTypes) {
    const ExpertProduct p(*kernels_, {7, 0, 70, 1, 600, 12}, 70, 131, types);
    GuardedFloats out(p.num_rows() * p.n), many(p.num_rows() * p.n);
    ASSERT_TRUE(kernels_->ExpertGemm(p.Args(out.data())).ok());
    ASSERT_TRUE(threaded->ExpertGemm(p.Args(many.data())).ok());
    EXPECT_EQ(many.values(), out.values());
    for (int64_t i = 0; i < p.num_rows(); i += 1 + i / 20) {
      const std::vector<float> alone = p.Alone(*kernels_, i);
      ASSERT_EQ(std::memcmp(alone.data(), out.data() + i * p.n, p.n * 4), 0) << i;
    }
  }
}

TEST_P(ExpertGemmTest, WithoutAnOrderRowsAreTakenAsTheyLie) {
  ExpertProduct p(*kernels_, {5, 0, 22}, 19, 40, kProductTypes[0]);
  p.top_k = 1;
  p.num_a_rows = p.num_rows();
  p.a = RandomFloats(9, p.num_a_rows * p.a_stride);
  for (int32_t i = 0; i < p.num_rows(); ++i) p.order[i] = i;
  GuardedFloats out(p.num_rows() * p.n);
  ExpertGemmArgs args = p.Args(out.data());
  args.row_order = nullptr;
  ASSERT_TRUE(kernels_->ExpertGemm(args).ok());
  for (int64_t i = 0; i < p.num_rows(); ++i) {
    const std::vector<float> alone = p.Alone(*kernels_, i);
    ASSERT_EQ(std::memcmp(alone.data(), out.data() + i * p.n, p.n * 4), 0) << i;
  }
}

TEST_P(ExpertGemmTest, LeavesTheGapBetweenOutputRowsAloneAndNeedsNoBias) {
  const ExpertProduct p(*kernels_, {3, 14}, 35, 8, kProductTypes[0]);
  const int64_t stride = p.n + 4;
  GuardedFloats out(p.num_rows() * stride);
  ExpertGemmArgs args = p.Args(out.data());
  args.out_stride = stride;
  args.bias = nullptr;
  ASSERT_TRUE(kernels_->ExpertGemm(args).ok());
  const std::vector<float> dense = p.Loop<float>();
  for (int64_t i = 0; i < p.num_rows(); ++i) {
    for (int64_t j = 0; j < stride; ++j) {
      const float got = out.data()[i * stride + j];
      if (j < p.n) {
        const float bias = p.bias[p.ExpertOf(i) * p.n + j];
        EXPECT_NEAR(got, dense[i * p.n + j] - bias, 1e-5);
      } else {
        EXPECT_EQ(got, GuardedFloats::kCanary);
      }
    }
  }
}

// Experts without rows, with one, and with more than a tile and a task take; segments of one step
// of every kernel and of more; enough work for the pool.
TEST_P(ExpertGemmTest, ASegmentHasTheBitsOfItsColumnsAsMatricesOfTheirOwn) {
  const auto threaded = MakeTestKernels(GetParam(), 3);
  for (const ProductTypes& types : kProductTypes) {
    for (const auto& [rows, segment_k, segments] :
         {std::tuple{std::vector<int32_t>{0, 1, 0, 1}, int64_t{160}, 8},
          {{0, 13, 1, 0}, 32, 4},
          {{14, 600, 0}, 96, 2},
          {{2, 0, 33}, 37, 1}}) {
      const ExpertProduct p(*kernels_, rows, 70, segment_k * segments, types);
      const int64_t stride = p.n + 5, segment_stride = p.num_rows() * stride + 11;
      for (int32_t first = 0; first < segments; ++first) {
        const int32_t count = segments - first;
        GuardedFloats out(count * segment_stride);
        ExpertGemmArgs args = p.Args(out.data());
        args.bias = nullptr;
        args.out_stride = stride;
        args.segments = segments;
        args.first_segment = first;
        args.num_segments = count;
        args.segment_stride = segment_stride;
        ASSERT_TRUE((first % 2 == 0 ? *threaded : *kernels_).ExpertGemm(args).ok());
        EXPECT_TRUE(out.GuardsIntact());
        for (int32_t s = 0; s < count; ++s) {
          const float* const got = out.data() + s * segment_stride;
          ASSERT_EQ(
              std::vector<float>(got, got + segment_stride),
              p.OfColumns(*kernels_, (first + s) * segment_k, segment_k, stride, segment_stride))
              << s << " from " << first << " of " << segments;
        }
      }
    }
  }
}

// Of few rows: eleven panels in tasks of three, the last of two, and of fewer outputs.
TEST_P(ExpertGemmTest, ATaskOfSeveralPanelsHasTheBitsOfOnesAlone) {
  for (const ProductTypes& types : kProductTypes) {
    const ExpertProduct p(*kernels_, {1, 0, 2}, 10 * 32 + 5, 2048, types);
    GuardedFloats out(p.num_rows() * p.n);
    ASSERT_TRUE(kernels_->ExpertGemm(p.Args(out.data())).ok());
    EXPECT_TRUE(out.GuardsIntact());
    for (int64_t i = 0; i < p.num_rows(); ++i) {
      const int64_t e = p.ExpertOf(i);
      for (int64_t first = 0; first < p.n; first += kWeightRows) {
        const int64_t count = std::min(kWeightRows, p.n - first);
        std::vector<float> alone(count);
        ASSERT_TRUE(kernels_
                        ->Gemm({.a = p.a.data() + p.RowOf(i) * p.a_stride,
                                .a_stride = p.a_stride,
                                .m = 1,
                                .a_rounded_to = types.activations,
                                .weights = &p.weights[e],
                                .bias = p.bias.data() + e * p.n + first,
                                .out = alone.data(),
                                .out_stride = count,
                                .first_row = first,
                                .num_rows = count})
                        .ok());
        ASSERT_EQ(std::memcmp(alone.data(), out.data() + i * p.n + first, count * 4), 0) << first;
      }
    }
  }
}

TEST_P(ExpertGemmTest, NoRowsAndNoExpertsAreLegal) {
  const ExpertProduct p(*kernels_, {0, 0}, 3, 3, kProductTypes[0]);
  ExpertGemmArgs args = p.Args(nullptr);
  args.a = nullptr;
  EXPECT_TRUE(kernels_->ExpertGemm(args).ok());
  EXPECT_TRUE(kernels_->ExpertGemm({}).ok());
}

// The memory that a larger call has left must not show.
TEST_P(ExpertGemmTest, ASmallerCallAfterALargerOneAndAGemmBetweenAreRight) {
  const ExpertProduct large(*kernels_, {40, 9}, 33, 257, kProductTypes[3]);
  const ExpertProduct small(*kernels_, {0, 2}, 20, 7, kProductTypes[0]);
  for (const ExpertProduct* p : {&large, &small, &large}) {
    GuardedFloats out(p->num_rows() * p->n);
    ASSERT_TRUE(kernels_->ExpertGemm(p->Args(out.data())).ok());
    for (int64_t i = 0; i < p->num_rows(); ++i) {
      const std::vector<float> alone = p->Alone(*kernels_, i);
      ASSERT_EQ(std::memcmp(alone.data(), out.data() + i * p->n, p->n * 4), 0) << i;
    }
  }
}

BATON_FOR_EACH_KERNEL_SET(ExpertGemmTest);

}  // namespace
}  // namespace baton
