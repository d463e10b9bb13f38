#include "kernels/make_device.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton {
namespace {

TEST(MakeDeviceTest, KernelSetsOfOneMachineShareTheirNumericsInF32) {
  auto fastest = MakeCpuKernels({});
  auto portable = MakeCpuKernels({.kernels = "portable", .num_threads = 2});
  ASSERT_TRUE(fastest.ok() && portable.ok());
  EXPECT_EQ((*portable)->name(), "portable");
  EXPECT_EQ((*portable)->numerics(DType::kF32), (*fastest)->numerics(DType::kF32));
}

void ExpectOwnNumericsInBf16(const std::string& set) {
  auto own = MakeCpuKernels({.kernels = set});
  if (!own.ok()) GTEST_SKIP() << own.status();
  for (const char* name : {"portable", "x86_64_v3", "x86_64_v4", "x86_64_v4_bf16", "x86_64_amx"}) {
    auto other = MakeCpuKernels({.kernels = name});
    if (!other.ok() || name == set) continue;
    EXPECT_NE((*own)->numerics(DType::kBF16), (*other)->numerics(DType::kBF16)) << name;
    EXPECT_EQ((*own)->numerics(DType::kF32), (*other)->numerics(DType::kF32)) << name;
  }
}

TEST(MakeDeviceTest, ABf16DotProductHasItsOwnNumerics) {
  ExpectOwnNumericsInBf16("x86_64_v4_bf16");
}

TEST(MakeDeviceTest, TilesHaveTheirOwnNumerics) { ExpectOwnNumericsInBf16("x86_64_amx"); }

TEST(MakeDeviceTest, RefusesAThreadCountOutOfRange) {
  for (const int threads : {0, -1, 1025}) {
    const absl::Status status = MakeCpuKernels({.num_threads = threads}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()),
              "threads = " + std::to_string(threads) + ": must be in [1, 1024]");
  }
}

TEST(MakeDeviceTest, RanksShareTheThreadsWithOneForEachAtLeast) {
  const auto threads = [](int size, int num_threads) {
    std::vector<int> each;
    for (int r = 0; r < size; ++r) each.push_back(ThreadsOfRank(num_threads, r, size));
    return each;
  };
  EXPECT_EQ(threads(1, 3), (std::vector<int>{3}));
  EXPECT_EQ(threads(2, 4), (std::vector<int>{2, 2}));
  EXPECT_EQ(threads(4, 6), (std::vector<int>{2, 2, 1, 1}));
  EXPECT_EQ(threads(4, 2), (std::vector<int>{1, 1, 1, 1}));
  EXPECT_EQ(MakeRanks({.num_threads = 4}, 2)->size(), 2u);
}

TEST(MakeDeviceTest, RanksAreOnGpusOfTheirOwn) {
  if (ListGpus().gpus.size() != 1) GTEST_SKIP() << "needs one GPU";
  EXPECT_TRUE(MakeRanks({.device = "cuda"}, 1).ok());
  const std::string error(MakeRanks({.device = "cuda"}, 2).status().message());
  EXPECT_EQ(error, "tp = 2: each rank takes a GPU of its own, from cuda:0 on, and there is 1; on "
                   "the CPU all share its cores, --device cpu");
}

// Builds without real GPUs: `auto` takes the CPU and says why, as the report does.
#if !defined(BATON_CUDA_DEVICE)
TEST(MakeDeviceTest, AutoTakesTheCpuAndSaysWhy) {
  const GpuReport report = ListGpus();
  EXPECT_TRUE(report.build == "cpu" || report.build == "emulated") << report.build;
  EXPECT_EQ(report.chosen, "cpu");
  EXPECT_EQ(report.gpus.size(), report.build == "emulated" ? 1u : 0u);
  EXPECT_EQ(report.problem.empty(), report.build == "emulated") << report.problem;
  auto made = MakeDevice({.device = "auto"});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(made->device->info().unified);
  EXPECT_FALSE(made->why_no_gpu.empty());
  EXPECT_EQ(made->why_no_gpu, report.reason);
  EXPECT_EQ(MakeDevice({.device = "cpu"})->why_no_gpu, "");
}
#endif

}  // namespace
}  // namespace baton
