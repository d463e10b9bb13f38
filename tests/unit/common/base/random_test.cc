#include "common/base/random.h"

#include <set>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(RandomTest, GivesThePublishedSplitMix64Sequence) {
  Random random(1234567);  // The reference values of the algorithm for this seed.
  EXPECT_EQ(random.Next(), 6457827717110365317ull);
  EXPECT_EQ(random.Next(), 3203168211198807973ull);
  EXPECT_EQ(random.Next(), 9817491932198370423ull);
}

TEST(RandomTest, ASeedReplays) {
  Random first(7), second(7), other(8);
  for (int i = 0; i < 100; ++i) {
    const uint64_t value = first.Next();
    EXPECT_EQ(value, second.Next());
    EXPECT_NE(value, other.Next());
  }
}

TEST(RandomTest, BelowReachesEveryValueAndNoMore) {
  Random random(1);
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(random.Below(7));
  EXPECT_EQ(seen, (std::set<uint64_t>{0, 1, 2, 3, 4, 5, 6}));
}

TEST(RandomTest, UnitStaysInItsRangeAndIsCentred) {
  Random random(1);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double value = random.Unit();
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

}  // namespace
}  // namespace baton
