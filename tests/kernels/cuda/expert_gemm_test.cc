#include "kernels/cuda/expert_gemm.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

struct Types {
  DType in;
  DType out;
};

// Rows of experts in some order, compared with what Gemm makes of each expert's.
class ExpertGemmTest : public DeviceTest, public testing::WithParamInterface<Types> {
 protected:
  // `counts`: rows of each expert, which `order` names if there is one.
  struct Problem {
    int64_t n, k, top_k = 1;
    std::vector<int32_t> counts;
    std::vector<int32_t> order = {};
    bool bias = false;
    int64_t a_gap = 0;
    size_t a_shift = 0;
    int32_t segments = 1;
  };

  static std::vector<int32_t> OffsetsOf(const std::vector<int32_t>& counts) {
    std::vector<int32_t> offsets = {0};
    for (const int32_t count : counts) offsets.push_back(offsets.back() + count);
    return offsets;
  }

  // A matrix where no memory is: only an expert without rows may have it.
  static PackedMatrix Nowhere(DType dtype, int64_t n, int64_t k) {
    return PackedMatrix(n, k, dtype, WeightFormat::kCuda,
                        Buffer(reinterpret_cast<std::byte*>(uintptr_t{64}), n * k * 2, nullptr));
  }

  void ExpectRowsOfGemm(const Problem& problem, const std::string& what) {
    SCOPED_TRACE(what);
    const auto [in, out_type] = GetParam();
    const auto [n, k] = std::pair{problem.n, problem.k};
    const std::vector<int32_t> offsets = OffsetsOf(problem.counts);
    const int64_t rows = offsets.back(), stride = k + problem.a_gap, out_stride = n + 3;
    int64_t a_rows = rows;
    if (!problem.order.empty()) {
      a_rows = *std::max_element(problem.order.begin(), problem.order.end()) / problem.top_k + 1;
    }
    std::vector<float> a(a_rows * stride, NAN);
    const std::vector<float> dense = Rounded(in, RandomFloats(n, a_rows * k));
    for (int64_t i = 0; i < a_rows * k; ++i) a[i / k * stride + i % k] = dense[i];
    const auto experts = std::ssize(problem.counts);
    std::vector<PackedMatrix> weights;
    for (int64_t e = 0; e < experts; ++e) {
      weights.push_back(problem.counts[e] == 0
                            ? Nowhere(in, n, k)
                            : DeviceMatrix(in, Rounded(in, RandomFloats(e + 50, n * k)), n, k));
    }
    const std::vector<float> bias = RandomFloats(7, experts * n);
    const DeviceFloats there_a(in, a, problem.a_shift), there_bias(DType::kF32, bias);
    const DeviceFloats out(out_type, std::vector<float>(rows * out_stride, 7));
    const DeviceArray<int32_t> there_offsets(offsets), there_order(problem.order);
    ASSERT_EQ(ExpertGemm({.a = there_a,
                          .a_stride = stride,
                          .num_a_rows = a_rows,
                          .row_order = problem.order.empty() ? nullptr : there_order.data(),
                          .top_k = problem.top_k,
                          .expert_offsets = there_offsets.data(),
                          .num_experts = experts,
                          .weights = weights.data(),
                          .bias = problem.bias ? there_bias.f32() : nullptr,
                          .out = out,
                          .out_stride = out_stride},
                         nullptr),
              cudaSuccess);
    const std::vector<float> got = out.Read();
    for (int64_t e = 0; e < experts; ++e) {
      std::vector<float> own;
      for (int64_t i = offsets[e]; i < offsets[e + 1]; ++i) {
        const int64_t row = problem.order.empty() ? i : problem.order[i] / problem.top_k;
        own.insert(own.end(), dense.begin() + row * k, dense.begin() + (row + 1) * k);
      }
      const int64_t count = problem.counts[e];
      const DeviceFloats there(in, own), alone(out_type, std::vector<float>(count * out_stride, 7));
      ASSERT_EQ(Gemm({.a = there,
                      .a_stride = k,
                      .m = count,
                      .weights = &weights[e],
                      .bias = problem.bias ? there_bias.f32() + e * n : nullptr,
                      .out = alone,
                      .out_stride = out_stride},
                     {}, nullptr),
                cudaSuccess);
      const auto begin = got.begin() + offsets[e] * out_stride;
      // Behind a row nothing is written.
      ASSERT_EQ(std::vector<float>(begin, begin + count * out_stride), alone.Read()) << e;
    }
  }

