#include "kernels/make_device.h"

#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

TEST(MakeDeviceTest, KernelSetsOfOneMachineShareTheirNumericsInF32) {
  auto fastest = MakeKernels({});
  auto portable = MakeKernels({.kernels = "portable", .num_threads = 2});
  ASSERT_TRUE(fastest.ok() && portable.ok());
  EXPECT_EQ((*portable)->name(), "portable");
  EXPECT_EQ((*portable)->numerics(DType::kF32), (*fastest)->numerics(DType::kF32));
}

TEST(MakeDeviceTest, ABf16DotProductHasItsOwnNumerics) {
  auto dot = MakeKernels({.kernels = "x86_64_v4_bf16"});
  if (!dot.ok()) GTEST_SKIP() << dot.status();
  auto portable = MakeKernels({.kernels = "portable"});
  ASSERT_TRUE(portable.ok());
  EXPECT_NE((*dot)->numerics(DType::kBF16), (*dot)->numerics(DType::kF32));
  EXPECT_EQ((*portable)->numerics(DType::kBF16), (*portable)->numerics(DType::kF32));
}

TEST(MakeDeviceTest, RefusesAThreadCountOutOfRange) {
  for (const int threads : {0, -1, 1025}) {
    const absl::Status status = MakeKernels({.num_threads = threads}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()),
              "threads = " + std::to_string(threads) + ": must be in [1, 1024]");
  }
}

}  // namespace
}  // namespace baton
