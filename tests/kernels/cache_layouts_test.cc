// The cache operators on every layout and dtype, dense and padded, against the index formulas of
// the systems that the layouts come from. Whole memories are compared: what is not written stays.
#include "tests/kernels/cache_layouts.h"

#include <utility>

#include "tests/kernels/library_cases.h"

namespace baton {
namespace {

class CacheLayoutsTest : public LibraryTest {};

// The expectation of ReshapeAndCache for one plane.
void WriteTokens(TestCache& cache, const std::vector<float>& x, int64_t stride,
                 const std::vector<int64_t>& slots, const std::vector<float>& scales) {
  const CacheShape& s = cache.shape();
  for (size_t token = 0; token < slots.size(); ++token) {
    if (slots[token] < 0) continue;
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t d = 0; d < s.dim; ++d) {
        float value = x[token * stride + h * s.dim + d];
        if (!scales.empty()) value /= scales[scales.size() == 1 ? 0 : h];
        const std::vector<std::byte> code = Encode(s.dtype, {value});
        std::memcpy(cache.At(slots[token] / s.block_size, h, slots[token] % s.block_size, d),
                    code.data(), code.size());
      }
    }
  }
}

TEST_P(CacheLayoutsTest, ReshapeAndCacheWritesEachElementToItsPlaceAndNothingElse) {
  // Five slots of a longer, padded key; the last two tokens of it are in no slot mapping.
  const std::vector<int64_t> slots = {7, -1, 15, 0, 9};
  auto threaded = MakeLibrary(GetParam(), 3);
  for (const CacheShape& shape : CacheShapes()) {
    for (const size_t num_scales : {0, 1, 3}) {
      if (num_scales > 0 && !IsFp8(shape.dtype)) continue;
      SCOPED_TRACE(Describe(shape) + " scales " + std::to_string(num_scales));
      CacheShape v_shape = shape;
      v_shape.is_key = false;
      v_shape.dim = 32;
      TestCache k(shape, 1), v(v_shape, 2);
      TestCache expected_k = k, expected_v = v;
      const std::vector<float> scales = {0.5f, 0.25f, 3.0f};
      const std::vector<float> used(scales.begin(), scales.begin() + num_scales);
      const std::vector<float> key = RandomFloats(3, 7 * 50), value = RandomFloats(4, 7 * 96);
      ReshapeAndCacheArgs args{.key = key.data(),
                               .key_stride = 50,
                               .value = value.data(),
                               .value_stride = 96,
                               .slot_mapping = slots.data(),
                               .num_tokens = std::ssize(slots),
                               .k_cache = k.plane(),
                               .v_cache = v.plane()};
      args.k_cache.scales = args.v_cache.scales = used.data();
      args.k_cache.num_scales = args.v_cache.num_scales = static_cast<int32_t>(num_scales);
      ASSERT_TRUE(threaded->ReshapeAndCache(args).ok());
      WriteTokens(expected_k, key, 50, slots, used);
      WriteTokens(expected_v, value, 96, slots, used);
      EXPECT_EQ(k.bytes(), expected_k.bytes());
      EXPECT_EQ(v.bytes(), expected_v.bytes());
    }
  }
}

TEST_P(CacheLayoutsTest, EveryFp8CodeIsWrittenAsItselfInEveryLayout) {
  for (const DType dtype : {DType::kFp8E4M3, DType::kFp8E5M2}) {
    for (const CacheLayout layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
      SCOPED_TRACE(std::string(NameOf(layout)) + " " + std::string(ToString(dtype)));
      CacheShape shape{.layout = layout, .dtype = dtype, .num_blocks = 1, .heads = 1, .dim = 256};
      TestCache k(shape, 1);
      shape.is_key = false;
      TestCache v(shape, 1);
      const float scale = 0.25f;
      std::vector<float> x(256);
      for (int code = 0; code < 256; ++code) {
        x[code] = scale * (dtype == DType::kFp8E4M3 ? FromE4M3(static_cast<uint8_t>(code))
                                                    : FromE5M2(static_cast<uint8_t>(code)));
      }
      const int64_t slot = 2;
      ReshapeAndCacheArgs args{.key = x.data(),
                               .key_stride = 256,
                               .value = x.data(),
                               .value_stride = 256,
                               .slot_mapping = &slot,
                               .num_tokens = 1,
                               .k_cache = k.plane(),
                               .v_cache = v.plane()};
      args.k_cache.scales = args.v_cache.scales = &scale;
      args.k_cache.num_scales = args.v_cache.num_scales = 1;
      ASSERT_TRUE(kernels_->ReshapeAndCache(args).ok());
      for (int code = 0; code < 256; ++code) {
        int expected = code;
        // An infinity saturates, a NaN is the first one.
        if (dtype == DType::kFp8E5M2 && (code & 0x7f) == 0x7c) expected = code - 1;
        if (dtype == DType::kFp8E5M2 && (code & 0x7f) > 0x7c) expected = (code & 0x80) | 0x7e;
        EXPECT_EQ(static_cast<int>(*k.At(0, 0, 2, code)), expected);
        EXPECT_EQ(static_cast<int>(*v.At(0, 0, 2, code)), expected);
      }
    }
  }
}

