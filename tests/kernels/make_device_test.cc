#include "kernels/make_device.h"

#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

TEST(MakeDeviceTest, KernelSetsOfOneMachineShareTheirNumerics) {
  auto fastest = MakeKernels({});
  auto portable = MakeKernels({.kernels = "portable", .num_threads = 2});
  ASSERT_TRUE(fastest.ok() && portable.ok());
  EXPECT_EQ((*portable)->name(), "portable");
  EXPECT_EQ((*portable)->numerics(), (*fastest)->numerics());
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
