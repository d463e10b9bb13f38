// Correct kernels under 500 orders of threads, blocks and copies: the detectors say nothing, and
// results have the same bytes.

#include <functional>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cache.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/norms.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

class EveryOrderTest : public DeviceTest {
 protected:
  // `run` launches kernels that write all of `out`.
  void ExpectOneResult(const DeviceFloats& out, const std::function<cudaError_t()>& run) {
    ASSERT_EQ(run(), cudaSuccess);
    const auto expected = out.ReadBytes();
    for (uint64_t seed = 1; seed <= 500; ++seed) {
      emulation::SetSeed(seed);
      ASSERT_EQ(run(), cudaSuccess);
      ASSERT_TRUE(out.ReadBytes() == expected) << seed << emulation::LastMessage();
    }
  }
  DeviceFloats Random(DType dtype, int64_t n) { return DeviceFloats(dtype, RandomFloats(3, n)); }
};

TEST_F(EveryOrderTest, OfNorms) {
  const DeviceFloats x = Random(DType::kBF16, 2 * 516), weight = Random(DType::kF32, 516);
  const DeviceFloats out(DType::kBF16, 2 * 516);
  ExpectOneResult(out, [&] {
    return RmsNorm({.x = x,
                    .x_stride = 516,
                    .num_tokens = 2,
                    .dim = 516,
                    .weight = weight.f32(),
                    .round_to = DType::kBF16,
                    .out = out,
                    .out_stride = 516},
                   nullptr);
  });
  ExpectOneResult(out, [&] {
    return LayerNorm({.x = x,
                      .x_stride = 516,
                      .num_tokens = 2,
                      .dim = 516,
                      .weight = weight.f32(),
                      .eps = 1e-5f,
                      .round_to = DType::kBF16,
                      .out = out,
                      .out_stride = 516},
                     nullptr);
  });
}

TEST_F(EveryOrderTest, OfElementwiseOperators) {
  const DeviceFloats x = Random(DType::kF32, 3 * 600), out(DType::kF32, 3 * 300);
  ExpectOneResult(out, [&] { return ActivationAndMul({x, 3, 300, {}, {}, out}, nullptr); });
}

TEST_F(EveryOrderTest, OfProductsWithManyAndFewTokens) {
  for (const int64_t m : {3, 40, 66}) {
    const int64_t n = 24, k = 136;
    const DeviceFloats a = Random(DType::kBF16, m * k);
    const PackedMatrix weights = DeviceMatrix(DType::kBF16, RandomFloats(3, n * k), n, k);
    const DeviceFloats out(DType::kF32, m * n);
    ExpectOneResult(out, [&] {
      return Gemm({.a = a,
                   .a_stride = k,
                   .m = m,
                   .weights = &weights,
                   .out = out,
                   .out_stride = n},
                  {}, nullptr);
    });
  }
}

// Attention over a cache that is written first, then copied to other blocks and read there.
TEST_F(EveryOrderTest, OfCacheWritesCopiesAndAttention) {
  constexpr int64_t kTokens = 70, kWidth = 2 * 32;
  const DeviceFloats key = Random(DType::kBF16, kTokens * kWidth);
  const DeviceFloats q = Random(DType::kBF16, 3 * 4 * 32), out(DType::kF32, 3 * 4 * 32);
  const std::vector<std::byte> nothing(2 * 10 * 16 * 32 * 2 * 2, std::byte{0xff});
  const DeviceBytes cache(nothing);
  const CachePlane k{.data = static_cast<std::byte*>(cache.data()),
                     .dtype = DType::kBF16,
                     .num_blocks = 10,
                     .num_heads = 2,
                     .block_size = 16,
                     .dim = 32,
                     .block_stride = 2 * 16 * 32};
  CachePlane planes[] = {k, k};
  planes[1].data += std::ssize(nothing) / 2;
  std::vector<int64_t> slots(kTokens);
  for (int64_t t = 0; t < kTokens; ++t) slots[t] = t;
  const DeviceArray<int64_t> device_slots(slots);
  const DeviceArray<BlockPair> pairs({{0, 9}, {1, 8}, {2, 7}, {3, 6}, {4, 5}});
  const DeviceArray<int32_t> table({9, 8, 7, 6, 5}), lens({70}), cu_q({0, 3});
  ExpectOneResult(out, [&] {
    const cudaError_t written =
        ReshapeAndCache({key, kWidth, key, kWidth, device_slots.data(), kTokens, planes[0],
                         planes[1]},
                        nullptr);
    if (written != cudaSuccess) return written;
    const cudaError_t copied = CopyBlocks({planes, 2, pairs.data(), 5}, nullptr);
    if (copied != cudaSuccess) return copied;
    return VarlenAttention({.q = q,
                            .q_stride = 128,
                            .num_heads = 4,
                            .num_seqs = 1,
                            .cu_seqlens_q = cu_q.data(),
                            .num_tokens = 3,
                            .max_seqlen_q = 3,
                            .seq_lens = lens.data(),
                            .max_seqlen_k = 70,
                            .block_table = table.data(),
                            .max_blocks = 5,
                            .k_cache = planes[0],
                            .v_cache = planes[1],
                            .out = out,
                            .out_stride = 128},
                           {}, nullptr);
  });
}

}  // namespace
}  // namespace baton::cuda
