// RmsNorm and LayerNorm of every device, against fp64 loops.
#include <cmath>
#include <vector>

#include "tests/kernels/op_cases.h"

namespace baton {
namespace {

using NormsTest = OpTest;
using NormsInPlaceTest = OpTest;

// Around the CPU's vectors, a GPU's of 4 and a warp's 128 elements, the change from a warp to a
// block, and its 1024.
constexpr int64_t kNormDims[] = {1,   3,   4,   8,   10,  33,   64,   127,  128,
                                 129, 511, 512, 513, 516, 1024, 1030, 2048};

template <typename T>
std::vector<T> RmsRow(const std::vector<float>& x, const std::vector<float>& weight,
                      bool one_plus, float eps) {
  T squares = 0;
  for (const float v : x) squares += T{v} * T{v};
  const T inverse = 1 / std::sqrt(squares / static_cast<T>(x.size()) + T{eps});
  std::vector<T> out;
  for (size_t i = 0; i < x.size(); ++i) {
    out.push_back(T{x[i]} * inverse * (T{weight[i]} + (one_plus ? 1 : 0)));
  }
  return out;
}

template <typename T>
std::vector<T> LayerRow(const std::vector<float>& x, const std::vector<float>& weight,
                        const std::vector<float>& bias, float eps) {
  T sum = 0, squares = 0;
  for (const float v : x) sum += T{v};
  const T mean = sum / static_cast<T>(x.size());
  for (const float v : x) squares += (T{v} - mean) * (T{v} - mean);
  const T inverse = 1 / std::sqrt(squares / static_cast<T>(x.size()) + T{eps});
  std::vector<T> out;
  for (size_t i = 0; i < x.size(); ++i) {
    out.push_back((T{x[i]} - mean) * inverse * T{weight[i]} + T{bias[i]});
  }
  return out;
}

void ExpectRow(const std::vector<float>& got, DType out, const std::vector<float>& plain,
               const std::vector<double>& exact) {
  EXPECT_EQ(Rounded(out, got), got);
  ExpectAccurate(got, Rounded(out, plain), exact, "dim " + std::to_string(got.size()));
}

TEST_P(NormsTest, RmsNormIsAccurateForEveryLengthOfRow) {
  for (const int64_t dim : kNormDims) {
    for (const size_t shift : {0, 1}) {
      const int64_t tokens = 3, parts = 2, x_stride = parts * dim + 5, out_stride = parts * dim + 3;
      const auto x = Behind(shift, Rounded(in_, RandomFloats(seed_ + dim, tokens * x_stride)));
      const auto weight = RandomFloats(seed_ + 1, dim);
      GuardedFloats out = Sevens(tokens * out_stride);
      const bool one_plus = dim % 2 == 1;
      ASSERT_EQ(ops_->RmsNorm({.x = x.data() + shift,
                               .x_stride = x_stride,
                               .num_tokens = tokens,
                               .rows_per_token = parts,
                               .dim = dim,
                               .weight = weight.data(),
                               .one_plus_weight = one_plus,
                               .eps = 1e-5f,
                               .round_to = out_,
                               .out = out.data(),
                               .out_stride = out_stride}),
                absl::OkStatus());
      EXPECT_TRUE(out.GuardsIntact());
      const auto got = out.values();
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t p = 0; p < parts; ++p) {
          const auto row = Cut(x, shift + t * x_stride + p * dim, dim);
          ExpectRow(Cut(got, t * out_stride + p * dim, dim), out_,
                    RmsRow<float>(row, weight, one_plus, 1e-5f),
                    RmsRow<double>(row, weight, one_plus, 1e-5f));
        }
        for (int64_t i = parts * dim; i < out_stride; ++i) EXPECT_EQ(got[t * out_stride + i], 7);
      }
    }
  }
}

