#include "common/collective/patience.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class PatienceTest : public testing::Test {
 protected:
  void Meet(Duration after) { patience_.OnMeeting(now_ += after); }
  void Start(Duration idle = {}) { patience_.OnStart(now_ += idle); }

  Time now_{};
  Patience patience_;
};

TEST_F(PatienceTest, IsLongUntilTwoMeetingsAfterTheFirstStep) {
  EXPECT_EQ(patience_.Limit(), Patience::kMost);
  Start();
  for (int i = 0; i < 10; ++i) Meet(seconds(3));
  EXPECT_EQ(patience_.Limit(), Patience::kMost);
  Start();
  Meet(milliseconds(1));
  EXPECT_EQ(patience_.Limit(), Patience::kMost);
  Meet(milliseconds(1));
  EXPECT_EQ(patience_.Limit(), Patience::kLeast);
}

TEST_F(PatienceTest, IsTwentyTimesTheLongestThatWasMetTwice) {
  Start();
  Start();
  Meet(milliseconds(300));
  Meet(milliseconds(200));
  EXPECT_EQ(patience_.Limit(), seconds(4));
  Meet(seconds(8));  // Alone: the process was stopped.
  EXPECT_EQ(patience_.Limit(), seconds(6));
  Meet(milliseconds(500));
  EXPECT_EQ(patience_.Limit(), seconds(10));
}

// Two stops of the process within a window, or a model that would take so long.
TEST_F(PatienceTest, EndsAtTwentySecondsWhateverWasMet) {
  Start();
  Start();
  for (const int ms : {500, 500, 8000, 500, 500}) Meet(milliseconds(ms));
  EXPECT_EQ(patience_.Limit(), seconds(10));
  Meet(seconds(8));
  EXPECT_EQ(patience_.Limit(), Patience::kMost);
  for (int i = 0; i < 2 * Patience::kWindow; ++i) Meet(milliseconds(500));
  EXPECT_EQ(patience_.Limit(), seconds(10));
  for (int i = 0; i < Patience::kWindow; ++i) Meet(seconds(5));
  EXPECT_EQ(patience_.Limit(), Patience::kMost);
}

TEST_F(PatienceTest, IdleTimeBetweenStepsIsNoGap) {
  Start();
  for (int i = 0; i < 4; ++i) {
    Start(seconds(60));
    Meet(milliseconds(1));
    Meet(milliseconds(1));
  }
  EXPECT_EQ(patience_.Limit(), Patience::kLeast);
}

TEST_F(PatienceTest, ForgetsWhatWasLong) {
  Start();
  Start();
  for (int i = 0; i < Patience::kWindow; ++i) Meet(seconds(1));
  EXPECT_EQ(patience_.Limit(), seconds(20));
  for (int i = 0; i < 2 * Patience::kWindow; ++i) Meet(milliseconds(10));
  EXPECT_EQ(patience_.Limit(), Patience::kLeast);
}

class RankWaitTest : public testing::Test {
 protected:
  // Looks each 100 ms for so long; each thread stands in line for its share of the time.
  Duration EndsAfter(const std::vector<double>& shares, Duration limit) {
    RankWait wait(now_, queued_);
    for (int i = 1; i < 1000; ++i) {
      now_ += milliseconds(100);
      for (size_t t = 0; t < shares.size(); ++t) {
        queued_[std::to_string(t)] +=
            std::chrono::duration_cast<Duration>(milliseconds(100) * shares[t]);
      }
      if (!wait.GoesOn(now_, limit, [&] { return queued_; })) return wait.waited();
    }
    return kForEver;
  }
  static constexpr Duration kForEver = seconds(1000);

  Time now_{};
  QueuedThreads queued_{{"0", seconds(50)}, {"9", seconds(70)}};  // Of long before.
};

TEST_F(RankWaitTest, EndsAtTheLimit) {
  EXPECT_EQ(EndsAfter({0}, milliseconds(2500)), milliseconds(2500));
  EXPECT_EQ(EndsAfter({0.4}, milliseconds(2500)), milliseconds(2500));
}

TEST_F(RankWaitTest, AGroupThatGetsNoCoreIsWaitedForLonger) {
  EXPECT_EQ(EndsAfter({0.9}, milliseconds(2500)), Patience::kMost);
  EXPECT_EQ(EndsAfter({0, 0.1, 0.9}, milliseconds(2500)), Patience::kMost);  // Made meanwhile.
}

// No machine is quite idle.
TEST_F(RankWaitTest, ManyThreadsThatWaitALittleAreNotStarved) {
  EXPECT_EQ(EndsAfter(std::vector<double>(64, 0.05), milliseconds(2500)), milliseconds(2500));
}

TEST_F(RankWaitTest, TimeInWhichNobodyLookedCountsAsOneSlice) {
  RankWait wait(now_, queued_);
  now_ += seconds(8);
  EXPECT_TRUE(wait.GoesOn(now_, milliseconds(2500), [&] { return queued_; }));
  EXPECT_EQ(wait.waited(), milliseconds(100));
}

}  // namespace
}  // namespace baton
