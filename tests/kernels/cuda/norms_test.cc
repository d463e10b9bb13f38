#include "kernels/cuda/norms.h"

#include <cmath>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

// Around the vectors of 4, a warp's 128 elements, the change from a warp to a block, and its 1024.
constexpr int64_t kNormDims[] = {1, 3, 4, 64, 127, 128, 129, 511, 512, 513, 516, 1024, 1030, 2048};

struct Expected {
  std::vector<double> exact;
  std::vector<float> plain;
};

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

std::vector<float> Slice(const std::vector<float>& all, int64_t begin, int64_t n) {
  return {all.begin() + begin, all.begin() + begin + n};
}

class NormsTest : public DeviceCaseTest {};

TEST_P(NormsTest, RmsNormIsAccurateForEveryLengthOfRow) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t dim : kNormDims) {
    for (const size_t shift : {0, 1}) {
      const int64_t tokens = 3, parts = 2, x_stride = parts * dim + 5, out_stride = parts * dim + 3;
      const auto x = Rounded(in, RandomFloats(seed + dim, tokens * x_stride));
      const auto weight = RandomFloats(seed + 1, dim);
      const DeviceFloats device_x(in, x, shift), device_weight(DType::kF32, weight);
      const DeviceFloats out(out_type, std::vector<float>(tokens * out_stride, 7));
      const bool one_plus = dim % 2 == 1;
      ASSERT_EQ(RmsNorm({.x = device_x,
                         .x_stride = x_stride,
                         .num_tokens = tokens,
                         .rows_per_token = parts,
                         .dim = dim,
                         .weight = device_weight.f32(),
                         .one_plus_weight = one_plus,
                         .eps = 1e-5f,
                         .round_to = out_type,
                         .out = out,
                         .out_stride = out_stride},
                        nullptr),
                cudaSuccess);
      const auto got = out.Read();
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t p = 0; p < parts; ++p) {
          const auto row = Slice(x, t * x_stride + p * dim, dim);
          ExpectAccurate(Slice(got, t * out_stride + p * dim, dim),
                         Rounded(out_type, RmsRow<float>(row, weight, one_plus, 1e-5f)),
                         RmsRow<double>(row, weight, one_plus, 1e-5f),
                         "dim " + std::to_string(dim));
        }
        for (int64_t i = parts * dim; i < out_stride; ++i) EXPECT_EQ(got[t * out_stride + i], 7);
      }
    }
  }
}

TEST_P(NormsTest, RmsNormAddsToTheResidualFirst) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t dim : kNormDims) {
    const auto x = Rounded(in, RandomFloats(seed, 2 * dim));
    const auto before = RandomFloats(seed + 1, 2 * dim), weight = RandomFloats(seed + 2, dim);
    const DeviceFloats device_x(in, x), residual(DType::kF32, before);
    const DeviceFloats device_weight(DType::kF32, weight), out(out_type, 2 * dim);
    ASSERT_EQ(RmsNorm({.x = device_x,
                       .x_stride = dim,
                       .num_tokens = 2,
                       .dim = dim,
                       .weight = device_weight.f32(),
                       .eps = 1e-6f,
                       .residual = residual.f32(),
                       .round_to = out_type,
                       .out = out,
                       .out_stride = dim},
                      nullptr),
              cudaSuccess);
    std::vector<float> sum(2 * dim);
    for (int64_t i = 0; i < 2 * dim; ++i) sum[i] = x[i] + before[i];
    EXPECT_EQ(residual.Read(), sum);
    const auto got = out.Read();
    // The same with gaps between the rows of the residual, which stay.
    for (const int64_t stride : {dim + 1, dim + 4}) {
      std::vector<float> rows(2 * stride, 7), sums(2 * stride, 7);
      for (int64_t i = 0; i < 2 * dim; ++i) {
        rows[i / dim * stride + i % dim] = before[i];
        sums[i / dim * stride + i % dim] = sum[i];
      }
      const DeviceFloats apart(DType::kF32, rows), again(out_type, 2 * dim);
      ASSERT_EQ(RmsNorm({.x = device_x,
                         .x_stride = dim,
                         .num_tokens = 2,
                         .dim = dim,
                         .weight = device_weight.f32(),
                         .eps = 1e-6f,
                         .residual = apart.f32(),
                         .residual_stride = stride,
                         .round_to = out_type,
                         .out = again,
                         .out_stride = dim},
                        nullptr),
                cudaSuccess);
      EXPECT_EQ(apart.Read(), sums);
      EXPECT_EQ(again.Read(), got);
    }
    for (int64_t t = 0; t < 2; ++t) {
      const auto row = Slice(sum, t * dim, dim);
      ExpectAccurate(Slice(got, t * dim, dim),
                     Rounded(out_type, RmsRow<float>(row, weight, false, 1e-6f)),
                     RmsRow<double>(row, weight, false, 1e-6f), "dim " + std::to_string(dim));
    }
  }
}

