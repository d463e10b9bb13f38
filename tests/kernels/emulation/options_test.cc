#include "kernels/emulation/options.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace baton::emulation {
namespace {

TEST(OptionsTest, AreWordsInAnyOrder) {
  const auto options = ParseOptions(
      " detector=off seed=3  memory=1000000 taken=70 arch=sm86 lose=20 devices=0 driver=12020 "
      "hang=4 shared=/tmp/a=b wgmma=more-bits");
  ASSERT_TRUE(options.has_value());
  EXPECT_EQ(options->seed, 3u);
  EXPECT_EQ(options->memory, 1000000u);
  EXPECT_EQ(options->taken, 70u);
  EXPECT_EQ(options->models[0]->sums, Architecture::kAmpere);
  EXPECT_EQ(options->lose, 20);
  EXPECT_EQ(options->hang, 4);
  EXPECT_EQ(options->shared, "/tmp/a=b");
  EXPECT_FALSE(options->detects);
  EXPECT_EQ(options->devices, 0);
  EXPECT_EQ(options->driver, 12020);
  EXPECT_EQ(options->wgmma.of_shared, Deviation::kMoreBits);
  EXPECT_EQ(options->wgmma.of_registers, Deviation::kMoreBits);
}

TEST(OptionsTest, OfNothingAreTheUsualOnes) {
  const auto options = ParseOptions("");
  ASSERT_TRUE(options.has_value());
  EXPECT_EQ(options->models[0]->name, "sm90");
  EXPECT_EQ(options->lose, 0);
  EXPECT_EQ(options->hang, 0);
  EXPECT_EQ(options->shared, "");
  EXPECT_TRUE(options->detects);
  EXPECT_EQ(options->devices, 1);
  EXPECT_TRUE(options->peers);
  EXPECT_GE(options->driver, 13000);
  EXPECT_EQ(options->wgmma.of_shared, Deviation::kNone);
  EXPECT_EQ(options->wgmma.of_registers, Deviation::kNone);
}

TEST(OptionsTest, OfSeveralDevicesEachMayBeOfItsKind) {
  const auto options = ParseOptions("arch=sm80,sm90 devices=8 peers=off");
  ASSERT_TRUE(options.has_value());
  EXPECT_EQ(options->devices, 8);
  EXPECT_FALSE(options->peers);
  ASSERT_EQ(options->models.size(), 2u);
  EXPECT_EQ(options->models[0]->name, "sm80");
  EXPECT_EQ(options->models[1]->name, "sm90");
}

TEST(OptionsTest, WhatIsNotUnderstoodIsRefused) {
  for (const char* text :
       {"seed", "seed=", "seed=x", "seed=3x", "sead=3", "arch=sm70", "detector=maybe", "devices=9",
        "devices=-1", "lose=1 ,", "arch=sm90,", "arch=sm90,sm70", "peers=", "peers=1", "hang=x",
        "shared=", "wgmma=", "wgmma=bits"}) {
    EXPECT_FALSE(ParseOptions(text).has_value()) << text;
  }
  EXPECT_TRUE(ParseOptions("arch=sm90 detector=on").has_value());
}

// What a block may have by CUDA's own table of compute capabilities.
TEST(OptionsTest, AGpuHasTheSharedMemoryOfItsKind) {
  for (const auto& [name, kib] : {std::pair("sm75", 64), std::pair("sm80", 163),
                                  std::pair("sm86", 99), std::pair("sm89", 99),
                                  std::pair("sm90", 227), std::pair("sm100", 227),
                                  std::pair("sm120", 99)}) {
    const auto options = ParseOptions(std::string("arch=") + name);
    ASSERT_TRUE(options.has_value()) << name;
    EXPECT_EQ(options->models[0]->shared_bytes, size_t{1024} * kib) << name;
    EXPECT_EQ("sm" + std::to_string(options->models[0]->major) +
                  std::to_string(options->models[0]->minor), name);
  }
}

}  // namespace
}  // namespace baton::emulation