TEST(CacheLayoutCopiesTest, CopyBlocksCopiesWhatTheBlockOwnsInEveryLayout) {
  auto kernels = MakeBestLibrary(2);
  for (const CacheShape& shape : CacheShapes()) {
    SCOPED_TRACE(Describe(shape));
    CacheShape v_shape = shape;
    v_shape.is_key = false;
    TestCache k(shape, 1), v(v_shape, 2);
    TestCache expected_k = k, expected_v = v;
    const CachePlane planes[] = {k.plane(), v.plane()};
    const BlockPair pairs[] = {{1, 3}, {1, 0}};
    ASSERT_TRUE(
        kernels->CopyBlocks({.planes = planes, .num_planes = 2, .pairs = pairs, .num_pairs = 2})
            .ok());
    for (const auto& pair : pairs) {
      for (int32_t h = 0; h < shape.heads; ++h) {
        expected_k.SetHead(pair.destination, h, k, pair.source, h);
        expected_v.SetHead(pair.destination, h, v, pair.source, h);
      }
    }
    EXPECT_EQ(k.bytes(), expected_k.bytes());
    EXPECT_EQ(v.bytes(), expected_v.bytes());
  }
}

TEST(CacheLayoutCopiesTest, SwapBlocksTakesRunsAndHeadRangesInEveryLayout) {
  auto kernels = MakeBestLibrary(2);
  for (const bool is_key : {true, false}) {
    for (CacheShape shape : CacheShapes()) {
      for (const HeadRun heads : {HeadRun{}, HeadRun{1, 0, 2}, HeadRun{2, 3, 1}}) {
        SCOPED_TRACE(Describe(shape) + " heads " + std::to_string(heads.count));
        shape.is_key = is_key;
        TestCache from(shape, 1);
        CacheShape other = shape;
        other.num_blocks = 6;
        other.gap = 3;
        // One side has gaps, or the other.
        other.row_gap = shape.layout == CacheLayout::kPacked ? 0 : 5 - shape.row_gap;
        // A worker that holds another number of heads.
        if (heads.count > 0) other.heads = 5;
        TestCache to(other, 2), expected = to;
        const CachePlane source = from.plane(), destination = to.plane();
        const BlockRun runs[] = {{1, 2, 3}, {0, 0, 1}, {2, 5, 0}};
        ASSERT_TRUE(kernels
                        ->SwapBlocks({.sources = &source,
                                      .destinations = &destination,
                                      .num_planes = 1,
                                      .runs = runs,
                                      .num_runs = 3,
                                      .heads = heads})
                        .ok());
        const int32_t count = heads.count == 0 ? shape.heads : heads.count;
        for (const auto& [s, d] : {std::pair{1, 2}, {2, 3}, {3, 4}, {0, 0}}) {
          for (int32_t h = 0; h < count; ++h) {
            expected.SetHead(d, heads.destination + h, from, s, heads.source + h);
          }
        }
        EXPECT_EQ(to.bytes(), expected.bytes());
      }
    }
  }
}

