#include "common/base/deadlines.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr Time At(int64_t ns) { return Time(Duration(ns)); }

TEST(DeadlinesTest, WithoutKeysTheNextOneNeverComes) {
  Deadlines<int> deadlines;
  EXPECT_EQ(deadlines.Next(), kNever);
  EXPECT_EQ(deadlines.Expired(At(1000)), std::nullopt);
}

TEST(DeadlinesTest, KeysExpireSoonestFirstAndStayUntilCleared) {
  Deadlines<int> deadlines;
  deadlines.Set(1, At(20));
  deadlines.Set(2, At(10));
  EXPECT_EQ(deadlines.Next(), At(10));
  EXPECT_EQ(deadlines.Expired(At(9)), std::nullopt);
  EXPECT_EQ(deadlines.Expired(At(10)), 2);
  EXPECT_EQ(deadlines.Expired(At(30)), 2);
  deadlines.Clear(2, At(10));
  EXPECT_EQ(deadlines.Expired(At(30)), 1);
}

TEST(DeadlinesTest, AKeyIsSetOnceAndClearedWithItsOwnDeadline) {
  Deadlines<int> deadlines;
  deadlines.Set(1, At(20));
  deadlines.Clear(1, kNever);
  EXPECT_EQ(deadlines.Next(), At(20));
  EXPECT_DEATH(deadlines.Set(1, At(20)), "emplace");
  EXPECT_DEATH(deadlines.Clear(1, At(21)), "erase");
  EXPECT_DEATH(deadlines.Clear(2, At(20)), "erase");
}

}  // namespace
}  // namespace baton
