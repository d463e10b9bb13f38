#include "kernels/emulation/nccl/nccl_options.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace baton::emulation::nccl {
namespace {

TEST(NcclOptionsTest, WordsAreUnderstoodInAnyOrder) {
  const auto options = ParseOptions(
      "kill=sending:2 seed=3  init=hang abort=slow abort_ms=5 silent=1 one_device=1 version=21805 "
      "delay_us=9 fail=4 cut=5 lose=6 spoil=7");
  ASSERT_TRUE(options.has_value());
  EXPECT_EQ(options->moment, "sending");
  EXPECT_EQ(options->passing, 2);
  EXPECT_EQ(options->signal, SIGKILL);
  EXPECT_EQ(options->seed, 3);
  EXPECT_EQ(options->init, Options::Init::kHang);
  EXPECT_EQ(options->abort, Options::Abort::kSlow);
  EXPECT_EQ(options->abort_ms, 5);
  EXPECT_TRUE(options->silent);
  EXPECT_TRUE(options->one_device);
  EXPECT_EQ(options->version, 21805);
  EXPECT_EQ(options->delay_us, 9);
  EXPECT_EQ(options->fail, 4);
  EXPECT_EQ(options->cut, 5);
  EXPECT_EQ(options->lose, 6);
  EXPECT_EQ(options->spoil, 7);
  EXPECT_EQ(ParseOptions("stop=ready")->signal, SIGSTOP);
  EXPECT_EQ(ParseOptions("stop=ready")->passing, 1);
}

TEST(NcclOptionsTest, WhatIsNotUnderstoodIsRefused) {
  for (const char* text : {"speed=3", "seed", "seed=x", "seed=-1", "init=no", "abort=1", "silent=2",
                           "kill=", "kill=send:x", "one_device=yes"}) {
    EXPECT_FALSE(ParseOptions(text).has_value()) << text;
  }
  EXPECT_TRUE(ParseOptions("").has_value());
}

}  // namespace
}  // namespace baton::emulation::nccl