TEST_P(NormsTest, LayerNormIsAccurateForEveryLengthOfRow) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t dim : kNormDims) {
    for (const bool has_bias : {false, true}) {
      const int64_t tokens = 3, x_stride = dim + 4, out_stride = dim + 2;
      // Far from zero, where a variance as a difference of means would be lost.
      auto x = RandomFloats(seed + dim, tokens * x_stride);
      for (float& v : x) v += 8;
      x = Rounded(in, x);
      const auto weight = RandomFloats(seed + 1, dim);
      const auto bias = has_bias ? RandomFloats(seed + 2, dim) : std::vector<float>(dim);
      const DeviceFloats device_x(in, x), device_weight(DType::kF32, weight);
      const DeviceFloats device_bias(DType::kF32, bias), out(out_type, tokens * out_stride);
      ASSERT_EQ(LayerNorm({.x = device_x,
                           .x_stride = x_stride,
                           .num_tokens = tokens,
                           .dim = dim,
                           .weight = device_weight.f32(),
                           .bias = has_bias ? device_bias.f32() : nullptr,
                           .eps = 1e-5f,
                           .round_to = out_type,
                           .out = out,
                           .out_stride = out_stride},
                          nullptr),
                cudaSuccess);
      const auto got = out.Read();
      for (int64_t t = 0; t < tokens; ++t) {
        const auto row = Slice(x, t * x_stride, dim);
        ExpectAccurate(Slice(got, t * out_stride, dim),
                       Rounded(out_type, LayerRow<float>(row, weight, bias, 1e-5f)),
                       LayerRow<double>(row, weight, bias, 1e-5f), "dim " + std::to_string(dim));
      }
    }
  }
}

// A row's bytes are those it has alone, wherever it stands and however it is aligned.
TEST_P(NormsTest, RowsDoNotDependOnTheirBatch) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t dim : {96, 768}) {
    const int64_t most = 70;
    const auto x = Rounded(in, RandomFloats(seed, most * dim));
    const auto weight = RandomFloats(seed + 1, dim);
    const DeviceFloats device_weight(DType::kF32, weight);
    const auto run = [&](int64_t first, int64_t tokens, size_t shift) {
      const DeviceFloats device_x(in, Slice(x, first * dim, tokens * dim), shift);
      const DeviceFloats out(out_type, tokens * dim);
      EXPECT_EQ(RmsNorm({.x = device_x,
                         .x_stride = dim,
                         .num_tokens = tokens,
                         .dim = dim,
                         .weight = device_weight.f32(),
                         .eps = 1e-5f,
                         .round_to = out_type,
                         .out = out,
                         .out_stride = dim},
                        nullptr),
                cudaSuccess);
      return out.ReadBytes();
    };
    const auto whole = run(0, most, 0);
    const int64_t row_bytes = dim * SizeOf(out_type);
    for (const int64_t t : {0, 1, 7, 8, 69}) {
      const std::vector<std::byte> expected(whole.begin() + t * row_bytes,
                                            whole.begin() + (t + 1) * row_bytes);
      EXPECT_EQ(run(t, 1, t % 4), expected) << "row " << t;
    }
  }
}

