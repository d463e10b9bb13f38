#include "kernels/cpu/check_args.h"
#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

template <typename Args>
void ExpectRefusal(const Args& args, const std::string& message) {
  const absl::Status status = CheckArgs(args);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find(message), std::string::npos)
      << status << "\nexpected: " << message;
}

struct Planes {
  std::byte memory[2][4 * 2 * 16 * 8] = {};
  CachePlane from{.data = memory[0],
                  .dtype = DType::kFp8E4M3,
                  .num_blocks = 4,
                  .num_heads = 2,
                  .block_size = 16,
                  .dim = 8,
                  .block_stride = 256};
  CachePlane to = from;
  BlockRun run{0, 0, 1};
  Planes() { to.data = memory[1]; }
  SwapBlocksArgs Swap() {
    return {.sources = &from, .destinations = &to, .num_planes = 1, .runs = &run, .num_runs = 1};
  }
};

TEST(CheckCacheArgsTest, SwapNamesWhatDiffersBetweenTheCaches) {
  Planes p;
  EXPECT_TRUE(CheckArgs(p.Swap()).ok());
  p.to.dim = 4;
  ExpectRefusal(p.Swap(), "destinations[0].dim = 4: must be that of the source");
  p = Planes();
  p.from.dtype = p.to.dtype = static_cast<DType>(9);
  ExpectRefusal(p.Swap(), "sources[0].dtype = 9: must be f32, f16, bf16, fp8_e4m3 or fp8_e5m2");
  p = Planes();
  p.to = p.from;
  p.to.data = p.memory[1];
  p.to.num_heads = 1;
  ExpectRefusal(p.Swap(), "destinations[0].num_heads = 1");
}

TEST(CheckCacheArgsTest, SwapNamesTheDestinationThatSharesMemory) {
  Planes p;
  p.to.data = p.from.data;
  ExpectRefusal(p.Swap(), "destinations[0].data = sources[0].data + 0: must be memory of its own");
  p.to.data = p.from.data + 1023;  // A plane has 4 * 2 * 16 * 8 = 1024 bytes.
  ExpectRefusal(p.Swap(), "destinations[0].data = sources[0].data + 1023");
  p.to.data = p.from.data + 1024;
  EXPECT_TRUE(CheckArgs(p.Swap()).ok()) << CheckArgs(p.Swap());

  p = Planes();
  const CachePlane from[] = {p.from, p.from}, to[] = {p.to, p.to};
  SwapBlocksArgs args = p.Swap();
  args.sources = from;
  args.destinations = to;
  args.num_planes = 2;
  ExpectRefusal(args, "destinations[1].data = destinations[0].data + 0: must be memory of its own");
}

TEST(CheckCacheArgsTest, SwapTakesPlanesWhoseBlocksTakeTurns) {
  Planes p;
  CachePlane from[] = {p.from, p.from}, to[] = {p.to, p.to};
  for (CachePlane* planes : {from, to}) {
    for (CachePlane* plane : {&planes[0], &planes[1]}) {
      plane->num_blocks = 2;
      plane->block_stride = 512;
    }
    planes[1].data += 256;
  }
  SwapBlocksArgs args = p.Swap();
  args.sources = from;
  args.destinations = to;
  args.num_planes = 2;
  EXPECT_TRUE(CheckArgs(args).ok()) << CheckArgs(args);
  args.destinations = to + 1;  // After to[0], and around again before it.
  args.sources = from;
  args.num_planes = 1;
  from[0] = to[0];
  EXPECT_TRUE(CheckArgs(args).ok()) << CheckArgs(args);
  to[1].data -= 1;
  ExpectRefusal(args, "destinations[0].data = sources[0].data + 255");
  to[1].data += 2;
  ExpectRefusal(args, "destinations[0].data = sources[0].data + 257");
  to[1].data -= 1;
  to[1].block_stride = 511;
  ExpectRefusal(args, "destinations[0].data = sources[0].data + 256");
}

