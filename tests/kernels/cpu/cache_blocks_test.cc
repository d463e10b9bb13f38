#include "kernels/cpu/cache_blocks.h"

#include <sys/mman.h>

#include "tests/kernels/cache_layouts.h"

namespace baton {
namespace {

// A cache whose blocks may lie apart, every byte different from its neighbours.
struct Cache {
  std::vector<std::byte> bytes;
  CachePlane plane;

  Cache(int64_t num_blocks, int64_t gap, uint64_t seed) {
    plane = {.dtype = DType::kBF16,
             .num_blocks = num_blocks,
             .num_heads = 2,
             .block_size = 4,
             .dim = 3,
             .block_stride = 24 + gap};
    Random random(seed);
    bytes.resize(num_blocks * plane.block_stride * 2);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next());
    plane.data = bytes.data();
  }
  std::vector<std::byte> Block(int64_t i) const {
    const auto first = bytes.begin() + i * plane.block_stride * 2;
    return {first, first + 48};
  }
};

TEST(CacheBlocksTest, CopyBlocksCopiesOneSourceToSeveralDestinationsInEveryPlane) {
  auto kernels = MakeTestKernels("auto");
  Cache k(6, 0, 1), v(6, 5, 2);
  const Cache k_before = k, v_before = v;
  const CachePlane planes[] = {k.plane, v.plane};
  const BlockPair pairs[] = {{1, 4}, {1, 0}, {5, 2}};
  ASSERT_TRUE(
      kernels->CopyBlocks({.planes = planes, .num_planes = 2, .pairs = pairs, .num_pairs = 3})
          .ok());
  for (const auto& [after, before] : {std::pair{&k, &k_before}, {&v, &v_before}}) {
    EXPECT_EQ(after->Block(4), before->Block(1));
    EXPECT_EQ(after->Block(0), before->Block(1));
    EXPECT_EQ(after->Block(2), before->Block(5));
    for (const int64_t i : {1, 3, 5}) EXPECT_EQ(after->Block(i), before->Block(i));
  }
  // The gap after block 0 of the padded plane is not a block's.
  EXPECT_TRUE(std::equal(v.bytes.begin() + 48, v.bytes.begin() + 58, v_before.bytes.begin() + 48));
}

TEST(CacheBlocksTest, CopyBlocksRefusesADestinationTwiceOrThatIsASource) {
  auto kernels = MakeTestKernels("auto");
  Cache cache(6, 0, 1);
  const std::vector<std::byte> before = cache.bytes;
  for (const auto& [second, message] :
       {std::pair<BlockPair, std::string>{{2, 4}, "pairs[1].destination = 4"},
        {{2, 1}, "pairs[1].destination = 1"},
        {{2, 6}, "pairs[1].destination = 6"},
        {{-1, 2}, "pairs[1].source = -1"}}) {
    const BlockPair pairs[] = {{1, 4}, second};
    const absl::Status status = kernels->CopyBlocks(
        {.planes = &cache.plane, .num_planes = 1, .pairs = pairs, .num_pairs = 2});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(message), absl::string_view::npos) << status;
  }
  EXPECT_EQ(cache.bytes, before);
}

TEST(CacheBlocksTest, SwapBlocksCopiesBetweenCachesOfDifferentStride) {
  auto kernels = MakeTestKernels("auto");
  const Cache from(5, 7, 1);
  Cache to(3, 0, 2);
  const Cache before = to;
  const BlockRun runs[] = {{4, 0}, {0, 2}};
  ASSERT_TRUE(kernels
                  ->SwapBlocks({.sources = &from.plane,
                                .destinations = &to.plane,
                                .num_planes = 1,
                                .runs = runs,
                                .num_runs = 2})
                  .ok());
  EXPECT_EQ(to.Block(0), from.Block(4));
  EXPECT_EQ(to.Block(1), before.Block(1));
  EXPECT_EQ(to.Block(2), from.Block(0));
}

