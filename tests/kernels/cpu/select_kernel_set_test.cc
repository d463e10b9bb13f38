#include "kernels/cpu/select_kernel_set.h"

#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

TEST(SelectKernelSetTest, PortableIsThereOnEveryMachine) {
  ASSERT_TRUE(SelectKernelSet("portable").ok());
  EXPECT_STREQ((*SelectKernelSet("portable"))->name, "portable");
}

TEST(SelectKernelSetTest, AutoTakesTheFastestThatCanBeForced) {
  const auto v3 = SelectKernelSet("x86_64_v3");
  ASSERT_TRUE(SelectKernelSet("auto").ok());
  EXPECT_STREQ((*SelectKernelSet("auto"))->name, v3.ok() ? "x86_64_v3" : "portable");
}

TEST(SelectKernelSetTest, RefusesAnUnknownNameAndListsTheKnownOnes) {
  const absl::Status status = SelectKernelSet("avx9").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "kernels = \"avx9\": must be auto, x86_64_v3 or portable");
}

}  // namespace
}  // namespace baton