  void ExpectSegments(const Problem& problem) {
    SCOPED_TRACE(problem.k);
    const auto [in, out_type] = GetParam();
    const int64_t n = problem.n, k = problem.k, part = k / problem.segments;
    const std::vector<int32_t> offsets = OffsetsOf(problem.counts);
    const int64_t rows = offsets.back(), stride = k + problem.a_gap, out_stride = n + 3;
    const int64_t segment_stride = rows * out_stride + 5;
    const DeviceFloats a(in, Rounded(in, RandomFloats(n, rows * stride)), problem.a_shift);
    const DeviceArray<int32_t> there_offsets(offsets);
    const auto experts = std::ssize(problem.counts);
    std::vector<std::vector<float>> values;
    std::vector<PackedMatrix> weights;
    for (int64_t e = 0; e < experts; ++e) {
      values.push_back(Rounded(in, RandomFloats(e + 50, n * k)));
      weights.push_back(DeviceMatrix(in, values[e], n, k));
    }
    const ExpertGemmArgs args{.a = a,
                              .a_stride = stride,
                              .num_a_rows = rows,
                              .expert_offsets = there_offsets.data(),
                              .num_experts = experts,
                              .out_stride = out_stride,
                              .segment_stride = segment_stride};
    for (int32_t first = 0; first < problem.segments; first += 1 + first) {
      const int32_t count = problem.segments - first;
      const DeviceFloats out(out_type, std::vector<float>(count * segment_stride, 7));
      ExpertGemmArgs some = args;
      some.weights = weights.data();
      some.out = out;
      some.segments = problem.segments;
      some.first_segment = first;
      some.num_segments = count;
      ASSERT_EQ(ExpertGemm(some, nullptr), cudaSuccess);
      const std::vector<float> got = out.Read();
      for (int32_t s = 0; s < count; ++s) {
        std::vector<PackedMatrix> own;
        for (int64_t e = 0; e < experts; ++e) {
          std::vector<float> columns;
          for (int64_t row = 0; row < n; ++row) {
            const auto from = values[e].begin() + row * k + (first + s) * part;
            columns.insert(columns.end(), from, from + part);
          }
          own.push_back(DeviceMatrix(in, columns, n, part));
        }
        const DeviceFloats alone(out_type, std::vector<float>(segment_stride, 7));
        ExpertGemmArgs one = args;
        one.a = ConstFloats(a).At((first + s) * part);
        one.weights = own.data();
        one.out = alone;
        ASSERT_EQ(ExpertGemm(one, nullptr), cudaSuccess);
        const auto begin = got.begin() + s * segment_stride;
        ASSERT_EQ(std::vector<float>(begin, begin + segment_stride), alone.Read())
            << s << " from " << first << " of " << problem.segments;
      }
    }
  }
};

// Each shape of tile: 16, 64 and 128 rows, of experts with none, one, as many, and one more.
TEST_P(ExpertGemmTest, RowsHaveTheBitsOfGemm) {
  ExpectRowsOfGemm({.n = 65, .k = 40, .counts = {1}}, "one row");
  ExpectRowsOfGemm({.n = 70, .k = 72, .counts = {0, 16, 0, 17, 1, 0}, .bias = true}, "few");
  ExpectRowsOfGemm({.n = 64, .k = 129, .counts = {64, 0, 65}, .bias = true}, "some");
  ExpectRowsOfGemm({.n = 17, .k = 16, .counts = {129, 130}}, "many");
}

// Choices of tokens, rows that no vector can load, and rows of one expert alone, of which the tiles
// are more than the host would think.
TEST_P(ExpertGemmTest, RowsComeInAnyOrderAndFromAnywhere) {
  ExpectRowsOfGemm({.n = 9,
                    .k = 24,
                    .top_k = 3,
                    .counts = {2, 0, 4, 3},
                    .order = {8, 0, 1, 3, 7, 4, 2, 6, 5},
                    .bias = true},
                   "choices");
  ExpectRowsOfGemm({.n = 9, .k = 8, .top_k = 3, .counts = {1, 0, 1, 1}, .order = {1, 0, 2}},
                   "one token");
  ExpectRowsOfGemm({.n = 9, .k = 21, .counts = {3, 2}, .a_gap = 2, .a_shift = 1}, "odd");
  std::vector<int32_t> order(40);
  for (int32_t i = 0; i < 40; ++i) order[i] = 39 - i;
  ExpectRowsOfGemm({.n = 5, .k = 8, .top_k = 2, .counts = {0, 0, 0, 40, 0, 0}, .order = order},
                   "all to one");
}

