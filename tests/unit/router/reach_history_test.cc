#include "router/reach_history.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

using std::chrono::seconds;

constexpr Time At(int64_t s) { return Time(seconds(s)); }

TEST(ReachHistoryTest, WhatNeverWasTakenIsMissingSinceTheEpoch) {
  ReachHistory history;
  EXPECT_EQ(history.LostAt(1), Time{});
  history.Set(100, At(5));
  EXPECT_EQ(history.LostAt(100), kNever);
  EXPECT_EQ(history.LostAt(101), Time{});
}

TEST(ReachHistoryTest, EachLengthIsMissingSinceItsOwnLoss) {
  ReachHistory history;
  history.Set(100, At(1));
  history.Set(60, At(2));
  history.Set(20, At(3));
  EXPECT_EQ(history.LostAt(20), kNever);
  EXPECT_EQ(history.LostAt(21), At(3));
  EXPECT_EQ(history.LostAt(60), At(3));
  EXPECT_EQ(history.LostAt(61), At(2));
  EXPECT_EQ(history.LostAt(100), At(2));
  EXPECT_EQ(history.LostAt(101), Time{});
}

TEST(ReachHistoryTest, WhatCameAndWentIsMissingSinceTheLatestLoss) {
  ReachHistory history;
  history.Set(100, At(1));
  history.Set(0, At(2));
  history.Set(60, At(3));
  EXPECT_EQ(history.LostAt(60), kNever);
  EXPECT_EQ(history.LostAt(80), At(2));
  history.Set(0, At(4));
  EXPECT_EQ(history.LostAt(60), At(4));
  EXPECT_EQ(history.LostAt(80), At(2));
  history.Set(100, At(5));
  history.Set(0, At(6));
  EXPECT_EQ(history.LostAt(1), At(6));
  EXPECT_EQ(history.LostAt(80), At(6));
}

TEST(ReachHistoryTest, TheSameAgainChangesNothing) {
  ReachHistory history;
  history.Set(100, At(1));
  history.Set(0, At(2));
  history.Set(0, At(9));
  EXPECT_EQ(history.LostAt(50), At(2));
}

}  // namespace
}  // namespace baton