// Dense, and with gaps between the rows of the residual, which stay.
TEST_P(NormsTest, RmsNormAddsToTheResidualFirst) {
  for (const int64_t dim : kNormDims) {
    const auto x = Rounded(in_, RandomFloats(seed_, 2 * dim));
    const auto before = RandomFloats(seed_ + 1, 2 * dim), weight = RandomFloats(seed_ + 2, dim);
    std::vector<float> sum(2 * dim), dense;
    for (int64_t i = 0; i < 2 * dim; ++i) sum[i] = x[i] + before[i];
    for (const int64_t gap : {0, 1, 4}) {
      const int64_t stride = dim + gap;
      GuardedFloats residual = Sevens(2 * stride), out(2 * dim);
      std::vector<float> sums(2 * stride, 7);
      for (int64_t i = 0; i < 2 * dim; ++i) {
        residual.data()[i / dim * stride + i % dim] = before[i];
        sums[i / dim * stride + i % dim] = sum[i];
      }
      ASSERT_EQ(ops_->RmsNorm({.x = x.data(),
                               .x_stride = dim,
                               .num_tokens = 2,
                               .dim = dim,
                               .weight = weight.data(),
                               .eps = 1e-6f,
                               .residual = residual.data(),
                               .residual_stride = gap == 0 ? 0 : stride,
                               .round_to = out_,
                               .out = out.data(),
                               .out_stride = dim}),
                absl::OkStatus());
      EXPECT_TRUE(residual.GuardsIntact() && out.GuardsIntact());
      EXPECT_EQ(residual.values(), sums);
      if (gap == 0) dense = out.values();
      EXPECT_EQ(out.values(), dense);
    }
    for (int64_t t = 0; t < 2; ++t) {
      const auto row = Cut(sum, t * dim, dim);
      ExpectRow(Cut(dense, t * dim, dim), out_, RmsRow<float>(row, weight, false, 1e-6f),
                RmsRow<double>(row, weight, false, 1e-6f));
    }
  }
}

TEST_P(NormsInPlaceTest, RmsNormOfHeadsTouchesOnlyThoseHeads) {
  const int64_t dim = 10, heads = 3, stride = 50;
  const auto x = Rounded(in_, RandomFloats(seed_, 2 * stride));
  const auto weight = RandomFloats(seed_ + 1, dim);
  std::vector<float> got = x;
  ASSERT_EQ(ops_->RmsNorm({.x = got.data(),
                           .x_stride = stride,
                           .num_tokens = 2,
                           .rows_per_token = heads,
                           .dim = dim,
                           .weight = weight.data(),
                           .eps = 1e-6f,
                           .round_to = out_,
                           .out = got.data(),
                           .out_stride = stride}),
            absl::OkStatus());
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const auto row = Cut(x, t * stride + h * dim, dim);
      ExpectRow(Cut(got, t * stride + h * dim, dim), out_,
                RmsRow<float>(row, weight, false, 1e-6f),
                RmsRow<double>(row, weight, false, 1e-6f));
    }
    EXPECT_EQ(Cut(got, t * stride + heads * dim, stride - heads * dim),
              Cut(x, t * stride + heads * dim, stride - heads * dim));
  }
}

TEST_P(NormsTest, LayerNormIsAccurateForEveryLengthOfRow) {
  for (const int64_t dim : kNormDims) {
    for (const bool has_bias : {false, true}) {
      const int64_t tokens = 3, x_stride = dim + 4, out_stride = dim + 2;
      // Far from zero, where a variance as a difference of means would be lost.
      auto x = RandomFloats(seed_ + dim, tokens * x_stride);
      for (float& v : x) v += 8;
      x = Rounded(in_, x);
      const auto weight = RandomFloats(seed_ + 1, dim);
      const auto bias = has_bias ? RandomFloats(seed_ + 2, dim) : std::vector<float>(dim);
      GuardedFloats out = Sevens(tokens * out_stride);
      ASSERT_EQ(ops_->LayerNorm({.x = x.data(),
                                 .x_stride = x_stride,
                                 .num_tokens = tokens,
                                 .dim = dim,
                                 .weight = weight.data(),
                                 .bias = has_bias ? bias.data() : nullptr,
                                 .eps = 1e-5f,
                                 .round_to = out_,
                                 .out = out.data(),
                                 .out_stride = out_stride}),
                absl::OkStatus());
      EXPECT_TRUE(out.GuardsIntact());
      const auto got = out.values();
      for (int64_t t = 0; t < tokens; ++t) {
        const auto row = Cut(x, t * x_stride, dim);
        ExpectRow(Cut(got, t * out_stride, dim), out_, LayerRow<float>(row, weight, bias, 1e-5f),
                  LayerRow<double>(row, weight, bias, 1e-5f));
        for (int64_t i = dim; i < out_stride; ++i) EXPECT_EQ(got[t * out_stride + i], 7);
      }
    }
  }
}

