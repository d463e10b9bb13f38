#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

struct Shape {
  int64_t m, n, k;
  int32_t segments;

  std::string Name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " in " +
           std::to_string(segments);
  }
};

struct Types {
  DType in;
  DType out;
  const char* gpu = "sm90";  // Its two forms; other GPUs have one for all.
};

// A product whose k is cut into segments, and perhaps divided among ranks.
class GemmSegmentsTest : public DeviceTest, public testing::WithParamInterface<Types> {
 protected:
  static constexpr int64_t kOutGap = 3;

  void SetUp() override {
    DeviceTest::SetUp();
    emulation::SetGpu(GetParam().gpu);
  }
  void TearDown() override {
    DeviceTest::TearDown();
    emulation::SetGpu("sm90");
  }

  void Fill(const Shape& shape) {
    shape_ = shape;
    a_ = Rounded(GetParam().in, RandomFloats(shape.m, shape.m * shape.k));
    b_ = Rounded(GetParam().in, RandomFloats(shape.n + 1, shape.n * shape.k));
    bias_ = RandomFloats(shape.n + 2, shape.n);
  }

  // The weights of columns [first, first + k).
  PackedMatrix Columns(int64_t first, int64_t k) const {
    std::vector<float> part;
    for (int64_t j = 0; j < shape_.n; ++j) {
      const auto row = b_.begin() + j * shape_.k + first;
      part.insert(part.end(), row, row + k);
    }
    return DeviceMatrix(GetParam().in, part, shape_.n, k);
  }

  // Part `index` of `count` of k, in so many segments, without the gaps between rows of `out`.
  std::vector<float> Multiply(DType out_type, int64_t index, int64_t count, int32_t segments,
                              int64_t scratch_rows, bool has_bias) const {
    const int64_t k = shape_.k / count, out_stride = shape_.n + kOutGap;
    const DeviceFloats a(GetParam().in, a_), bias(DType::kF32, bias_);
    const DeviceFloats scratch(DType::kF32, segments * scratch_rows * shape_.n);
    const DeviceFloats out(out_type, std::vector<float>(shape_.m * out_stride, 7));
    const PackedMatrix weights = Columns(index * k, k);
    EXPECT_EQ(Gemm({.a = ConstFloats(a).At(index * k),
                    .a_stride = shape_.k,
                    .m = shape_.m,
                    .weights = &weights,
                    .bias = has_bias ? bias.f32() : nullptr,
                    .out = out,
                    .out_stride = out_stride,
                    .segments = segments},
                   {scratch.f32(), static_cast<size_t>(segments * scratch_rows * shape_.n)},
                   nullptr),
              cudaSuccess);
    scratch.Read();  // For its guards.
    const std::vector<float> padded = out.Read();
    std::vector<float> dense;
    for (int64_t i = 0; i < shape_.m; ++i) {
      const auto row = padded.begin() + i * out_stride;
      dense.insert(dense.end(), row, row + shape_.n);
      EXPECT_EQ(std::count(row + shape_.n, row + out_stride, 7.0f), kOutGap) << "behind row " << i;
    }
    return dense;
  }
  std::vector<float> Whole(int64_t scratch_rows) const {
    return Multiply(GetParam().out, 0, 1, shape_.segments, scratch_rows, true);
  }

