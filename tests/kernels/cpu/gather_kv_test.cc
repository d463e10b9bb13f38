// UpdateKvCache: new tokens go into the cache, and whole sequences come out of it.
#include "kernels/cpu/gather_kv.h"

#include "tests/kernels/attention_problem.h"
#include "tests/kernels/cache_layouts.h"
#include "tests/kernels/library_cases.h"

namespace baton {
namespace {

constexpr int32_t kGatherHeads = 3, kGatherDim = 16, kGatherBlockSize = 4;

// The value of an element of storage, from the definitions of the types.
float ReadElement(TestCache& cache, int64_t block, int64_t h, int64_t t, int64_t d, float scale) {
  const std::byte* at = cache.At(block, h, t, d);
  const DType dtype = cache.shape().dtype;
  const auto code = static_cast<uint8_t>(*at);
  if (IsFp8(dtype)) return static_cast<float>(DecodeFp8(dtype, code)) * scale;
  float x;
  uint16_t half;
  std::memcpy(&x, at, dtype == DType::kF32 ? 4 : 0);
  if (dtype == DType::kF32) return x;
  std::memcpy(&half, at, 2);
  if (dtype == DType::kBF16) {
    const uint32_t bits = uint32_t{half} << 16;
    std::memcpy(&x, &bits, 4);
    return x;
  }
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  if (exponent == 31) return INFINITY;  // Or no number.
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>(half & 0x8000 ? -magnitude : magnitude);
}

class GatherKvTest : public LibraryTest {
 protected:
  // The rows of `out` are those of sequences that have three blocks each in `table`. The scale of
  // head h is scales[h * scale_step].
  static void ExpectGathered(TestCache& cache, const float* scales, int64_t scale_step,
                             const std::vector<int32_t>& table, const std::vector<int32_t>& cu,
                             const float* out, int64_t stride) {
    for (size_t s = 0; s + 1 < cu.size(); ++s) {
      for (int64_t i = 0; i < cu[s + 1] - cu[s]; ++i) {
        const float* row = out + (cu[s] + i) * stride;
        for (int64_t e = 0; e < kGatherHeads * kGatherDim; ++e) {
          const int64_t h = e / kGatherDim;
          const float wanted = ReadElement(cache, table[s * 3 + i / kGatherBlockSize], h,
                                           i % kGatherBlockSize, e % kGatherDim,
                                           scales[h * scale_step]);
          // Some of the random bytes are no number.
          ASSERT_TRUE(row[e] == wanted || !std::isfinite(wanted)) << row[e] << ' ' << wanted;
        }
        EXPECT_EQ(row[kGatherHeads * kGatherDim], GuardedFloats::kCanary);
      }
    }
  }
};

TEST_P(GatherKvTest, TokensOfEveryLayoutAndTypeComeOutBesideEachOther) {
  const float scales[] = {0.5f, 0.25f, 2};
  for (CacheShape shape : CacheShapes()) {
    SCOPED_TRACE(Describe(shape));
    shape.num_blocks = 8;
    TestCache k(shape, 1), before(shape, 1);
    shape.is_key = false;
    TestCache v(shape, 2);
    CachePlane k_plane = k.plane(), v_plane = v.plane();
    if (IsFp8(shape.dtype)) {
      k_plane.scales = v_plane.scales = scales;
      k_plane.num_scales = kGatherHeads;
      v_plane.num_scales = 1;
    }
    // The first sequence gets its last token here, the last its first two.
    const std::vector<int32_t> table = {6, 2, -1, -1, -1, -1, 1, 7, 3};
    const std::vector<int32_t> cu = {0, 7, 7, 16};
    const std::vector<int64_t> slots = {2 * 4 + 2, -1, 4, 5};
    const std::vector<float> key = RandomFloats(3, 4 * kGatherHeads * kGatherDim);
    const std::vector<float> value = RandomFloats(4, 4 * kGatherHeads * kGatherDim);
    const int64_t width = kGatherHeads * kGatherDim, stride = width + 5;
    GuardedFloats k_out(16 * stride), v_out(16 * stride);
    const absl::Status status = kernels_->UpdateKvCache({.append = {.key = key.data(),
                                                                    .key_stride = width,
                                                                    .value = value.data(),
                                                                    .value_stride = width,
                                                                    .slot_mapping = slots.data(),
                                                                    .num_tokens = 4,
                                                                    .k_cache = k_plane,
                                                                    .v_cache = v_plane},
                                                         .num_seqs = 3,
                                                         .cu_seqlens_k = cu.data(),
                                                         .block_table = table.data(),
                                                         .max_blocks = 3,
                                                         .k_out = k_out.data(),
                                                         .k_out_stride = stride,
                                                         .v_out = v_out.data(),
                                                         .v_out_stride = stride});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(k_out.GuardsIntact() && v_out.GuardsIntact());
    ExpectGathered(k, scales, IsFp8(shape.dtype) ? 1 : 0, table, cu, k_out.data(), stride);
    ExpectGathered(v, scales, 0, table, cu, v_out.data(), stride);
    // The new token is what was given, within the type.
    const float tolerance = IsFp8(shape.dtype) ? 0.13f : 0.005f;
    for (int64_t e = 0; e < width; ++e) {
      EXPECT_NEAR(k_out.data()[6 * stride + e], key[e], tolerance);
      EXPECT_NEAR(v_out.data()[8 * stride + e], value[3 * width + e], tolerance);
    }
    // Nothing but the three slots has changed.
    for (const auto& [block, t] : {std::pair{2, 2}, {1, 0}, {1, 1}}) {
      for (int64_t h = 0; h < kGatherHeads; ++h) {
        for (int64_t d = 0; d < kGatherDim; ++d) {
          std::memcpy(before.At(block, h, t, d), k.At(block, h, t, d), SizeOf(shape.dtype));
        }
      }
    }
    EXPECT_TRUE(before.bytes() == k.bytes());
  }
}

// A cache of one block per sequence, as Llama's reference model keeps: two calls fill it.
TEST_P(GatherKvTest, AContiguousCacheGivesAllThatItWasGivenSoFar) {
  CacheShape shape{.layout = CacheLayout::kNhd, .num_blocks = 2, .heads = 1, .block_size = 6};
  shape.dim = 8;
  TestCache k(shape, 1);
  shape.is_key = false;
  TestCache v(shape, 2);
  // Value 10 * sequence + position in all elements of a token; V is its negative.
  const auto update = [&](int64_t first, int64_t count) {
    std::vector<float> key, value;
    std::vector<int64_t> slots;
    for (int64_t s = 0; s < 2; ++s) {
      for (int64_t i = first; i < first + count; ++i) {
        slots.push_back(s * 6 + i);
        key.insert(key.end(), 8, static_cast<float>(10 * s + i));
        value.insert(value.end(), 8, -static_cast<float>(10 * s + i));
      }
    }
    const auto length = static_cast<int32_t>(first + count);
    const std::vector<int32_t> cu = {0, length, 2 * length};
    std::vector<float> k_out(2 * length * 8), v_out(k_out);
    EXPECT_TRUE(kernels_
                    ->UpdateKvCache({.append = {.key = key.data(),
                                                .key_stride = 8,
                                                .value = value.data(),
                                                .value_stride = 8,
                                                .slot_mapping = slots.data(),
                                                .num_tokens = std::ssize(slots),
                                                .k_cache = k.plane(),
                                                .v_cache = v.plane()},
                                     .num_seqs = 2,
                                     .cu_seqlens_k = cu.data(),
                                     .k_out = k_out.data(),
                                     .k_out_stride = 8,
                                     .v_out = v_out.data(),
                                     .v_out_stride = 8})
                    .ok());
    std::vector<float> firsts;
    for (size_t i = 0; i < k_out.size(); i += 8) {
      EXPECT_EQ(v_out[i + 7], -k_out[i + 7]);
      firsts.push_back(k_out[i]);
    }
    return firsts;
  };
  EXPECT_EQ(update(0, 3), (std::vector<float>{0, 1, 2, 10, 11, 12}));
  EXPECT_EQ(update(3, 1), (std::vector<float>{0, 1, 2, 3, 10, 11, 12, 13}));
  EXPECT_EQ(update(4, 2), (std::vector<float>{0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15}));
}

TEST_P(GatherKvTest, ALongSequenceComesOutWhole) {
  constexpr int64_t kRows = 90, kDim = 16;
  std::vector<float> memory(kRows * kDim), k_out(kRows * kDim), v_out(k_out);
  for (int64_t i = 0; i < kRows * kDim; ++i) memory[i] = static_cast<float>(i);
  const CachePlane plane{.data = reinterpret_cast<std::byte*>(memory.data()),
                         .num_blocks = 1,
                         .num_heads = 1,
                         .block_size = kRows,
                         .dim = kDim,
                         .block_stride = kRows * kDim};
  const std::vector<int32_t> cu = {0, kRows};
  ASSERT_TRUE(kernels_
                  ->UpdateKvCache({.append = {.k_cache = plane, .v_cache = plane},
                                   .num_seqs = 1,
                                   .cu_seqlens_k = cu.data(),
                                   .k_out = k_out.data(),
                                   .k_out_stride = kDim,
                                   .v_out = v_out.data(),
                                   .v_out_stride = kDim})
                  .ok());
  EXPECT_EQ(k_out, memory);
  EXPECT_EQ(v_out, memory);
}

TEST_P(GatherKvTest, RefusalsNameTheFieldAndWriteNothing) {
  CacheShape shape;
  TestCache k(shape, 1), v(shape, 2);
  const std::vector<std::byte> before = k.bytes();
  const std::vector<float> x(kGatherHeads * kGatherDim);
  const int64_t slot = 5;
  std::vector<int32_t> cu = {0, 5, 8}, table = {0, 1, 2, -1};
  const int64_t width = kGatherHeads * kGatherDim;
  GuardedFloats k_out(8 * width), v_out(8 * width);
  const UpdateKvCacheArgs good{.append = {.key = x.data(),
                                          .key_stride = width,
                                          .value = x.data(),
                                          .value_stride = width,
                                          .slot_mapping = &slot,
                                          .num_tokens = 1,
                                          .k_cache = k.plane(),
                                          .v_cache = v.plane()},
                               .num_seqs = 2,
                               .cu_seqlens_k = cu.data(),
                               .block_table = table.data(),
                               .max_blocks = 2,
                               .k_out = k_out.data(),
                               .k_out_stride = width,
                               .v_out = v_out.data(),
                               .v_out_stride = width};
  const auto refused = [&](auto change, const std::string& message) {
    UpdateKvCacheArgs args = good;
    change(args);
    const absl::Status status = kernels_->UpdateKvCache(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
    EXPECT_TRUE(k.bytes() == before);
    for (const float y : k_out.values()) ASSERT_EQ(y, GuardedFloats::kCanary);
  };
  refused([](auto& a) { a.append.key = nullptr; }, "key = null");
  refused([](auto& a) { a.num_seqs = -1; }, "num_seqs = -1: must be in [0, ");
  refused([](auto& a) { a.cu_seqlens_k = nullptr; }, "cu_seqlens_k = null");
  refused([](auto& a) { a.max_blocks = -3; }, "max_blocks = -3");
  refused([](auto& a) { a.max_blocks = 1; },
          "cu_seqlens_k[1] = 5: must be such that sequence 0 has at most 4 tokens");
  refused(
      [](auto& a) {
        a.block_table = nullptr;
        a.num_seqs = 5;
      },
      "num_seqs = 5: must be at most k_cache.num_blocks = 4 without a block_table");
  refused([](auto& a) { a.k_out = nullptr; }, "k_out = null");
  refused([](auto& a) { a.v_out = nullptr; }, "v_out = null");
  refused([](auto& a) { a.k_out_stride = 47; }, "k_out_stride = 47: must be at least 48");
  refused([](auto& a) { a.v_out_stride = INT64_MAX; }, "v_out_stride = 9223372036854775807");
  refused([](auto& a) { a.k_out = {a.k_out.data, DType::kBF16}; }, "k_out");
  refused([](auto& a) { a.v_out = {a.v_out.data, DType::kFp8E4M3}; }, "v_out.dtype");
  table[1] = -1;
  refused([](auto&) {}, "block_table[0][1] = -1: must be in [0, 4)");
  table[1] = 4;
  refused([](auto&) {}, "block_table[0][1] = 4");
  table[1] = 1;
  cu[2] = 3;
  refused([](auto&) {}, "cu_seqlens_k[2] = 3: must be not less than the entry before");
  cu[0] = 1;
  refused([](auto&) {}, "cu_seqlens_k[0] = 1: must be 0");
}

BATON_FOR_EACH_LIBRARY(GatherKvTest);

}  // namespace
}  // namespace baton
