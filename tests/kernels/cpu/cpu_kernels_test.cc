#include "kernels/cpu/cpu_kernels.h"

#include <atomic>
#include <latch>
#include <vector>

#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

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

// Each of two tasks waits for the other: one thread alone would wait for ever.
TEST(CpuKernelsTest, TasksBesideTheOperatorsRunOnAllThreads) {
  for (const int threads : {2, 4}) {
    const auto kernels = MakeTestKernels("auto", threads);
    std::latch all(threads);
    std::vector<std::atomic<int>> runs(threads);
    kernels->ParallelFor(threads, [&](int64_t, int thread) {
      all.arrive_and_wait();
      runs[thread].fetch_add(1);
    });
    for (const auto& run : runs) EXPECT_EQ(run.load(), 1);
  }
}

}  // namespace
}  // namespace baton
