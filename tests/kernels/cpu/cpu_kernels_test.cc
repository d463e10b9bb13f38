#include "kernels/cpu/cpu_kernels.h"

#include "tests/kernels/kernel_fixture.h"

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

TEST(CpuKernelsTest, CopyBlocksCopiesOneSourceToSeveralDestinationsInEveryPlane) {
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

TEST(CpuKernelsTest, CopyBlocksRefusesADestinationTwiceOrThatIsASource) {
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

TEST(CpuKernelsTest, SwapBlocksCopiesBetweenCachesOfDifferentStride) {
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

TEST(CpuKernelsTest, AttentionAfterALargerCallUsesItsScratchAgain) {
  // The first call leaves garbage in the scratch that the second must not see.
  auto kernels = MakeTestKernels("auto");
  const int32_t dim = 8;
  std::vector<float> cache(64 * dim, 1e30f), q(64 * dim, 1e3f), out(64 * dim);
  std::vector<int32_t> table(4);
  for (int i = 0; i < 4; ++i) table[i] = i;
  CachePlane plane{.data = reinterpret_cast<std::byte*>(cache.data()),
                   .num_blocks = 4,
                   .num_heads = 1,
                   .block_size = 16,
                   .dim = dim,
                   .block_stride = 16 * dim};
  int32_t cu[] = {0, 64}, lens[] = {64};
  VarlenAttentionArgs args{.q = q.data(),
                           .q_stride = dim,
                           .num_heads = 1,
                           .num_seqs = 1,
                           .cu_seqlens_q = cu,
                           .seq_lens = lens,
                           .block_table = table.data(),
                           .max_blocks = 4,
                           .k_cache = plane,
                           .v_cache = plane,
                           .scores = {.scale = 1},
                           .out = out.data(),
                           .out_stride = dim};
  ASSERT_TRUE(kernels->VarlenAttention(args).ok());
  std::fill(cache.begin(), cache.begin() + dim, 0.25f);
  cu[1] = lens[0] = 1;
  ASSERT_TRUE(kernels->VarlenAttention(args).ok());
  for (int i = 0; i < dim; ++i) EXPECT_EQ(out[i], 0.25f);
}

}  // namespace
}  // namespace baton
