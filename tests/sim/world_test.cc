// The clocks of simulated processes.
#include "tests/sim/world.h"

#include <string>

#include "gtest/gtest.h"

namespace baton::sim {
namespace {

class Clocked : public Host {
 public:
  using Host::Host;
  std::string Audit() override { return ""; }
};

class HostClockTest : public testing::Test {
 protected:
  World world_{1};
  Clocked host_{world_, 0};
  Random random_{99};
};

constexpr int64_t kYear = 365LL * 24 * 3600 * 1'000'000'000;

TEST_F(HostClockTest, ASlowClockNeverStepsBackBetweenTwoMicroseconds) {
  host_.SetClock(1'000'000'000'017, -47'123);
  Time last = host_.Local(Time{});
  for (int64_t ns = 1; ns < 20'000; ++ns) {
    const Time shown = host_.Local(Time(Duration(ns)));
    ASSERT_GE(shown, last) << ns;
    last = shown;
  }
}

TEST_F(HostClockTest, ToWorldIsTheFirstMomentAtWhichTheClockShowsIt) {
  for (int i = 0; i < 200'000; ++i) {
    const auto rate = static_cast<int64_t>(random_.Below(200'001)) - 100'000;
    const auto offset = static_cast<int64_t>(random_.Below(2'000'000'000'000));
    host_.SetClock(offset, rate);
    // From nanoseconds to a century.
    const auto most = uint64_t{1} << (1 + random_.Below(61));
    const Time local(Duration(offset + static_cast<int64_t>(random_.Below(most))));
    const Time first = host_.ToWorld(local);
    ASSERT_GE(host_.Local(first), local) << "rate " << rate << " offset " << offset;
    ASSERT_LT(host_.Local(first - Duration(1)), local) << "rate " << rate << " offset " << offset;
  }
}

TEST_F(HostClockTest, ClocksAreMonotoneAtLargeTimesToo) {
  for (int i = 0; i < 100'000; ++i) {
    host_.SetClock(0, static_cast<int64_t>(random_.Below(200'001)) - 100'000);
    const Time at(Duration(100 * kYear + static_cast<int64_t>(random_.Below(kYear))));
    const Time later = at + Duration(1 + random_.Below(3000));
    ASSERT_LE(host_.Local(at), host_.Local(later));
  }
}

TEST_F(HostClockTest, WhatIsBeyondAllTimesIsNever) {
  host_.SetClock(0, -50'000);
  EXPECT_EQ(host_.ToWorld(kNever), kNever);
  host_.SetClock(1, 50'000);
  EXPECT_EQ(host_.Local(kNever), kNever);
}

TEST_F(HostClockTest, ADeadlineAFewNanosecondsAheadIsReached) {
  for (int64_t rate : {-50'000, -12'345, -1, 0, 1, 49'999}) {
    host_.SetClock(1'000'123'456'789, rate);
    Time now(Duration(7'654'321'987));
    for (int64_t ahead = 1; ahead < 3000; ++ahead) {
      const Time due = host_.Local(now) + Duration(ahead);
      now = host_.ToWorld(due);
      ASSERT_GE(host_.Local(now), due);
    }
  }
}

}  // namespace
}  // namespace baton::sim
