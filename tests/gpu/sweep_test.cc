// The bits of a row, whatever number of rows it is computed with, and in any order: every number up
// to 600 on a device; under the emulation those around the edges of tiles.

#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "kernels/cuda/cache.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/rows.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

constexpr int64_t kMostRows = 600;

std::vector<int64_t> RowCounts() {
#if defined(BATON_CUDA_DEVICE)
  std::vector<int64_t> counts;
  for (int64_t m = 1; m <= kMostRows; ++m) counts.push_back(m);
  return counts;
#else
  return {1, 2, 7, 16, 17, 31, 33, 64, 65, 127, 129};
#endif
}

// Of products, whose tiles depend on it, also some beyond.
std::vector<int64_t> ProductCounts() {
  std::vector<int64_t> counts = RowCounts();
#if !defined(BATON_CUDA_DEVICE)
  Random random(600);
  for (const int64_t first : {130, 250, 380, 500}) {
    counts.push_back(first + static_cast<int64_t>(random.Below(100)));
  }
  counts.push_back(kMostRows);
#endif
  return counts;
}

using Order = std::vector<int32_t>;
using Bytes = std::vector<std::byte>;

// Some rows of a matrix, in that order.
std::vector<float> RowsOf(const std::vector<float>& all, int64_t columns, const Order& order) {
  std::vector<float> rows;
  for (const int32_t row : order) {
    rows.insert(rows.end(), all.begin() + row * columns, all.begin() + (row + 1) * columns);
  }
  return rows;
}

class SweepTest : public DeviceTest {
 protected:
  // `run` gives what comes of some of the rows of its input, in that order.
  template <typename Run>
  void ExpectAnyOrder(const Run& run) {
    Order all(RowCounts().back());
    std::iota(all.begin(), all.end(), 0);
    const Bytes expected = run(all);
    const size_t row_bytes = expected.size() / all.size();
    for (const int64_t m : RowCounts()) {
      Order order = all;
      Random random(m);
      for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
      order.resize(m);
      const Bytes got = run(order);
      ASSERT_EQ(got.size(), m * row_bytes);
      for (int64_t i = 0; i < m; ++i) {
        EXPECT_EQ(std::memcmp(&got[i * row_bytes], &expected[order[i] * row_bytes], row_bytes), 0)
            << "row " << i << " of " << m;
      }
    }
  }

  // `run` computes the first m rows of `out` from the first m rows of its input.
  template <typename Run>
  void ExpectRowsAlone(const Run& run, DType dtype, int64_t columns,
                       const std::vector<int64_t>& counts = RowCounts()) {
    const int64_t most = counts.back();
    const DeviceFloats all(dtype, most * columns);
    ASSERT_EQ(run(most, all), cudaSuccess);
    const auto expected = all.ReadBytes();
    for (const int64_t m : counts) {
      const DeviceFloats out(dtype, m * columns);
      ASSERT_EQ(run(m, out), cudaSuccess);
      const auto got = out.ReadBytes();
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size()), 0) << m << " rows";
    }
  }
};

TEST_F(SweepTest, OfProducts) {
  constexpr int64_t kN = 70, kK = 136;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const DeviceFloats a(dtype, RandomFloats(1, kMostRows * kK));
    const PackedMatrix weights = DeviceMatrix(dtype, RandomFloats(2, kN * kK), kN, kK);
    const auto run = [&](int64_t m, const DeviceFloats& out) {
      return Gemm({.a = a,
                   .a_stride = kK,
                   .m = m,
                   .weights = &weights,
                   .out = out,
                   .out_stride = kN},
                  {}, nullptr);
    };
    ExpectRowsAlone(run, DType::kF32, kN, ProductCounts());
  }
}

TEST_F(SweepTest, OfNorms) {
  constexpr int64_t kDim = 516;
  const DeviceFloats x(DType::kBF16, RandomFloats(3, kMostRows * kDim));
  const DeviceFloats weight(DType::kF32, RandomFloats(4, kDim));
  const auto run = [&](int64_t m, const DeviceFloats& out) {
    return RmsNorm({.x = x,
                    .x_stride = kDim,
                    .num_tokens = m,
                    .dim = kDim,
                    .weight = weight.f32(),
                    .round_to = DType::kBF16,
                    .out = out,
                    .out_stride = kDim},
                   nullptr);
  };
  ExpectRowsAlone(run, DType::kBF16, kDim);
}

