#include "router/front/reset_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using Id = ResetLimits::Id;
using Limit = ResetLimits::Limit;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

class ResetLimitsTest : public ::testing::Test {
 protected:
  // What the front does with what it is told.
  bool Open(Id id, const std::string& client) { return !limits_.Add(id, client, now_).has_value(); }
  // Who had to go; 0: nobody.
  Id Count(Id id, int64_t resets, int64_t open = 0) {
    const auto excess = limits_.Count(id, resets, open, now_);
    if (!excess.has_value()) return 0;
    last_limit_ = excess->limit;
    limits_.Remove(excess->id, now_);
    return excess->id;
  }

  Time now_ = Time(hours(1));
  ResetLimits limits_;
  Limit last_limit_ = Limit::kAll;
};

TEST_F(ResetLimitsTest, AnOrdinaryClientIsNeverTold) {
  ASSERT_TRUE(Open(1, "a"));
  EXPECT_EQ(Count(1, 500, 100), 0U) << "all at once";
  for (int i = 0; i < 4 * 3600 * 5; ++i) {  // Deadlines that pass, 50 a second for hours.
    now_ += milliseconds(200);
    ASSERT_EQ(Count(1, 10, 100), 0U) << i;
  }
  EXPECT_EQ(Count(1, 500, 100), 0U);
}

TEST_F(ResetLimitsTest, AConnectionBeyondItsLimitEnds) {
  ASSERT_TRUE(Open(1, "a"));
  EXPECT_EQ(Count(1, 1000), 0U);
  EXPECT_EQ(Count(1, 1), 1U);
  EXPECT_EQ(last_limit_, Limit::kConnection);
  EXPECT_THAT(limits_.TextOf(last_limit_), HasSubstr("one connection at most 1000 streams at once "
                                                     "and 200 a second"));
  ASSERT_TRUE(Open(2, "b"));
  EXPECT_EQ(Count(2, 1000), 0U);
  now_ += seconds(1);
  EXPECT_EQ(Count(2, 200), 0U);
  EXPECT_EQ(Count(2, 1), 2U);
}

// A client that does not acknowledge the settings may open what it likes, as far as the library
// goes.
TEST_F(ResetLimitsTest, OpenStreamsCountWithAConnectionsBurst) {
  ASSERT_TRUE(Open(1, "a"));
  EXPECT_EQ(Count(1, 0, 1000), 0U);
  now_ += hours(1);
  EXPECT_EQ(Count(1, 0, 1001), 1U) << "time gives nothing of these back";
  EXPECT_EQ(last_limit_, Limit::kConnection);
}

// However it goes about it, one address gets no more than a burst and its rate through.
TEST_F(ResetLimitsTest, NeitherReconnectingNorManyConnectionsHelp) {
  int64_t through = 0;
  Id id = 0;
  const Time begin = now_;
  for (int i = 0; i < 20'000; ++i) {
    now_ += milliseconds(1);
    if (!Open(++id, "a")) continue;
    if (i % 2 == 0) {
      through += 90;
      EXPECT_EQ(Count(id, 0, 90), 0U);
      limits_.Remove(id, now_);  // Its streams end with it.
    } else {
      through += 100;
      Count(id, 100);  // Its connection stays.
    }
  }
  const double seconds = std::chrono::duration<double>(now_ - begin).count();
  EXPECT_LE(through, 2000 + 400 * seconds + 100);  // One connection's last.
  EXPECT_GE(through, 2000 + 400 * seconds - 200);
  EXPECT_TRUE(Open(++id, "b")) << "others come in";
  now_ += seconds > 0 ? std::chrono::seconds(1) : std::chrono::seconds(0);
  EXPECT_TRUE(Open(++id, "a")) << "and so does that one, in time";
}

TEST_F(ResetLimitsTest, AFullClientsNewConnectionIsRefusedByName) {
  ASSERT_TRUE(Open(1, "a"));
  ASSERT_TRUE(Open(2, "a"));
  Count(1, 1000);
  Count(2, 1000);
  limits_.Remove(1, now_);
  ASSERT_TRUE(Open(3, "a")) << "not beyond it yet";
  EXPECT_EQ(Count(3, 1), 2U) << "the one that has most";
  EXPECT_EQ(last_limit_, Limit::kClient);
  EXPECT_EQ(limits_.Add(4, "a", now_), Limit::kClient);
  EXPECT_EQ(Count(3, 1), 0U) << "what others have reset that are gone";
}

TEST_F(ResetLimitsTest, WhoResetsAFewBesideAFloodGoesOn) {
  ASSERT_TRUE(Open(1, "quiet"));
  ASSERT_TRUE(Open(2, "neighbour of one"));
  Id next = 10;
  for (int client = 0; client < 50; ++client) {
    for (int i = 0; i < 4; ++i) {
      const std::string who = client == 0 ? "neighbour of one" : absl::StrCat("flood ", client);
      if (Open(++next, who)) Count(next, 990);
      const Id told = Count(client % 2 == 0 ? 1 : 2, 1);
      EXPECT_TRUE(told == 0 || told > 10) << told;
      now_ += milliseconds(20);
    }
  }
  EXPECT_EQ(limits_.Count(1, 0, 0, now_), std::nullopt) << "it is there";
}

TEST_F(ResetLimitsTest, OfAllConnectionsTheOneWithMostEnds) {
  for (Id id = 1; id <= 5; ++id) ASSERT_TRUE(Open(id, absl::StrCat("client ", id)));
  for (Id id = 1; id <= 4; ++id) EXPECT_EQ(Count(id, id == 3 ? 999 : 900), 0U);
  EXPECT_EQ(Count(5, 301), 0U);
  EXPECT_EQ(Count(5, 1), 3U);
  EXPECT_EQ(last_limit_, Limit::kAll);
  EXPECT_EQ(limits_.Add(6, "new", now_), Limit::kAll);
  now_ += seconds(1);
  EXPECT_TRUE(Open(6, "new"));
}

TEST_F(ResetLimitsTest, OpenStreamsOfAllHaveALimit) {
  for (Id id = 1; id <= 17; ++id) ASSERT_TRUE(Open(id, absl::StrCat("client ", id)));
  for (Id id = 1; id <= 16; ++id) EXPECT_EQ(Count(id, 0, id == 7 ? 1000 : 990), 0U);
  EXPECT_EQ(Count(17, 0, 534), 0U);
  EXPECT_EQ(Count(17, 0, 535), 7U);
  EXPECT_EQ(last_limit_, Limit::kAll);
}

TEST_F(ResetLimitsTest, HoweverMuchWasLeftAtOnceTheNextComeInASecondLater) {
  for (Id id = 1; id <= 16; ++id) ASSERT_TRUE(Open(id, absl::StrCat("client ", id)));
  for (Id id = 1; id <= 16; ++id) Count(id, 0, 1000);
  for (Id id = 1; id <= 16; ++id) limits_.Remove(id, now_);
  EXPECT_EQ(limits_.Add(17, "new", now_), Limit::kAll);
  now_ += seconds(1);
  EXPECT_TRUE(Open(17, "new"));
}

TEST_F(ResetLimitsTest, OfClientsThatAreGoneAFewAreRemembered) {
  Id id = 0;
  for (int i = 0; i < 30'000; ++i) {
    now_ += milliseconds(5);
    ASSERT_TRUE(Open(++id, absl::StrCat("client ", i)));
    EXPECT_EQ(Count(id, 1), 0U);
    limits_.Remove(id, now_);
    limits_.Remove(id, now_);  // Not there.
  }
  EXPECT_LE(limits_.num_clients(), 8192U);
}

}  // namespace
}  // namespace baton
