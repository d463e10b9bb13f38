#include "common/rpc/silence.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

int SweepsUntilTooLong(Silence& silence) {
  int sweeps = 1;
  while (!silence.Sweep() && sweeps < 100) ++sweeps;
  return sweeps;
}

TEST(SilenceTest, OneSweepMoreThanTheLimitIsTooLong) {
  Silence silence;
  EXPECT_EQ(SweepsUntilTooLong(silence), kMaxSilentSweeps + 1);
}

TEST(SilenceTest, WhateverIsReadBeginsItAgain) {
  Silence silence;
  for (int n = 0; n < 20; ++n) {
    for (int sweep = 0; sweep < kMaxSilentSweeps; ++sweep) ASSERT_FALSE(silence.Sweep());
    silence.OnRead(true);
  }
}

TEST(SilenceTest, BehindWhatCouldNotBeReadTheSecondSweepIsTooLong) {
  Silence silence;
  silence.OnRead(false);
  EXPECT_EQ(SweepsUntilTooLong(silence), 2);
}

TEST(SilenceTest, AStreamThatIsReadAgainHasTheWholeTimeAgain) {
  Silence silence;
  silence.OnRead(false);
  silence.OnRead(true);
  EXPECT_EQ(SweepsUntilTooLong(silence), kMaxSilentSweeps + 1);
}

TEST(SilenceTest, AWorkerBeatsSeveralTimesWithinTheLimit) {
  EXPECT_LE(3 * kBeatInterval, kMaxSilentSweeps * kSweepInterval);
}

}  // namespace
}  // namespace baton