TEST_F(SweepTest, OfActivations) {
  constexpr int64_t kDim = 72;
  const DeviceFloats x(DType::kBF16, RandomFloats(5, kMostRows * 2 * kDim));
  const auto run = [&](int64_t m, const DeviceFloats& out) {
    return ActivationAndMul({x, m, kDim, {}, DType::kBF16, out}, nullptr);
  };
  ExpectRowsAlone(run, DType::kBF16, kDim);
}

TEST_F(SweepTest, OfLayerNorms) {
  constexpr int64_t kDim = 264;
  const auto x = RandomFloats(6, kMostRows * kDim);
  const DeviceFloats weight(DType::kF32, RandomFloats(7, kDim));
  const DeviceFloats bias(DType::kF32, RandomFloats(8, kDim));
  ExpectAnyOrder([&](const Order& order) {
    const DeviceFloats in(DType::kBF16, RowsOf(x, kDim, order));
    const DeviceFloats out(DType::kBF16, std::ssize(order) * kDim);
    EXPECT_EQ(LayerNorm({.x = in,
                         .x_stride = kDim,
                         .num_tokens = std::ssize(order),
                         .dim = kDim,
                         .weight = weight.f32(),
                         .bias = bias.f32(),
                         .round_to = DType::kBF16,
                         .out = out,
                         .out_stride = kDim},
                        nullptr),
              cudaSuccess);
    return out.ReadBytes();
  });
}

// Heads of q and k, which are normed each for itself, and the sum with the residual.
TEST_F(SweepTest, OfNormsOfHeadsAndOfResiduals) {
  constexpr int64_t kHeads = 3, kDim = 40, kWidth = kHeads * kDim;
  const auto x = RandomFloats(9, kMostRows * kWidth), sums = RandomFloats(10, kMostRows * kWidth);
  const DeviceFloats weight(DType::kF32, RandomFloats(11, kWidth));
  for (const bool heads : {true, false}) {
    ExpectAnyOrder([&](const Order& order) {
      const DeviceFloats in(DType::kF16, RowsOf(x, kWidth, order));
      const DeviceFloats residual(DType::kF32, RowsOf(sums, kWidth, order));
      const DeviceFloats out(DType::kF16, std::ssize(order) * kWidth);
      EXPECT_EQ(RmsNorm({.x = in,
                         .x_stride = kWidth,
                         .num_tokens = std::ssize(order),
                         .rows_per_token = heads ? kHeads : 1,
                         .dim = heads ? kDim : kWidth,
                         .weight = weight.f32(),
                         .eps = 1e-6f,
                         .residual = heads ? nullptr : residual.f32(),
                         .round_to = DType::kF16,
                         .out = out,
                         .out_stride = kWidth},
                        nullptr),
                cudaSuccess);
      return out.ReadBytes();
    });
  }
}

TEST_F(SweepTest, OfRotations) {
  constexpr int64_t kHeads = 3, kDim = 24, kHalf = 8, kWidth = kHeads * kDim;
  const auto x = RandomFloats(12, kMostRows * kWidth);
  const DeviceFloats inv_freq(DType::kF32, RandomFloats(13, kHalf));
  ExpectAnyOrder([&](const Order& order) {
    Order positions;
    for (const int32_t row : order) positions.push_back(row * 37 % 4096);
    const int64_t m = std::ssize(order);
    const DeviceArray<int32_t> at(positions);
    const DeviceFloats cos(DType::kF32, m * kHalf), sin(DType::kF32, m * kHalf);
    EXPECT_EQ(RotaryTable({.positions = at.data(),
                           .num_tokens = m,
                           .inv_freq = inv_freq.f32(),
                           .half = kHalf,
                           .cos = cos.f32(),
                           .sin = sin.f32()},
                          nullptr),
              cudaSuccess);
    const DeviceFloats rows(DType::kBF16, RowsOf(x, kWidth, order));
    EXPECT_EQ(Rope({.x = rows,
                    .x_stride = kWidth,
                    .num_tokens = m,
                    .num_heads = kHeads,
                    .head_dim = kDim,
                    .rotary_dim = 2 * kHalf,
                    .cos = cos.f32(),
                    .sin = sin.f32()},
                   nullptr),
              cudaSuccess);
    return rows.ReadBytes();
  });
}

