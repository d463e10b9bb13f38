#include "router/wait_forecast.h"

#include <chrono>

#include "gtest/gtest.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class WaitForecastTest : public testing::Test {
 protected:
  // Every 100 ms a request of this cost, for so long, while more wait or not.
  void Run(Duration time, int64_t cost, bool is_backlogged) {
    forecast_.OnTurn(is_backlogged, now_);
    for (const Time end = now_ + time; now_ < end;) {
      now_ += milliseconds(100);
      forecast_.OnStarted(cost, now_);
    }
  }
  double SecondsUntil(int64_t cost) { return ToSeconds(forecast_.Until(cost, now_).value()); }

  Time now_{};
  WaitForecast forecast_;
};

TEST_F(WaitForecastTest, GoesByTheRateThatWasMeasured) {
  Run(seconds(30), 50, true);
  EXPECT_NEAR(SecondsUntil(5000), 10, 0.2);
  EXPECT_NEAR(SecondsUntil(0), 0, 1e-9);
}

TEST_F(WaitForecastTest, KnowsNothingBeforeEnoughHasHappened) {
  EXPECT_EQ(forecast_.Until(1000, now_), std::nullopt);
  Run(milliseconds(700), 50, true);
  EXPECT_EQ(forecast_.Until(1000, now_), std::nullopt) << "seven in less than a second";
  now_ += seconds(60);
  EXPECT_EQ(forecast_.Until(1000, now_), std::nullopt) << "a first step may take long";
  Run(seconds(1), 50, true);
  EXPECT_NE(forecast_.Until(1000, now_), std::nullopt);
}

TEST_F(WaitForecastTest, WhatGoesWithoutWaitingSaysNothingOfTheRate) {
  Run(seconds(30), 1, false);
  EXPECT_EQ(forecast_.Until(1000, now_), std::nullopt);
  Run(seconds(30), 50, true);
  Run(seconds(30), 1, false);
  EXPECT_NEAR(SecondsUntil(5000), 10, 0.2);
}

TEST_F(WaitForecastTest, WhatWasMeasuredBeforeAQuietTimeIsForgotten) {
  Run(seconds(30), 50, true);
  now_ += seconds(60);  // A worker stands still.
  EXPECT_GT(SecondsUntil(50), 1);
  Run(seconds(9), 1, false);
  Run(seconds(1), 50, true);
  EXPECT_GT(SecondsUntil(50), 1) << "the same trouble may go on";
  Run(seconds(11), 1, false);
  forecast_.OnTurn(true, now_);
  EXPECT_EQ(forecast_.Until(50, now_), std::nullopt);
  Run(seconds(3), 50, true);
  EXPECT_NEAR(SecondsUntil(5000), 10, 0.5);
}

TEST_F(WaitForecastTest, FollowsARateThatChanges) {
  Run(seconds(30), 50, true);
  Run(seconds(40), 5, true);
  EXPECT_NEAR(SecondsUntil(500), 10, 2);
}

TEST_F(WaitForecastTest, ThatNothingGoesAnyMoreIsSeenAndStaysFinite) {
  Run(seconds(30), 50, true);
  now_ += seconds(30);
  EXPECT_GT(SecondsUntil(5000), 50);
  now_ += std::chrono::hours(10000);
  EXPECT_LE(SecondsUntil(INT64_MAX), 3600);
}

TEST_F(WaitForecastTest, AnswersAreExpectedToBeAsLongAsOfLate) {
  EXPECT_EQ(forecast_.ExpectedTokens(1000), 0);
  for (int i = 0; i < 200; ++i) forecast_.OnAnswer(40);
  EXPECT_EQ(forecast_.ExpectedTokens(1000), 40);
  EXPECT_EQ(forecast_.ExpectedTokens(16), 16);
}

}  // namespace
}  // namespace baton