TEST(CheckCacheArgsTest, SwapNamesTheRunThatLeavesACache) {
  Planes p;
  SwapBlocksArgs args = p.Swap();
  p.run = {2, 0, 3};
  ExpectRefusal(args, "runs[0].source = 2: must be in [0, 1]");
  p.run = {0, 0, INT64_MAX};
  ExpectRefusal(args, "runs[0].count");
  p.run = {INT64_MAX, 0, 1};
  ExpectRefusal(args, "runs[0].source");
  p.run = {0, -1, 1};
  ExpectRefusal(args, "runs[0].destination = -1");
  const BlockRun twice[] = {{0, 1, 2}, {3, 2, 1}};
  args.runs = twice;
  args.num_runs = 2;
  ExpectRefusal(args, "runs[1].destination = 2: must be a destination only once");
  p.run = {0, 0, 1};
  args = p.Swap();
  args.heads = {.source = 1, .destination = 0, .count = 2};
  ExpectRefusal(args, "heads.source = 1");
  args.heads = {.source = 1};
  ExpectRefusal(args, "heads.source = 1: must be 0 for all heads");
}

TEST(CheckCacheArgsTest, ScalesBelongToFp8AndArePositive) {
  Planes p;
  const float scales[] = {0.5f, 0.0f};
  p.from.scales = scales;
  p.from.num_scales = 1;
  EXPECT_TRUE(CheckPlane(p.from, "cache").ok());
  p.from.num_scales = 2;
  ExpectRefusal(p.Swap(), "sources[0].scales[1] = 0");
  p.from.num_scales = 3;
  ExpectRefusal(p.Swap(), "sources[0].num_scales = 3: must be 0, 1 or num_heads = 2");
  p.from.num_scales = 1;
  p.from.scales = nullptr;
  ExpectRefusal(p.Swap(), "sources[0].scales = null");
  p.from.dtype = DType::kF32;
  ExpectRefusal(p.Swap(), "sources[0].num_scales = 1: must be 0");
}

TEST(CheckCacheArgsTest, EveryOperatorLooksAtTheScalesOfItsPlanes) {
  Planes p;
  const float zero = 0;
  CachePlane bad = p.from;
  bad.scales = &zero;
  bad.num_scales = 1;
  const CachePlane good_and_bad[] = {p.from, bad};
  const BlockPair pair{0, 1};
  const int32_t block = 0;
  std::byte staging[1024];
  ExpectRefusal(CopyBlocksArgs{good_and_bad, 2, &pair, 1}, "planes[1].scales[0] = 0");
  ExpectRefusal(GatherBlocksArgs{.planes = good_and_bad,
                                 .num_planes = 2,
                                 .blocks = &block,
                                 .num_blocks = 1,
                                 .staging = staging,
                                 .staging_bytes = 1024},
                "planes[1].scales[0] = 0");
  ExpectRefusal(ScatterBlocksArgs{.planes = good_and_bad,
                                  .num_planes = 2,
                                  .blocks = &block,
                                  .num_blocks = 1,
                                  .staging = staging,
                                  .staging_bytes = 1024},
                "planes[1].scales[0] = 0");
  p.to.scales = &zero;
  p.to.num_scales = 1;
  ExpectRefusal(p.Swap(), "destinations[0].scales[0] = 0");
  ExpectRefusal(ReshapeAndCacheArgs{.k_cache = bad, .v_cache = p.from}, "k_cache.scales[0] = 0");
  ExpectRefusal(ReshapeAndCacheArgs{.k_cache = p.from, .v_cache = bad}, "v_cache.scales[0] = 0");
  const int32_t none[] = {0, 0};
  VarlenAttentionArgs attention{.num_heads = bad.num_heads,
                                .num_seqs = 1,
                                .cu_seqlens_q = none,
                                .seq_lens = none,
                                .k_cache = bad,
                                .v_cache = p.from};
  ExpectRefusal(attention, "k_cache.scales[0] = 0");
  std::swap(attention.k_cache, attention.v_cache);
  ExpectRefusal(attention, "v_cache.scales[0] = 0");
}

