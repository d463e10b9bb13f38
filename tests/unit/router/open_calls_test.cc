#include "router/open_calls.h"

#include "gtest/gtest.h"
#include "tests/unit/router/router_harness.h"
#include "tests/unit/router/sequence_builder.h"
#include "tests/unit/router/worker_directory_fixture.h"

namespace baton {
namespace {

class OpenCallsTest : public testing::Test {
 protected:
  void SetUp() override { directory_.OnUp(0, Hello(Role::kDecode, 10), At(0)); }
  int64_t Pending() const { return directory_.workers()[0].pending_tokens; }

  WorkerDirectory directory_{{Role::kDecode}, std::chrono::seconds(2), std::chrono::seconds(2)};
  RecordingRouterOutbox outbox_;
  OpenCalls calls_{directory_, outbox_};
  SequenceBuilder sequences_;
  SequenceState& first_ = sequences_.New();
  SequenceState& second_ = sequences_.New();
};

TEST_F(OpenCallsTest, ACallIsItsSequencesUntilItEnds) {
  directory_.Take(first_.decode, 0, 5);
  directory_.Take(second_.decode, 0, 5);
  const CallId call = calls_.New(first_, first_.decode);
  const CallId other = calls_.New(second_, second_.decode);
  EXPECT_NE(call, other);
  EXPECT_EQ(first_.decode.call, call);
  EXPECT_EQ(calls_.OwnerOf(call), first_.id.counter);
  EXPECT_EQ(calls_.OwnerOf(other), second_.id.counter);
  calls_.End(first_.decode);
  EXPECT_EQ(first_.decode.call, 0u);
  EXPECT_EQ(calls_.OwnerOf(call), std::nullopt);
  EXPECT_FALSE(calls_.empty());
  EXPECT_TRUE(outbox_.cancelled.empty()) << "its worker has ended it";
  EXPECT_EQ(Pending(), 10) << "what is counted there is given back by who drops the side";
}

TEST_F(OpenCallsTest, WhatIsDroppedIsCancelledAndGivenBackOnce) {
  directory_.Take(first_.decode, 0, 5);
  const CallId call = calls_.New(first_, first_.decode);
  for (int i = 0; i < 2; ++i) {
    calls_.Drop(first_.decode);
    EXPECT_EQ(outbox_.cancelled, std::vector<CallId>{call});
    EXPECT_EQ(Pending(), 0);
    EXPECT_TRUE(calls_.empty());
  }
}

TEST_F(OpenCallsTest, ASideThatWasChosenAndNotOpenedIsGivenBackInSilence) {
  directory_.Take(first_.decode, 0, 5);
  calls_.Drop(first_.decode);
  EXPECT_EQ(Pending(), 0);
  EXPECT_TRUE(outbox_.cancelled.empty());
}

TEST_F(OpenCallsTest, ANumberIsNeverGivenTwice) {
  directory_.Take(first_.decode, 0, 5);
  const CallId call = calls_.New(first_, first_.decode);
  calls_.End(first_.decode);
  EXPECT_GT(calls_.New(first_, first_.decode), call);
  EXPECT_EQ(calls_.OwnerOf(call), std::nullopt);
}

}  // namespace
}  // namespace baton