TEST(CacheBlocksTest, SwapBlocksTakesRunsAndRangesOfHeads) {
  auto kernels = MakeTestKernels("auto", 2);
  for (const int64_t gap : {0, 5}) {
    const Cache from(8, gap, 1);
    Cache to(8, 0, 2);
    Cache before = to;
    const BlockRun runs[] = {{5, 1, 3}, {0, 7, 1}, {2, 2, 0}};
    SwapBlocksArgs args{.sources = &from.plane,
                        .destinations = &to.plane,
                        .num_planes = 1,
                        .runs = runs,
                        .num_runs = 3};
    ASSERT_TRUE(kernels->SwapBlocks(args).ok());
    for (const auto& [i, source] : {std::pair{1, 5}, {2, 6}, {3, 7}, {7, 0}}) {
      EXPECT_EQ(to.Block(i), from.Block(source));
    }
    for (const int i : {0, 4, 5, 6}) EXPECT_EQ(to.Block(i), before.Block(i));
    // Head 1 of the source becomes head 0: the handoff between workers that hold other heads.
    before = to;
    args.heads = {.source = 1, .destination = 0, .count = 1};
    ASSERT_TRUE(kernels->SwapBlocks(args).ok());
    for (const auto& [i, source] : {std::pair{1, 5}, {2, 6}, {3, 7}, {7, 0}}) {
      const auto got = to.Block(i), wanted = from.Block(source), old = before.Block(i);
      EXPECT_TRUE(std::equal(got.begin(), got.begin() + 24, wanted.begin() + 24));
      EXPECT_TRUE(std::equal(got.begin() + 24, got.end(), old.begin() + 24));
    }
  }
}

TEST(CacheBlocksTest, ScatterOfWhatGatherTookRestoresTheBlocksOfEveryPlane) {
  auto kernels = MakeTestKernels("auto", 2);
  for (const auto& [first_head, num_heads] : {std::pair{0, 0}, {1, 1}}) {
    const Cache k(6, 3, 1), v(6, 0, 2);
    const CachePlane planes[] = {k.plane, v.plane};
    const int32_t blocks[] = {4, 0, 5};
    const int64_t bytes = num_heads == 0 ? 48 : 24;
    std::vector<std::byte> staging(2 * 3 * bytes + 1, std::byte{0x5A});
    ASSERT_TRUE(kernels
                    ->GatherBlocks({.planes = planes,
                                    .num_planes = 2,
                                    .blocks = blocks,
                                    .num_blocks = 3,
                                    .first_head = first_head,
                                    .num_heads = num_heads,
                                    .staging = staging.data(),
                                    .staging_bytes = 2 * 3 * bytes})
                    .ok());
    EXPECT_EQ(staging.back(), std::byte{0x5A});
    // Block 5 of v, the last piece.
    const auto piece = v.Block(5);
    EXPECT_TRUE(std::equal(staging.end() - 1 - bytes, staging.end() - 1, piece.end() - bytes));
    Cache k2(6, 3, 3), v2(6, 0, 4);
    const Cache k_before = k2;
    const CachePlane targets[] = {k2.plane, v2.plane};
    ASSERT_TRUE(kernels
                    ->ScatterBlocks({.planes = targets,
                                     .num_planes = 2,
                                     .blocks = blocks,
                                     .num_blocks = 3,
                                     .first_head = first_head,
                                     .num_heads = num_heads,
                                     .staging = staging.data(),
                                     .staging_bytes = 2 * 3 * bytes})
                    .ok());
    for (const int i : blocks) {
      auto wanted = k.Block(i);
      const auto old = k_before.Block(i);
      std::copy_n(old.begin(), 48 - bytes, wanted.begin());
      EXPECT_EQ(k2.Block(i), wanted);
    }
    for (const int i : {1, 2, 3}) EXPECT_EQ(k2.Block(i), k_before.Block(i));
  }
}

// Memory that takes no room until it is touched.
struct SparseMemory {
  explicit SparseMemory(size_t size) : size(size) {
    data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
    BATON_CHECK(data != MAP_FAILED);
  }
  ~SparseMemory() { munmap(data, size); }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  void* data;
  size_t size;
};

