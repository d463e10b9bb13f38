#include "router/front/stream_limits.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using Id = StreamLimits::Id;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

class StreamLimitsTest : public ::testing::Test {
 protected:
  void Add(Id id, const std::string& network = "a") { limits_.Add(id, network, now_); }
  // Whether it may at once; if not it waits.
  bool Open(Id id) {
    if (!limits_.MayOpen(id, now_)) return false;
    gone_ = limits_.CountOpened(id).value_or(0);
    return true;
  }
  void Reset(Id id, int count = 1) {
    for (int i = 0; i < count; ++i) limits_.CountReset(id, now_);
  }
  // Another one opens and resets as many as it may at once.
  void FillDebt() {
    constexpr Id kFlood = 999'999;
    Add(kFlood, "flood");
    while (Open(kFlood)) Reset(kFlood);
    limits_.Remove(kFlood, now_);
    EXPECT_GT(limits_.Debt(now_), kMostDebt);
  }
  // Those that may go on, in their order.
  std::vector<Id> GoOn() {
    std::vector<Id> ids;
    while (const auto id = limits_.Next(now_)) {
      ids.push_back(*id);
      limits_.CountOpened(*id);
    }
    return ids;
  }

  Time now_ = Time(hours(1));
  StreamLimits limits_;
  Id gone_ = 0;
};

TEST_F(StreamLimitsTest, AnOrdinaryClientNeverWaits) {
  Add(1);
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(Open(1));
    Reset(1);
  }
  for (int i = 0; i < 4 * 3600; ++i) {  // Deadlines that pass, 50 a second for hours.
    now_ += seconds(1);
    for (int j = 0; j < 50; ++j) ASSERT_TRUE(Open(1));
    Reset(1, 50);
  }
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Open(1));
  EXPECT_EQ(gone_, 0U);
}

TEST_F(StreamLimitsTest, AnswersAreNoDebt) {
  Add(1);
  for (int i = 0; i < 10 * kMostDebt; ++i) {
    ASSERT_TRUE(Open(1));
    limits_.CountAnswered(1);
  }
  EXPECT_EQ(limits_.Debt(now_), 0);
  EXPECT_EQ(limits_.num_open(), 0);
}

// However a flood goes about it: no more streams are begun than there is room for and the library
// gets over.
TEST_F(StreamLimitsTest, FiftyConnectionsGetNoMoreThroughThanIsDigested) {
  for (Id id = 1; id <= 50; ++id) Add(id);
  std::map<Id, bool> waits;
  int64_t through = 0;
  for (int ms = 0; ms < 20'000; ms += 5) {
    now_ += milliseconds(5);
    for (const Id id : GoOn()) {
      waits[id] = false;
      ++through;
      Reset(id);
    }
    for (Id id = 1; id <= 50; ++id) {  // 200 a second each.
      if (waits[id]) continue;
      waits[id] = !Open(id);
      if (waits[id]) continue;
      ++through;
      Reset(id);
    }
  }
  EXPECT_LE(through, kMostDebt + 20 * kDigestedPerS + 200);
  EXPECT_GE(through, kMostDebt + 19 * kDigestedPerS);
  EXPECT_LE(limits_.Debt(now_), kMostDebt + 200);
}

// What is left open as its connection ends is a debt: whoever reconnects gets no more.
TEST_F(StreamLimitsTest, StreamsThatAreLeftAgainAndAgainAreBounded) {
  Id last = 0;
  int64_t most = 0;
  int64_t opened = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<Id> ids;
    for (int i = 0; i < 17; ++i) Add(ids.emplace_back(++last), absl::StrCat("network ", i % 3));
    std::map<Id, int> left;
    for (const Id id : ids) {
      while (left[id] < 190 && Open(id)) ++left[id], ++opened;
    }
    for (int ms = 0; ms < 100; ms += 5) {
      now_ += milliseconds(5);
      for (const Id id : GoOn()) {
        ++opened;
        while (++left[id] < 190 && Open(id)) ++opened;
      }
    }
    for (const Id id : ids) limits_.Remove(id, now_);
    most = std::max(most, static_cast<int64_t>(limits_.Debt(now_)));
  }
  EXPECT_EQ(limits_.num_open(), 0);
  EXPECT_LE(most, kMostDebt + 17 * 190);
  EXPECT_LE(opened, kMostDebt + 17 * 190 + 20 * kDigestedPerS + 200);
  EXPECT_FALSE(limits_.has_waiting());
}

TEST_F(StreamLimitsTest, WhoHasGoneAndComesBackIsNotNew) {
  Add(1, "steady");
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Open(1));
    Reset(1);
  }
  Add(2, "comes back");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Open(2));
  Reset(2);
  limits_.Remove(2, now_);  // Two are left open.
  Add(3, "comes back");
  ASSERT_TRUE(Open(3));
  Reset(3);
  FillDebt();
  Add(4, "new");
  for (const Id id : {3, 1, 4}) EXPECT_FALSE(Open(id));
  std::vector<Id> order;
  for (int i = 0; i < 3; ++i) {
    now_ += milliseconds(1);
    for (const Id id : GoOn()) order.push_back(id);
  }
  EXPECT_EQ(order, (std::vector<Id>{4, 1, 3}));
}