// A row's bytes are those it has alone, wherever it stands and however it is aligned.
TEST_P(NormsTest, RowsDoNotDependOnTheirBatch) {
  for (const int64_t dim : {96, 768}) {
    const int64_t most = 70;
    const auto x = Rounded(in_, RandomFloats(seed_, most * dim));
    const auto weight = RandomFloats(seed_ + 1, dim);
    const auto run = [&](int64_t first, int64_t tokens, size_t shift) {
      const auto rows = Behind(shift, Cut(x, first * dim, tokens * dim));
      GuardedFloats out(tokens * dim);
      EXPECT_EQ(ops_->RmsNorm({.x = rows.data() + shift,
                               .x_stride = dim,
                               .num_tokens = tokens,
                               .dim = dim,
                               .weight = weight.data(),
                               .eps = 1e-5f,
                               .round_to = out_,
                               .out = out.data(),
                               .out_stride = dim}),
                absl::OkStatus());
      return out.values();
    };
    const auto whole = run(0, most, 0);
    for (const int64_t t : {0, 1, 7, 8, 69}) {
      EXPECT_EQ(run(t, 1, t % 4), Cut(whole, t * dim, dim)) << "row " << t;
    }
  }
}

// Whichever operand no vector can load, the row is the same.
TEST_P(NormsTest, EachOperandMayLieAnywhere) {
  for (const int64_t dim : {8, 516}) {
    const auto x = Rounded(in_, RandomFloats(seed_, 2 * dim));
    const auto weight = RandomFloats(seed_ + 1, dim), other = RandomFloats(seed_ + 2, 2 * dim);
    const auto run = [&](int moved, bool layer) {
      const auto shift = [&](int operand) { return static_cast<size_t>(moved == operand); };
      const auto moved_x = Behind(shift(1), x), moved_weight = Behind(shift(3), weight);
      auto moved_other = Behind(shift(4), other);  // A residual or a bias.
      std::vector<float> out(shift(2) + 2 * dim);
      const absl::Status status =
          layer ? ops_->LayerNorm({.x = moved_x.data() + shift(1),
                                   .x_stride = dim,
                                   .num_tokens = 2,
                                   .dim = dim,
                                   .weight = moved_weight.data() + shift(3),
                                   .bias = moved_other.data() + shift(4),
                                   .eps = 1e-5f,
                                   .round_to = out_,
                                   .out = out.data() + shift(2),
                                   .out_stride = dim})
                : ops_->RmsNorm({.x = moved_x.data() + shift(1),
                                 .x_stride = dim,
                                 .num_tokens = 2,
                                 .dim = dim,
                                 .weight = moved_weight.data() + shift(3),
                                 .eps = 1e-5f,
                                 .residual = moved_other.data() + shift(4),
                                 .round_to = out_,
                                 .out = out.data() + shift(2),
                                 .out_stride = dim});
      EXPECT_EQ(status, absl::OkStatus());
      return Cut(out, static_cast<int64_t>(shift(2)), 2 * dim);
    };
    for (const bool layer : {false, true}) {
      const auto expected = run(0, layer);
      for (int moved = 1; moved <= 4; ++moved) EXPECT_EQ(run(moved, layer), expected) << moved;
    }
  }
}

// Without epsilon it would be none.
TEST_P(NormsTest, ARowOfZerosIsZeros) {
  constexpr int64_t kDim = 20;
  const std::vector<float> x(kDim), weight = RandomFloats(seed_, kDim);
  std::vector<float> rms(kDim, 7), layer(kDim, 7);
  ASSERT_EQ(ops_->RmsNorm({.x = x.data(),
                           .x_stride = kDim,
                           .num_tokens = 1,
                           .dim = kDim,
                           .weight = weight.data(),
                           .eps = 1e-6f,
                           .round_to = out_,
                           .out = rms.data(),
                           .out_stride = kDim}),
            absl::OkStatus());
  ASSERT_EQ(ops_->LayerNorm({.x = x.data(),
                             .x_stride = kDim,
                             .num_tokens = 1,
                             .dim = kDim,
                             .weight = weight.data(),
                             .eps = 1e-6f,
                             .round_to = out_,
                             .out = layer.data(),
                             .out_stride = kDim}),
            absl::OkStatus());
  EXPECT_EQ(rms, x);
  EXPECT_EQ(layer, x);
}

BATON_FOR_EACH_OP_CASE(NormsTest, OpCases());
BATON_FOR_EACH_OP_CASE(NormsInPlaceTest, OpCasesOfOneType());

}  // namespace
}  // namespace baton