TEST(CacheLayoutCopiesTest, GatherMakesADenseBlockOfTheLayoutAndScatterTakesItBack) {
  auto kernels = MakeBestLibrary(2);
  const int32_t blocks[] = {3, 0};
  for (const CacheShape& shape : CacheShapes()) {
    for (const auto& [first_head, num_heads] : {std::pair{0, 0}, {1, 2}, {2, 1}}) {
      SCOPED_TRACE(Describe(shape) + " heads from " + std::to_string(first_head));
      CacheShape v_shape = shape;
      v_shape.is_key = false;
      TestCache k(shape, 1), v(v_shape, 2);
      const int64_t heads = num_heads == 0 ? shape.heads : num_heads, size = SizeOf(shape.dtype);
      const int64_t bytes = heads * shape.block_size * shape.dim * size;
      std::vector<std::byte> staging(4 * bytes + 8, std::byte{0x5A});
      const CachePlane planes[] = {k.plane(), v.plane()};
      GatherBlocksArgs gather{.planes = planes,
                              .num_planes = 2,
                              .blocks = blocks,
                              .num_blocks = 2,
                              .first_head = first_head,
                              .num_heads = num_heads,
                              .staging = staging.data(),
                              .staging_bytes = 4 * bytes};
      ASSERT_TRUE(kernels->GatherBlocks(gather).ok());
      std::vector<std::byte> expected(staging.size(), std::byte{0x5A});
      TestCache k2(shape, 3), v2(v_shape, 4);
      TestCache expected_k = k2, expected_v = v2;
      for (int64_t plane = 0; plane < 2; ++plane) {
        for (int64_t i = 0; i < 2; ++i) {
          for (int64_t h = 0; h < heads; ++h) {
            TestCache& from = plane == 0 ? k : v;
            (plane == 0 ? expected_k : expected_v)
                .SetHead(blocks[i], first_head + h, from, blocks[i], first_head + h);
            for (int64_t t = 0; t < shape.block_size; ++t) {
              for (int64_t d = 0; d < shape.dim; ++d) {
                const int64_t at = IndexInBlock(shape.layout, plane == 0, heads, shape.block_size,
                                                shape.dim, 16 / size, h, t, d);
                std::memcpy(&expected[(plane * 2 + i) * bytes + at * size],
                            from.At(blocks[i], first_head + h, t, d), size);
              }
            }
          }
        }
      }
      EXPECT_EQ(staging, expected);
      const CachePlane targets[] = {k2.plane(), v2.plane()};
      ASSERT_TRUE(kernels
                      ->ScatterBlocks({.planes = targets,
                                       .num_planes = 2,
                                       .blocks = blocks,
                                       .num_blocks = 2,
                                       .first_head = first_head,
                                       .num_heads = num_heads,
                                       .staging = staging.data(),
                                       .staging_bytes = 4 * bytes})
                      .ok());
      EXPECT_EQ(k2.bytes(), expected_k.bytes());
      EXPECT_EQ(v2.bytes(), expected_v.bytes());
    }
  }
}

TEST(CacheLayoutCopiesTest, PlanesOfOneCallMayDifferInSize) {
  auto kernels = MakeBestLibrary(2);
  // Their blocks are as far apart.
  const TestCache k({.gap = 3 * 4 * 16}, 1), v({.is_key = false, .dim = 32}, 2);
  const CachePlane planes[] = {k.plane(), v.plane()};
  ASSERT_EQ(planes[0].block_stride, planes[1].block_stride);
  const int32_t blocks[] = {2, 0};
  const int64_t k_bytes = 2 * 3 * 4 * 16 * 4;
  std::vector<std::byte> together(3 * k_bytes), apart(3 * k_bytes);
  const auto gather = [&](int64_t first, int64_t count, std::byte* to, int64_t bytes) {
    return kernels->GatherBlocks({.planes = planes + first,
                                  .num_planes = count,
                                  .blocks = blocks,
                                  .num_blocks = 2,
                                  .staging = to,
                                  .staging_bytes = bytes});
  };
  ASSERT_TRUE(gather(0, 2, together.data(), 3 * k_bytes).ok());
  ASSERT_TRUE(gather(0, 1, apart.data(), k_bytes).ok());
  ASSERT_TRUE(gather(1, 1, apart.data() + k_bytes, 2 * k_bytes).ok());
  EXPECT_EQ(together, apart);
}