// Blocks are in each plane of a call, also in the smallest.
TEST(CheckCacheArgsTest, TheSmallestPlaneBoundsTheBlocks) {
  Planes p;
  std::vector<std::byte> memory(1 << 14);
  p.from.data = memory.data();
  p.to.data = memory.data() + memory.size() / 2;
  CachePlane from[] = {p.from, p.from}, to[] = {p.to, p.to};
  const int64_t last = p.from.num_blocks - 1;
  for (CachePlane* planes : {from, to}) {
    for (CachePlane* plane : {&planes[0], &planes[1]}) plane->block_stride *= 2;
    planes[1].data += planes[0].block_stride / 2;
  }
  const BlockPair pair{0, last};
  const BlockRun run{last, last, 1};
  const auto block = static_cast<int32_t>(last);
  std::byte staging[1024];
  const CopyBlocksArgs copy{from, 2, &pair, 1};
  const SwapBlocksArgs swap{.sources = from,
                            .destinations = to,
                            .num_planes = 2,
                            .runs = &run,
                            .num_runs = 1};
  const GatherBlocksArgs gather{.planes = from,
                                .num_planes = 2,
                                .blocks = &block,
                                .num_blocks = 1,
                                .staging = staging,
                                .staging_bytes = 1024};
  EXPECT_TRUE(CheckArgs(copy).ok()) << CheckArgs(copy);
  EXPECT_TRUE(CheckArgs(swap).ok()) << CheckArgs(swap);
  EXPECT_TRUE(CheckArgs(gather).ok()) << CheckArgs(gather);
  --to[1].num_blocks;
  ExpectRefusal(swap, "runs[0].destination");
  --from[1].num_blocks;
  ExpectRefusal(copy, "pairs[0].destination");
  ExpectRefusal(swap, "runs[0].source");
  ExpectRefusal(gather, "blocks[0]");
}

TEST(CheckCacheArgsTest, GatherAndScatterNameTheBlockAndTheRoom) {
  Planes p;
  std::byte staging[512];
  const int32_t blocks[] = {3, 3};
  GatherBlocksArgs gather{.planes = &p.from,
                          .num_planes = 1,
                          .blocks = blocks,
                          .num_blocks = 2,
                          .staging = staging,
                          .staging_bytes = 512};
  EXPECT_TRUE(CheckArgs(gather).ok());
  gather.staging_bytes = 511;
  ExpectRefusal(gather, "staging_bytes = 511: must be at least 0 + 2 * 256");
  gather.staging_bytes = -1;
  ExpectRefusal(gather, "staging_bytes = -1: must be at least 0 + 2 * 256");
  gather.first_head = 1;
  ExpectRefusal(gather, "first_head = 1");
  gather.num_heads = 3;
  ExpectRefusal(gather, "num_heads = 3");
  ExpectRefusal(ScatterBlocksArgs{.planes = &p.from,
                                  .num_planes = 1,
                                  .blocks = blocks,
                                  .num_blocks = 2,
                                  .staging = staging,
                                  .staging_bytes = 512},
                "blocks[1] = 3: must be a destination only once");
}

// 2^54 bytes a block, times 2^10, are 0 in 64 bits.
TEST(CheckCacheArgsTest, StagingOfMoreThan64BitsIsRefused) {
  std::byte memory[1];
  const CachePlane plane{.data = memory,
                         .num_blocks = 1,
                         .num_heads = 1 << 16,
                         .block_size = 1 << 20,
                         .dim = 1 << 16,
                         .block_stride = int64_t{1} << 52};
  const std::vector<int32_t> blocks(1 << 10);
  ExpectRefusal(GatherBlocksArgs{.planes = &plane,
                                 .num_planes = 1,
                                 .blocks = blocks.data(),
                                 .num_blocks = std::ssize(blocks),
                                 .staging = memory,
                                 .staging_bytes = 1},
                "staging_bytes = 1: must be at least 0 + 1024 * 18014398509481984");
}

TEST(CheckCacheArgsTest, APlaneThatNoMemoryHoldsIsRefused) {
  Planes p;
  p.from.block_stride = INT64_MAX;
  ExpectRefusal(p.Swap(), "sources[0].block_stride");
  p = Planes();
  p.from.block_size = INT32_MAX;
  p.from.num_heads = INT32_MAX;
  ExpectRefusal(p.Swap(), "sources[0].num_heads");
}

}  // namespace
}  // namespace baton
