#include "kernels/make_device.h"

#include <gtest/gtest.h>

#include <string>

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