TEST_F(StreamLimitsTest, WhoHasResetFewestGoesFirstThenWhoWaitsLongest) {
  for (Id id = 1; id <= 5; ++id) Add(id);
  for (const Id id : {3, 5, 5}) {
    ASSERT_TRUE(Open(id));
    Reset(id);
  }
  FillDebt();
  for (const Id id : {5, 3, 1, 4, 2}) EXPECT_FALSE(Open(id));
  std::vector<Id> order;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(GoOn().empty()) << "a turn each millisecond";
    now_ += milliseconds(1);
    for (const Id id : GoOn()) order.push_back(id);
  }
  EXPECT_EQ(order, (std::vector<Id>{1, 4, 2, 3, 5}));
  EXPECT_FALSE(limits_.has_waiting());
}

TEST_F(StreamLimitsTest, WhatWasResetIsForgottenInTime) {
  Add(1);
  Add(2);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(Open(2));
    Reset(2);
  }
  now_ += seconds(10);
  ASSERT_TRUE(Open(1));
  Reset(1);
  Add(3);
  FillDebt();
  for (const Id id : {1, 2, 3}) EXPECT_FALSE(Open(id));
  now_ += milliseconds(3);
  EXPECT_EQ(GoOn(), (std::vector<Id>{2, 3, 1})) << "two have reset none";
}

TEST_F(StreamLimitsTest, TwentyInnocentsBesideAFloodWaitForAFewTurnsEach) {
  for (Id id = 1; id <= 170; ++id) Add(id, id <= 20 ? "innocents" : "flood");
  for (Id id = 1; id <= 20; ++id) {
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(Open(id));
  }
  std::map<Id, Time> since;
  Duration longest{};
  const auto opened = [&](Id id) {
    if (since.contains(id)) longest = std::max<Duration>(longest, now_ - since[id]);
    if (id > 20) return Reset(id);
    limits_.CountAnswered(id);
    since.erase(id);
  };
  std::map<Id, bool> waits;
  for (int ms = 0; ms < 10'000; ++ms) {
    now_ += milliseconds(1);
    for (const Id id : GoOn()) {
      waits[id] = false;
      opened(id);
    }
    for (Id id = 170; id >= 1; --id) {
      const bool is_time = id > 20 || ms % 100 == static_cast<int>(id);
      if (waits[id] || !is_time) continue;
      waits[id] = !Open(id);
      EXPECT_EQ(gone_, 0U);
      if (waits[id] && id <= 20) since[id] = now_;
      if (!waits[id]) opened(id);
    }
  }
  EXPECT_GT(limits_.Debt(now_), kMostDebt - 200) << "the flood goes on";
  EXPECT_LE(longest, milliseconds(5));
}

TEST_F(StreamLimitsTest, ALateLookMakesUpForATenthOfASecondAndNoMore) {
  for (Id id = 1; id <= 100; ++id) Add(id);
  for (Id id = 1; id <= 100; ++id) {
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(Open(id));
  }
  for (Id id = 1; id <= 100; ++id) limits_.Remove(id, now_);  // More than runs out in what follows.
  FillDebt();
  for (Id id = 1; id <= 1000; ++id) {
    Add(id);
    EXPECT_FALSE(Open(id));
  }
  now_ += milliseconds(50);
  EXPECT_EQ(GoOn().size(), 50U);
  now_ += seconds(2);
  EXPECT_EQ(GoOn().size(), 101U);
}

TEST_F(StreamLimitsTest, WhoWaitedAndIsGoneHasNoTurn) {
  Add(1);
  Add(2);
  Add(3);
  FillDebt();
  EXPECT_FALSE(Open(2));
  EXPECT_FALSE(Open(3));
  limits_.Remove(2, now_);
  limits_.Remove(2, now_);
  now_ += milliseconds(1);
  EXPECT_EQ(GoOn(), std::vector<Id>{3});
  EXPECT_FALSE(limits_.has_waiting());
}

TEST_F(StreamLimitsTest, AConnectionHasALimitOfOpenStreams) {
  Add(1);
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Open(1));
  EXPECT_EQ(gone_, 0U);
  limits_.CountAnswered(1);
  EXPECT_TRUE(Open(1));
  EXPECT_EQ(gone_, 0U);
  EXPECT_TRUE(Open(1));
  EXPECT_EQ(gone_, 1U);
}

TEST_F(StreamLimitsTest, OfAllTheLargestOfTheNetworkThatHasMostGoes) {
  // Most has one of "b", but "a" has more in all; of it 7 has most.
  for (Id id = 1; id <= 101; ++id) Add(id, id == 101 ? "b" : id <= 80 ? "a" : "c");
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Open(101));
  for (Id id = 1; id <= 80; ++id) {
    for (int i = 0; i < (id == 7 ? 181 : 180); ++i) ASSERT_TRUE(Open(id));
  }
  Id id = 81;
  while (limits_.num_open() < kMostOpenStreams) {
    ASSERT_TRUE(Open(id));
    ASSERT_EQ(gone_, 0U);
    if (limits_.num_open(id) == 190) ++id;
  }
  ASSERT_TRUE(Open(id));
  EXPECT_EQ(gone_, 7U);
  limits_.Remove(7, now_);
  EXPECT_LT(limits_.num_open(), kMostOpenStreams);
}

}  // namespace
}  // namespace baton
