#include "common/rpc/session_memory.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

namespace baton {
namespace {

// A part of it, and how often its session was told to end.
struct Session {
  explicit Session(const std::shared_ptr<SessionMemory>& memory) : share(memory) {
    share.OnTooMuch([this] { ++num_ends; });
  }
  SessionMemory::Share share;
  int num_ends = 0;
};

class SessionMemoryTest : public ::testing::Test {
 protected:
  Session& Open() { return sessions_.emplace_back(memory_); }

  const std::shared_ptr<SessionMemory> memory_ = std::make_shared<SessionMemory>(400);
  std::deque<Session> sessions_;
};

TEST_F(SessionMemoryTest, WhoHoldsMoreThanAQuarterEnds) {
  Session& much = Open();
  Session& little = Open();
  little.share.Add(90);
  much.share.Add(100);
  memory_->EndLargest();
  EXPECT_EQ(much.num_ends, 0);
  much.share.Add(1);
  memory_->EndLargest();
  memory_->EndLargest();
  EXPECT_EQ(much.num_ends, 1) << "once";
  EXPECT_EQ(little.num_ends, 0);
}

TEST_F(SessionMemoryTest, WhereAllHoldTooMuchTogetherTheOneWithTheMostEndsAlone) {
  for (int i = 0; i < 5; ++i) Open().share.Add(i == 3 ? 81 : 80);
  memory_->EndLargest();
  memory_->EndLargest();  // What it held is not given back yet.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(sessions_[i].num_ends, i == 3 ? 1 : 0) << i;
  EXPECT_EQ(sessions_[3].share.bytes(), 81);
}

TEST_F(SessionMemoryTest, WhatIsGivenBackIsThereForOthers) {
  {
    Session one(memory_);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(Open().share.Take(100));
    EXPECT_TRUE(one.share.Take(100));
    EXPECT_FALSE(Open().share.Take(1));
  }
  EXPECT_TRUE(Open().share.Take(60)) << "a session that is over holds nothing";
  sessions_[0].share.Add(-100);
  EXPECT_TRUE(sessions_[1].share.bytes() == 100 && Open().share.Take(100));
}

TEST_F(SessionMemoryTest, OfAQuarterOneThingAtLeastFitsAndNothingBeside) {
  Session& one = Open();
  EXPECT_TRUE(one.share.Take(150));
  EXPECT_FALSE(one.share.Take(1));
  Session& other = Open();
  EXPECT_TRUE(other.share.Take(60));
  EXPECT_FALSE(other.share.Take(41));
  EXPECT_TRUE(other.share.Take(40));
  EXPECT_FALSE(Open().share.Take(151)) << "all together";
}

TEST_F(SessionMemoryTest, FromTheHalfOfAQuarterOnASessionIsHalfFull) {
  Session& one = Open();
  one.share.Add(50);
  EXPECT_FALSE(one.share.IsHalfFull());
  one.share.Add(1);
  EXPECT_TRUE(one.share.IsHalfFull());
  EXPECT_FALSE(Open().share.IsHalfFull());
}

}  // namespace
}  // namespace baton