// Whichever operand no vector can load, the row is the same.
TEST_P(NormsTest, EachOperandMayLieAnywhere) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t dim : {8, 516}) {
    const auto x = Rounded(in, RandomFloats(seed, 2 * dim));
    const auto weight = RandomFloats(seed + 1, dim), other = RandomFloats(seed + 2, 2 * dim);
    const auto run = [&](int moved, bool layer) {
      const DeviceFloats device_x(in, x, moved == 1), out(out_type, 2 * dim, moved == 2);
      const DeviceFloats device_weight(DType::kF32, weight, moved == 3);
      // A residual or a bias.
      const DeviceFloats device_other(DType::kF32, other, moved == 4);
      const auto error = layer ? LayerNorm({.x = device_x,
                                            .x_stride = dim,
                                            .num_tokens = 2,
                                            .dim = dim,
                                            .weight = device_weight.f32(),
                                            .bias = device_other.f32(),
                                            .eps = 1e-5f,
                                            .round_to = out_type,
                                            .out = out,
                                            .out_stride = dim},
                                           nullptr)
                               : RmsNorm({.x = device_x,
                                          .x_stride = dim,
                                          .num_tokens = 2,
                                          .dim = dim,
                                          .weight = device_weight.f32(),
                                          .eps = 1e-5f,
                                          .residual = device_other.f32(),
                                          .round_to = out_type,
                                          .out = out,
                                          .out_stride = dim},
                                         nullptr);
      EXPECT_EQ(error, cudaSuccess);
      return out.ReadBytes();
    };
    for (const bool layer : {false, true}) {
      const auto expected = run(0, layer);
      for (int moved = 1; moved <= 4; ++moved) EXPECT_EQ(run(moved, layer), expected) << moved;
    }
  }
}

// Without epsilon it would be none.
TEST_P(NormsTest, ARowOfZerosIsZeros) {
  const auto [in, out_type, seed] = GetParam();
  constexpr int64_t kDim = 20;
  const DeviceFloats x(in, std::vector<float>(kDim)), weight(DType::kF32, RandomFloats(seed, kDim));
  const DeviceFloats rms(out_type, kDim), layer(out_type, kDim);
  ASSERT_EQ(RmsNorm({.x = x,
                     .num_tokens = 1,
                     .dim = kDim,
                     .weight = weight.f32(),
                     .eps = 1e-6f,
                     .round_to = out_type,
                     .out = rms},
                    nullptr),
            cudaSuccess);
  ASSERT_EQ(LayerNorm({.x = x,
                       .num_tokens = 1,
                       .dim = kDim,
                       .weight = weight.f32(),
                       .eps = 1e-6f,
                       .round_to = out_type,
                       .out = layer},
                      nullptr),
            cudaSuccess);
  for (const float v : rms.Read()) EXPECT_EQ(v, 0);
  for (const float v : layer.Read()) EXPECT_EQ(v, 0);
}

TEST(OperandsTest, RoundsToTheTypeOfTheOutputAndNoOther) {
  float x[4];
  EXPECT_EQ(RmsNorm({.x = x, .num_tokens = 1, .dim = 1, .round_to = DType::kBF16, .out = x},
                    nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(LayerNorm({.x = x, .num_tokens = 1, .dim = 1, .round_to = DType::kBF16, .out = x},
                      nullptr),
            cudaErrorInvalidValue);
}

TEST(OperandsTest, RefusesTwoHalfTypesAndFp8) {
  for (const auto& [in, out] : {std::pair(DType::kBF16, DType::kF16),
                               std::pair(DType::kF32, DType::kFp8E4M3),
                               std::pair(DType::kFp8E5M2, DType::kF32)}) {
    EXPECT_EQ(RmsNorm({.x = {nullptr, in},
                       .num_tokens = 1,
                       .dim = 1,
                       .round_to = out,
                       .out = {nullptr, out}},
                      nullptr),
              cudaErrorInvalidValue);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, NormsTest, testing::ValuesIn(DeviceCases()), NameOfCase);

}  // namespace
}  // namespace baton::cuda