TEST(CacheBlocksTest, IndexesBeyondTwoToThe31ReachTheirElement) {
  auto kernels = MakeTestKernels("auto");
  const int64_t stride = (int64_t{1} << 31) + 48;
  for (const CacheLayout layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    SparseMemory memory(2 * stride);
    CachePlane plane{.data = static_cast<std::byte*>(memory.data),
                     .dtype = DType::kFp8E4M3,
                     .layout = layout,
                     .num_blocks = 2,
                     .num_heads = 1,
                     .block_size = 2,
                     .dim = 16,
                     .block_stride = stride};
    const std::vector<float> x(16, 1.0f);
    const int64_t slot = 3;
    ASSERT_TRUE(kernels
                    ->ReshapeAndCache({.key = x.data(),
                                       .key_stride = 16,
                                       .value = x.data(),
                                       .value_stride = 16,
                                       .slot_mapping = &slot,
                                       .num_tokens = 1,
                                       .k_cache = plane,
                                       .v_cache = plane})
                    .ok());
    const auto* block = static_cast<const std::byte*>(memory.data) + stride;
    // As K and as V, which differ in the packed layout only.
    for (const bool is_key : {true, false}) {
      for (int64_t d = 0; d < 16; ++d) {
        EXPECT_EQ(block[IndexInBlock(layout, is_key, 1, 2, 16, 16, 0, 1, d)], std::byte{0x38});
      }
    }
    const BlockPair back{1, 0};
    ASSERT_TRUE(
        kernels->CopyBlocks({.planes = &plane, .num_planes = 1, .pairs = &back, .num_pairs = 1})
            .ok());
    EXPECT_EQ(std::memcmp(memory.data, block, 32), 0);
  }
}

TEST(CacheBlocksTest, AppendedAndGatheredRowsBeyondTwoToThe31ReachTheirElement) {
  auto kernels = MakeTestKernels("auto");
  const int64_t stride = (int64_t{1} << 31) + 48;
  const std::vector<float> x(16, 2.0f);
  const int32_t table[] = {1}, cu[] = {0, 1};
  for (const CacheLayout layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    SparseMemory k_memory(2 * stride), v_memory(2 * stride);
    CachePlane k{.data = static_cast<std::byte*>(k_memory.data),
                 .dtype = DType::kFp8E4M3,
                 .layout = layout,
                 .num_blocks = 2,
                 .num_heads = 1,
                 .block_size = 2,
                 .dim = 16,
                 .block_stride = stride};
    CachePlane v = k;
    v.data = static_cast<std::byte*>(v_memory.data);
    std::vector<float> out(16), k_out(16), v_out(16);
    ASSERT_TRUE(kernels
                    ->AttentionWithKvCache({.q = x.data(),
                                            .num_heads = 1,
                                            .num_seqs = 1,
                                            .num_queries = 1,
                                            .k = x.data(),
                                            .v = x.data(),
                                            .num_new = 1,
                                            .k_cache = k,
                                            .v_cache = v,
                                            .cache_seqlen = 0,
                                            .block_table = table,
                                            .max_blocks = 1,
                                            .out = out.data()})
                    .ok());
    EXPECT_EQ(out, x);
    for (const bool is_key : {true, false}) {
      const std::byte* block = (is_key ? k : v).data + stride;
      for (int64_t d = 0; d < 16; ++d) {
        EXPECT_EQ(block[IndexInBlock(layout, is_key, 1, 2, 16, 16, 0, 0, d)], std::byte{0x40});
      }
    }
    ASSERT_TRUE(kernels
                    ->UpdateKvCache({.append = {.k_cache = k, .v_cache = v},
                                     .num_seqs = 1,
                                     .cu_seqlens_k = cu,
                                     .block_table = table,
                                     .max_blocks = 1,
                                     .k_out = k_out.data(),
                                     .k_out_stride = 16,
                                     .v_out = v_out.data(),
                                     .v_out_stride = 16})
                    .ok());
    EXPECT_EQ(k_out, x);
    EXPECT_EQ(v_out, x);
  }
}

}  // namespace
}  // namespace baton