  // The tree of GemmArgs over products of one segment each.
  std::vector<float> Tree() const {
    std::vector<std::vector<float>> sums;
    for (int32_t s = 0; s < shape_.segments; ++s) {
      sums.push_back(Multiply(DType::kF32, s, shape_.segments, 1, 0, false));
    }
    for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
      for (size_t s = 0; 2 * s < sums.size(); ++s) {
        for (size_t i = 0; i < sums[s].size(); ++i) {
          const float sum = sums[2 * s][i] + sums[2 * s + 1][i];
          sums[s][i] = sum;
        }
      }
    }
    for (size_t i = 0; i < sums[0].size(); ++i) sums[0][i] += bias_[i % shape_.n];
    return Rounded(GetParam().out, sums[0]);
  }

  std::vector<float> Divided(int32_t size) const {
    const DeviceFloats bias(DType::kF32, bias_);
    const DeviceFloats out(GetParam().out, shape_.m * shape_.n);
    FoldPartialsArgs fold{.num_parts = size,
                          .num_tokens = shape_.m,
                          .dim = shape_.n,
                          .bias = bias.f32(),
                          .out = out};
    std::vector<std::unique_ptr<DeviceFloats>> memory;
    for (int32_t r = 0; r < size; ++r) {
      memory.push_back(std::make_unique<DeviceFloats>(
          DType::kF32, Multiply(DType::kF32, r, size, shape_.segments / size, shape_.m, false)));
      fold.parts[r] = memory.back()->f32();
    }
    EXPECT_EQ(FoldPartials(fold, nullptr), cudaSuccess);
    return out.Read();
  }

  Shape shape_;
  std::vector<float> a_, b_, bias_;
};

// Segments that end amid a tile of k, with it, and beyond all stages; every shape of tile.
TEST_P(GemmSegmentsTest, FoldsSegmentsAsATreeAndThenAddsTheBias) {
  for (const Shape& shape : {Shape{1, 70, 64, 2},
                             {3, 20, 8 * 96, 8},
                             {16, 65, 256, 8},
                             {17, 20, 4 * 96, 4},
                             {40, 12, 2 * 320, 2},
                             {64, 20, 512, 8},
                             {65, 20, 8 * 32, 8},
                             {130, 9, 4 * 160, 4}}) {
    SCOPED_TRACE(shape.Name());
    Fill(shape);
    EXPECT_EQ(Whole(shape.m), Tree());
  }
}

TEST_P(GemmSegmentsTest, RowsGoInPiecesWhereScratchIsShort) {
  Fill({70, 13, 256, 8});
  const std::vector<float> whole = Whole(70);
  for (const int64_t rows : {1, 7, 16, 35, 69}) EXPECT_EQ(Whole(rows), whole) << rows;
}

TEST_P(GemmSegmentsTest, RanksWithPartsOfKHaveTheBitsOfOne) {
  for (const Shape& shape : {Shape{2, 70, 8 * 96, 8}, {33, 20, 256, 8}, {66, 20, 4 * 96, 4}}) {
    SCOPED_TRACE(shape.Name());
    Fill(shape);
    const std::vector<float> whole = Whole(shape.m);
    for (int32_t size = 2; size <= shape.segments; size *= 2) {
      EXPECT_EQ(Divided(size), whole) << size << " ranks";
    }
  }
}

TEST_P(GemmSegmentsTest, NoRoomForARowIsSaid) {
  Fill({2, 16, 64, 2});
  const DeviceFloats a(GetParam().in, a_), out(GetParam().out, 2 * 16);
  const DeviceFloats scratch(DType::kF32, 2 * 16 - 1);
  const PackedMatrix weights = Columns(0, 64);
  EXPECT_EQ(MmaGemm({.a = a,
                     .a_stride = 64,
                     .m = 2,
                     .weights = &weights,
                     .out = out,
                     .out_stride = 16,
                     .segments = 2},
                    {scratch.f32(), 2 * 16 - 1}, nullptr),
            cudaErrorMemoryAllocation);
}

INSTANTIATE_TEST_SUITE_P(Types, GemmSegmentsTest,
                         testing::Values(Types{DType::kBF16, DType::kF32},
                                         Types{DType::kBF16, DType::kBF16},
                                         Types{DType::kF16, DType::kF32},
                                         Types{DType::kBF16, DType::kBF16, "sm80"}),
                         [](const auto& info) {
                           return std::string(ToString(info.param.in)) + "_to_" +
                                  std::string(ToString(info.param.out)) + "_" + info.param.gpu;
                         });

}  // namespace
}  // namespace baton::cuda
