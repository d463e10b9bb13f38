#include "common/base/clock.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(ClockTest, TheSteadyClockRunsAndNeverGoesBack) {
  const Time begin = SteadyNow();
  Time last = begin;
  while (last == begin) {
    const Time now = SteadyNow();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(ClockTest, WallTimeIsInSecondsSince1970) {
  EXPECT_GT(UnixSeconds(), int64_t{1'700'000'000});
  EXPECT_LT(UnixSeconds(), int64_t{10'000'000'000});
}

}  // namespace
}  // namespace baton
