#include "kernels/cpu/select_kernel_set.h"

#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

TEST(SelectKernelSetTest, PortableIsThereOnEveryMachine) {
  ASSERT_TRUE(SelectKernelSet("portable").ok());
  EXPECT_STREQ((*SelectKernelSet("portable"))->name, "portable");
}

TEST(SelectKernelSetTest, AutoTakesOneThatCanBeForced) {
  const auto chosen = SelectKernelSet("auto");
  ASSERT_TRUE(chosen.ok());
  const auto forced = SelectKernelSet((*chosen)->name);
  ASSERT_TRUE(forced.ok());
  EXPECT_EQ(*forced, *chosen);
}

TEST(SelectKernelSetTest, AutoTakesAVectorSetWhereThereIsOne) {
  if (!SelectKernelSet("x86_64_v3").ok()) GTEST_SKIP() << "this CPU has no AVX2";
  EXPECT_STRNE((*SelectKernelSet("auto"))->name, "portable");
}

TEST(SelectKernelSetTest, OnlySetsNamedAfterItHaveAnInstructionForBf16) {
  for (const char* name : {"portable", "x86_64_v3", "x86_64_v4", "x86_64_v4_bf16", "x86_64_amx"}) {
    const auto set = SelectKernelSet(name);
    if (!set.ok()) {
      EXPECT_EQ(set.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    EXPECT_STREQ((*set)->name, name);
    const bool has_instruction =
        std::string(name) == "x86_64_v4_bf16" || std::string(name) == "x86_64_amx";
    EXPECT_EQ((*set)->bf16_tiling.bf16_group > 0, has_instruction) << name;
  }
}

TEST(SelectKernelSetTest, AutoTakesTilesWhereThereAreSome) {
  const auto amx = SelectKernelSet("x86_64_amx");
  if (!amx.ok()) GTEST_SKIP() << amx.status();
  EXPECT_EQ(*SelectKernelSet("auto"), *amx);
}

TEST(SelectKernelSetTest, RefusesAnUnknownNameAndListsTheKnownOnes) {
  const absl::Status status = SelectKernelSet("avx9").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "kernels = \"avx9\": must be auto, x86_64_amx, x86_64_v4_bf16, x86_64_v4, x86_64_v3 or "
            "portable");
}

}  // namespace
}  // namespace baton
