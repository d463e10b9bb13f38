#include "common/rpc/hello_backoff.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Time kStart{std::chrono::hours(1)};

TEST(HelloBackoffTest, WhereNobodyAnswersItGrowsToASecond) {
  HelloBackoff backoff;
  for (const int ms : {0, 100, 200, 400, 800, 1000, 1000}) {
    EXPECT_EQ(backoff.OnEnd(/*had_begun=*/false, kStart), milliseconds(ms));
  }
  backoff.OnProven();
  EXPECT_EQ(backoff.OnEnd(/*had_begun=*/false, kStart), milliseconds(0));
}

TEST(HelloBackoffTest, BehindASessionThatHadBegunItIsShortWhateverWasBefore) {
  HelloBackoff backoff;
  for (int i = 0; i < 6; ++i) backoff.OnEnd(/*had_begun=*/false, kStart);
  EXPECT_EQ(backoff.OnEnd(/*had_begun=*/true, kStart), milliseconds(20));
  EXPECT_EQ(backoff.OnEnd(/*had_begun=*/false, kStart), milliseconds(100));
}

TEST(HelloBackoffTest, BehindManyThatHadBegunItGrowsAndASequenceCanStillReturn) {
  HelloBackoff backoff;
  Time now = kStart;
  EXPECT_EQ(backoff.OnEnd(/*had_begun=*/true, now), milliseconds(0));
  for (int i = 1; i < HelloBackoff::kHurried; ++i) {
    now += milliseconds(50);
    ASSERT_EQ(backoff.OnEnd(/*had_begun=*/true, now), milliseconds(20)) << i;
  }
  for (const int ms : {40, 80, 160, 160, 160}) {
    now += milliseconds(50);
    backoff.OnProven();  // Ten statuses are soon said.
    ASSERT_EQ(backoff.OnEnd(/*had_begun=*/true, now), milliseconds(ms));
  }
}

TEST(HelloBackoffTest, OneThatBreaksForEverIsAskedSixTimesASecondAtMost) {
  HelloBackoff backoff;
  Time now = kStart;
  int hellos = 0;
  for (; now < kStart + seconds(600); ++hellos) now += backoff.OnEnd(/*had_begun=*/true, now);
  EXPECT_LE(hellos, 600 * 1000 / 160 + HelloBackoff::kHurried + 3);
}

TEST(HelloBackoffTest, WhatWasSpentComesBackWithTime) {
  HelloBackoff backoff;
  Time now = kStart;
  for (int i = 0; i < 1000; ++i) backoff.OnEnd(/*had_begun=*/true, now);
  now += HelloBackoff::kHurryWindow;
  for (int i = 0; i < HelloBackoff::kHurried; ++i) {
    ASSERT_LE(backoff.OnEnd(/*had_begun=*/true, now), milliseconds(20)) << i;
  }
  EXPECT_EQ(backoff.OnEnd(/*had_begun=*/true, now), milliseconds(40));
  // Who ends no oftener than they come back never waits for longer.
  for (int i = 0; i < 100; ++i) {
    now += HelloBackoff::kHurryWindow / HelloBackoff::kHurried;
    ASSERT_LE(backoff.OnEnd(/*had_begun=*/true, now), milliseconds(20)) << i;
  }
}

}  // namespace
}  // namespace baton