// Each shape of tile; segments whose k are a whole step of the tiles and less than one.
TEST_P(ExpertGemmTest, ASegmentHasTheBitsOfItsColumnsAsMatricesOfTheirOwn) {
  ExpectSegments({.n = 65, .k = 8 * 32, .counts = {0, 1, 0}, .segments = 8});
  ExpectSegments({.n = 70, .k = 4 * 96, .counts = {16, 0, 17, 1}, .a_gap = 8, .segments = 4});
  ExpectSegments({.n = 9, .k = 2 * 160, .counts = {64, 65}, .a_gap = 3, .segments = 2});
  ExpectSegments({.n = 17, .k = 2 * 32, .counts = {129, 130}, .a_shift = 1, .segments = 2});
}

// More than a launch takes; of the others there are no weights.
TEST_P(ExpertGemmTest, ExpertsAreAnyNumber) {
  std::vector<int32_t> counts(300);
  for (const int e : {0, 1, 31, 32, 127, 128, 129, 255, 256, 299}) counts[e] = 1 + e % 3;
  ExpectRowsOfGemm({.n = 5, .k = 16, .counts = counts, .bias = true}, "300");
}

TEST_P(ExpertGemmTest, NoRowsAndNoExpertsLaunchNothingThatReads) {
  const PackedMatrix nowhere = Nowhere(GetParam().in, 8, 8);
  const DeviceArray<int32_t> offsets(std::vector<int32_t>{0, 0});
  const DeviceFloats a(GetParam().in, 4 * 8), out(GetParam().out, 4 * 8);
  ExpertGemmArgs args{.a = a,
                      .a_stride = 8,
                      .num_a_rows = 4,
                      .expert_offsets = offsets.data(),
                      .num_experts = 1,
                      .weights = &nowhere,
                      .out = out,
                      .out_stride = 8};
  EXPECT_EQ(ExpertGemm(args, nullptr), cudaSuccess);  // Four rows that no expert has.
  args.num_experts = 0;
  EXPECT_EQ(ExpertGemm(args, nullptr), cudaSuccess);
  for (const float x : out.Read()) EXPECT_TRUE(std::isnan(x));
}

TEST_P(ExpertGemmTest, RefusesOtherTypesAndOtherDevicesWeights) {
  const DType in = GetParam().in, other = in == DType::kBF16 ? DType::kF16 : DType::kBF16;
  const PackedMatrix weights[] = {DeviceMatrix(in, RandomFloats(1, 64), 8, 8),
                                  DeviceMatrix(other, RandomFloats(1, 64), 8, 8)};
  const PackedMatrix cpus(8, 8, in, WeightFormat::kCpuPanels, Buffer());
  const DeviceArray<int32_t> offsets(std::vector<int32_t>{0, 1});
  const DeviceFloats a(in, 8), out(GetParam().out, 8), f8(other, 8);
  const ExpertGemmArgs args{.a = a,
                            .a_stride = 8,
                            .num_a_rows = 1,
                            .expert_offsets = offsets.data(),
                            .num_experts = 1,
                            .weights = weights,
                            .out = out,
                            .out_stride = 8};
  const auto refused = [&](auto change) {
    ExpertGemmArgs changed = args;
    change(changed);
    return ExpertGemm(changed, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([&](auto& x) { x.weights = &weights[1]; }));
  EXPECT_TRUE(refused([&](auto& x) { x.weights = &cpus; }));
  EXPECT_TRUE(refused([&](auto& x) { x.a = f8; }));
  EXPECT_TRUE(refused([&](auto& x) { x.out = f8; }));
}

INSTANTIATE_TEST_SUITE_P(Types, ExpertGemmTest,
                         testing::Values(Types{DType::kBF16, DType::kF32},
                                         Types{DType::kBF16, DType::kBF16},
                                         Types{DType::kF16, DType::kF32},
                                         Types{DType::kF16, DType::kF16}),
                         [](const auto& info) {
                           return std::string(ToString(info.param.in)) + "_to_" +
                                  std::string(ToString(info.param.out));
                         });

}  // namespace
}  // namespace baton::cuda