TEST_F(SweepTest, OfRowsThatAreTakenFromTables) {
  constexpr int64_t kDim = 72;
  const auto values = RandomFloats(14, kMostRows * kDim);
  const PackedMatrix table = DeviceMatrix(DType::kBF16, values, kMostRows, kDim);
  const DeviceFloats from(DType::kBF16, values);
  for (const bool embedding : {true, false}) {
    ExpectAnyOrder([&](const Order& order) {
      const DeviceArray<int32_t> rows(order);
      const int64_t m = std::ssize(order);
      const DeviceFloats out(DType::kBF16, m * kDim);
      const SelectRowsArgs select{.from = from,
                                  .from_stride = kDim,
                                  .rows = rows.data(),
                                  .num_rows = m,
                                  .dim = kDim,
                                  .to = out,
                                  .to_stride = kDim};
      const EmbeddingArgs embed{
          .shards = {&table}, .tokens = rows.data(), .num_tokens = m, .out = out};
      EXPECT_EQ(embedding ? Embedding(embed, nullptr) : SelectRows(select, nullptr), cudaSuccess);
      return out.ReadBytes();
    });
  }
}

// Token i of the call goes to slot i, by rows of all heads.
TEST_F(SweepTest, OfTokensThatAreCached) {
  constexpr int32_t kHeads = 2, kDim = 24, kWidth = kHeads * kDim, kBlock = 12;
  const auto k = RandomFloats(15, kMostRows * kWidth), v = RandomFloats(16, kMostRows * kWidth);
  const DeviceFloats scales(DType::kF32, std::vector<float>{0.25f, 0.7f});
  for (const DType dtype : {DType::kBF16, DType::kFp8E4M3}) {
    ExpectAnyOrder([&](const Order& order) {
      const int64_t m = std::ssize(order), blocks = (m + kBlock - 1) / kBlock;
      std::vector<int64_t> slots(m);
      std::iota(slots.begin(), slots.end(), 0);
      const DeviceArray<int64_t> at(slots);
      const DeviceFloats key(DType::kBF16, RowsOf(k, kWidth, order));
      const DeviceFloats value(DType::kBF16, RowsOf(v, kWidth, order));
      CachePlane plane{.dtype = dtype,
                       .layout = CacheLayout::kNhd,
                       .num_blocks = blocks,
                       .num_heads = kHeads,
                       .block_size = kBlock,
                       .dim = kDim,
                       .block_stride = int64_t{kBlock} * kWidth,
                       .scales = scales.f32(),
                       .num_scales = IsFp8(dtype) ? kHeads : 0};
      const Bytes empty(blocks * plane.block_stride * SizeOf(dtype), std::byte{0xff});
      const DeviceBytes of_k(empty), of_v(empty);
      ReshapeAndCacheArgs args{key, kWidth, value, kWidth, at.data(), m, plane, plane};
      args.k_cache.data = static_cast<std::byte*>(of_k.data());
      args.v_cache.data = static_cast<std::byte*>(of_v.data());
      EXPECT_EQ(ReshapeAndCache(args, nullptr), cudaSuccess);
      const Bytes written_k = of_k.Read(), written_v = of_v.Read();
      Bytes rows;
      const int64_t row = kWidth * SizeOf(dtype);
      for (int64_t i = 0; i < m * row; i += row) {
        for (const Bytes* written : {&written_k, &written_v}) {
          rows.insert(rows.end(), written->begin() + i, written->begin() + i + row);
        }
      }
      return rows;
    });
  }
}

}  // namespace
}  // namespace baton::cuda
