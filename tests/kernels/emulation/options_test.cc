#include "kernels/emulation/options.h"

#include <gtest/gtest.h>

namespace baton::emulation {
namespace {

TEST(OptionsTest, AreWordsInAnyOrder) {
  const auto options = ParseOptions(
      " detector=off seed=3  memory=1000000 arch=sm80 lose=20 devices=0 driver=12020 ");
  ASSERT_TRUE(options.has_value());
  EXPECT_EQ(options->seed, 3u);
  EXPECT_EQ(options->memory, 1000000u);
  EXPECT_EQ(options->architecture, Architecture::kAmpere);
  EXPECT_EQ(options->lose, 20);
  EXPECT_FALSE(options->detects);
  EXPECT_EQ(options->devices, 0);
  EXPECT_EQ(options->driver, 12020);
}

TEST(OptionsTest, OfNothingAreTheUsualOnes) {
  const auto options = ParseOptions("");
  ASSERT_TRUE(options.has_value());
  EXPECT_EQ(options->architecture, Architecture::kHopper);
  EXPECT_EQ(options->lose, 0);
  EXPECT_TRUE(options->detects);
  EXPECT_EQ(options->devices, 1);
  EXPECT_GE(options->driver, 13000);
}

TEST(OptionsTest, WhatIsNotUnderstoodIsRefused) {
  for (const char* text : {"seed", "seed=", "seed=x", "seed=3x", "sead=3", "arch=sm70",
                           "detector=maybe", "devices=2", "lose=1 ,"}) {
    EXPECT_FALSE(ParseOptions(text).has_value()) << text;
  }
  EXPECT_TRUE(ParseOptions("arch=sm90 detector=on").has_value());
  EXPECT_TRUE(ParseOptions("arch=sm75")->too_old);
  EXPECT_FALSE(ParseOptions("arch=sm80")->too_old);
}

}  // namespace
}  // namespace baton::emulation
