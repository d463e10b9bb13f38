#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_sm90.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {

struct TwoFormsShape {
  int64_t m, n, k;
  int32_t segments = 1;
  bool bias = true;
  int64_t gap = 0;        // Behind each row of tokens.
  int64_t first_row = 0;  // Of the weights, which have as many more behind the last.

  std::string Name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " in " +
           std::to_string(segments);
  }
};

struct TwoFormsTypes {
  DType in;
  DType out;
};

inline std::string NameOfTypes(const testing::TestParamInfo<TwoFormsTypes>& info) {
  return std::string(ToString(info.param.in)) + "_to_" + std::string(ToString(info.param.out));
}

inline const TwoFormsTypes kTwoFormsTypes[] = {{DType::kBF16, DType::kF32},
                                               {DType::kBF16, DType::kBF16},
                                               {DType::kF16, DType::kF32},
                                               {DType::kF16, DType::kF16}};

// A form of Gemm that sm_90a has; that for every GPU is the oracle.
class TwoFormsTest : public DeviceTest, public testing::WithParamInterface<TwoFormsTypes> {
 protected:
  using Form = cudaError_t(const GemmArgs& args, cudaStream_t stream);

  explicit TwoFormsTest(Form* form) : form_(form) {}

  void SetUp() override {
    DeviceTest::SetUp();
    emulation::SetGpu("sm90");
    if (!IsSm90()) GTEST_SKIP() << "the device is no sm_90";
  }

  // Whatever is between rows is NaN: nobody may read it.
  DeviceFloats Tokens(const TwoFormsShape& shape) const {
    const auto dense = RandomFloats(shape.m + shape.k, shape.m * shape.k);
    std::vector<float> rows(shape.m * (shape.k + shape.gap), NAN);
    for (int64_t i = 0; i < shape.m * shape.k; ++i) {
      rows[i / shape.k * (shape.k + shape.gap) + i % shape.k] = dense[i];
    }
    return DeviceFloats(GetParam().in, rows);
  }

  // Both forms' results, with what lies behind their rows.
  std::vector<std::vector<std::byte>> Multiply(const TwoFormsShape& shape) const {
    const DeviceFloats a = Tokens(shape);
    const PackedMatrix weights =
        DeviceMatrix(GetParam().in,
                     Rounded(GetParam().in,
                             RandomFloats(shape.n + 1, (shape.n + 2 * shape.first_row) * shape.k)),
                     shape.n + 2 * shape.first_row, shape.k);
    const DeviceFloats bias(DType::kF32, RandomFloats(shape.n + 2, shape.n));
    const DeviceFloats scratch(DType::kF32, shape.segments * shape.m * shape.n);
    const int64_t out_stride = shape.n + 3;
    std::vector<std::vector<std::byte>> results;
    for (const bool is_sm90 : {false, true}) {
      const DeviceFloats out(GetParam().out, std::vector<float>(shape.m * out_stride, 7));
      const GemmArgs args{.a = a,
                          .a_stride = shape.k + shape.gap,
                          .m = shape.m,
                          .weights = &weights,
                          .bias = shape.bias ? bias.f32() : nullptr,
                          .out = out,
                          .out_stride = out_stride,
                          .segments = shape.segments,
                          .first_row = shape.first_row,
                          .num_rows = shape.n};
      EXPECT_TRUE(GemmSm90Takes(args));
      const auto scratch_size = static_cast<size_t>(shape.segments * shape.m * shape.n);
      EXPECT_EQ(
          is_sm90 ? form_(args, nullptr) : MmaGemm(args, {scratch.f32(), scratch_size}, nullptr),
          cudaSuccess);
      results.push_back(out.ReadBytes());
    }
    return results;
  }

  void ExpectEqualBits(const std::vector<TwoFormsShape>& shapes) const {
    for (const TwoFormsShape& shape : shapes) {
      SCOPED_TRACE(shape.Name());
      const auto results = Multiply(shape);
      EXPECT_EQ(results[0], results[1]);
      if (HasFailure()) return;
    }
  }

 private:
  Form* form_;
};

}  // namespace baton::cuda