// Of each layout, appended by slots and behind what sequences have: K and V are those of two calls
// whose other plane is as large as they are.
TEST(CacheLayoutCopiesTest, AppendsToPlanesThatDifferInSizeAreThoseOfEqualOnes) {
  auto kernels = MakeBestLibrary(2);
  const std::vector<float> k = RandomFloats(1, 2 * 3 * 16), v = RandomFloats(2, 2 * 3 * 32);
  const std::vector<float> q = RandomFloats(3, 2 * 3 * 32);
  const int64_t slots[] = {2 * 4 + 1, 3};
  const int32_t lens[] = {1, 2}, blocks[] = {3, 1};
  for (const auto layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    for (const bool by_slots : {true, false}) {
      SCOPED_TRACE(std::string(NameOf(layout)) + (by_slots ? " slots" : " lengths"));
      const auto append = [&](const CacheShape& k_shape, const CacheShape& v_shape,
                              const std::vector<float>& key, const std::vector<float>& value) {
        TestCache k_cache(k_shape, 1), v_cache(v_shape, 2);
        // Random bytes may be no number, which attention of the same call would spread.
        for (TestCache* cache : {&k_cache, &v_cache}) {
          std::ranges::fill(cache->bytes(), std::byte{});
        }
        std::vector<float> out(2 * 3 * v_shape.dim);
        const absl::Status status = by_slots
                                        ? kernels->ReshapeAndCache({.key = key.data(),
                                                                    .key_stride = 3 * k_shape.dim,
                                                                    .value = value.data(),
                                                                    .value_stride = 3 * v_shape.dim,
                                                                    .slot_mapping = slots,
                                                                    .num_tokens = 2,
                                                                    .k_cache = k_cache.plane(),
                                                                    .v_cache = v_cache.plane()})
                                        : kernels->AttentionWithKvCache({.q = q.data(),
                                                                         .num_heads = 3,
                                                                         .num_seqs = 2,
                                                                         .num_queries = 1,
                                                                         .k = key.data(),
                                                                         .v = value.data(),
                                                                         .num_new = 1,
                                                                         .k_cache = k_cache.plane(),
                                                                         .v_cache = v_cache.plane(),
                                                                         .cache_seqlens = lens,
                                                                         .cache_batch_idx = blocks,
                                                                         .out = out.data()});
        EXPECT_TRUE(status.ok()) << status;
        return std::pair{k_cache.bytes(), v_cache.bytes()};
      };
      // Their blocks are as far apart, and nothing but the call tells which is the larger one.
      const CacheShape narrow{.layout = layout, .gap = 3 * 4 * 16};
      const CacheShape wide{.layout = layout, .dim = 32};
      CacheShape narrow_v = narrow, wide_v = wide;
      narrow_v.is_key = wide_v.is_key = false;
      EXPECT_EQ(append(narrow, wide_v, k, v).first, append(narrow, narrow_v, k, k).first);
      EXPECT_EQ(append(narrow, wide_v, k, v).second, append(wide, wide_v, v, v).second);
      EXPECT_EQ(append(wide, narrow_v, v, k).first, append(wide, wide_v, v, v).first);
      EXPECT_EQ(append(wide, narrow_v, v, k).second, append(narrow, narrow_v, k, k).second);
    }
  }
}

TEST(CacheLayoutCopiesTest, CopiesBetweenLayoutsOrOfAPackedDimThatIsNoGroupAreRefused) {
  auto kernels = MakeBestLibrary();
  TestCache hnd({.dtype = DType::kF16, .dim = 12}, 1);
  TestCache nhd({.layout = CacheLayout::kNhd, .dtype = DType::kF16, .dim = 12}, 2);
  const std::vector<std::byte> before = nhd.bytes();
  const CachePlane from = hnd.plane(), to = nhd.plane();
  const BlockRun run{};
  const absl::Status swap = kernels->SwapBlocks(
      {.sources = &from, .destinations = &to, .num_planes = 1, .runs = &run, .num_runs = 1});
  EXPECT_EQ(swap.message(), "destinations[0].layout = 1: must be that of the source");
  EXPECT_EQ(nhd.bytes(), before);

  CachePlane packed = from;
  packed.layout = CacheLayout::kPacked;
  const BlockPair pair{0, 1};
  const absl::Status copy =
      kernels->CopyBlocks({.planes = &packed, .num_planes = 1, .pairs = &pair, .num_pairs = 1});
  EXPECT_EQ(copy.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(copy.message().find("planes[0].dim = 12: must be a multiple of 8 (16 bytes)"),
            absl::string_view::npos)
      << copy;
}

BATON_FOR_EACH_LIBRARY(CacheLayoutsTest);

}  // namespace
}  // namespace baton
