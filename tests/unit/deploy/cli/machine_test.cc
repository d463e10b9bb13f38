#include "deploy/cli/machine.h"

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

TEST(MachineTest, IsaIsTheWidestWholeSet) {
  EXPECT_EQ(IsaOfFlags("fpu sse2 avx2 fma"), "AVX2");
  EXPECT_EQ(IsaOfFlags("avx2 fma avx512f avx512bw avx512vl"), "AVX-512");
  EXPECT_EQ(IsaOfFlags("avx2 fma avx512f"), "AVX2");
  EXPECT_EQ(IsaOfFlags("avx2"), "portable");
  EXPECT_EQ(IsaOfFlags(""), "portable");
}

TEST(MachineTest, EachWorkerHasAtLeastOneThread) {
  EXPECT_EQ(ThreadsPerWorker(8, 3), 2);
  EXPECT_EQ(ThreadsPerWorker(2, 5), 1);
  EXPECT_EQ(ThreadsPerWorker(4, 0), 4);
}

TEST(MachineTest, ReadsThisMachine) {
  const Machine machine = ReadMachine();
  EXPECT_GE(machine.share.cores(), 1);
  EXPECT_GT(machine.share.memory_bytes(), 0);
  EXPECT_GT(machine.open_files, 0);
}

TEST(MachineTest, BytesAreShownInTheirUnit) {
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(3 << 20), "3.0 MiB");
  EXPECT_EQ(HumanBytes(int64_t{5} << 30), "5.0 GiB");
}

}  // namespace
}  // namespace baton::cli
