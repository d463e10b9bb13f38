#include "router/reach_history.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

using std::chrono::seconds;

constexpr Time AtSecond(int64_t s) { return Time(seconds(s)); }

TEST(ReachHistoryTest, WhatNeverWasTakenIsMissingSinceTheEpoch) {
  ReachHistory history;
  EXPECT_EQ(history.LostAt(1), Time{});
  history.Set(100, AtSecond(5));
  EXPECT_EQ(history.LostAt(100), kNever);
  EXPECT_EQ(history.LostAt(101), Time{});
}

TEST(ReachHistoryTest, EachLengthIsMissingSinceItsOwnLoss) {
  ReachHistory history;
  history.Set(100, AtSecond(1));
  history.Set(60, AtSecond(2));
  history.Set(20, AtSecond(3));
  EXPECT_EQ(history.LostAt(20), kNever);
  EXPECT_EQ(history.LostAt(21), AtSecond(3));
  EXPECT_EQ(history.LostAt(60), AtSecond(3));
  EXPECT_EQ(history.LostAt(61), AtSecond(2));
  EXPECT_EQ(history.LostAt(100), AtSecond(2));
  EXPECT_EQ(history.LostAt(101), Time{});
}

TEST(ReachHistoryTest, WhatCameAndWentIsMissingSinceTheLatestLoss) {
  ReachHistory history;
  history.Set(100, AtSecond(1));
  history.Set(0, AtSecond(2));
  history.Set(60, AtSecond(3));
  EXPECT_EQ(history.LostAt(60), kNever);
  EXPECT_EQ(history.LostAt(80), AtSecond(2));
  history.Set(0, AtSecond(4));
  EXPECT_EQ(history.LostAt(60), AtSecond(4));
  EXPECT_EQ(history.LostAt(80), AtSecond(2));
  history.Set(100, AtSecond(5));
  history.Set(0, AtSecond(6));
  EXPECT_EQ(history.LostAt(1), AtSecond(6));
  EXPECT_EQ(history.LostAt(80), AtSecond(6));
}

TEST(ReachHistoryTest, TheSameAgainChangesNothing) {
  ReachHistory history;
  history.Set(100, AtSecond(1));
  history.Set(0, AtSecond(2));
  history.Set(0, AtSecond(9));
  EXPECT_EQ(history.LostAt(50), AtSecond(2));
}

}  // namespace
}  // namespace baton
