// A decode worker by its addresses and connections: by which of them sequences return to it.
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/router/returns_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

// Indices 1 and 2 name one process. It is known by the first, which counts, until that is lost.
class ReturnsAddressesTest : public ReturnsHarness {
 protected:
  void SetUp() override {
    ReturnsHarness::SetUp();
    Up(2, incarnation(1));
    Decode(1);
    worker_ = 2;
  }
  void LoseFirst() { EndSession(1, {outbox_.decodes[0].call}); }
  void Refuse() { Closed(decode_call(), absl::ResourceExhaustedError("no blocks are free")); }
};

TEST_F(ReturnsAddressesTest, ReturnsByTheOneThatStands) {
  ASSERT_EQ(outbox_.decodes[0].worker, 1);
  LoseFirst();
  ExpectReturned();
  EXPECT_EQ(last_decode().worker, incarnation(1));
  Tokens(decode_call(), 4, 51, FinishReason::kStop, 2);
  EXPECT_EQ(Ended(1), absl::StatusCode::kOk);
  EXPECT_EQ(node_->counters().moves + node_->counters().retries, 0);
}

TEST_F(ReturnsAddressesTest, ReturnsByTheOneThatIsBackFirst) {
  Handle(WorkerDown{.worker = 2, .reason = "connection lost"});
  LoseFirst();
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  Up(2, incarnation(1));
  ExpectReturned();
}

TEST_F(ReturnsAddressesTest, WhereNobodyListensAtOneItIsAskedByTheOther) {
  Handle(WorkerDown{.worker = 2, .reason = "connection lost"});
  LoseFirst();
  Handle(WorkerDown{.worker = 1, .reason = "no worker answers", .is_gone = true});
  Judged();
  EXPECT_EQ(node_->counters().moves, 0);
  Up(2, incarnation(1));
  ExpectReturned();
}

TEST_F(ReturnsAddressesTest, AnAddressThatIsForgottenEndsNoWait) {
  Handle(WorkerDown{.worker = 2, .reason = "connection lost"});
  LoseFirst();
  Handle(WorkerForgotten{.worker = 1});
  Judged();
  EXPECT_EQ(node_->counters().moves, 0);
  Up(2, incarnation(1));
  ExpectReturned();
}

TEST_F(ReturnsAddressesTest, TheLastThatIsForgottenEndsIt) {
  Handle(WorkerDown{.worker = 2, .reason = "connection lost"});
  Handle(WorkerForgotten{.worker = 2});
  LoseFirst();
  Handle(WorkerForgotten{.worker = 1});
  Judged();
  EXPECT_EQ(node_->counters().moves, 1);
}

TEST_F(ReturnsAddressesTest, WhatIsHeardByOneOfDrainingCountsForAll) {
  Handle(WorkerStatusChanged{2, {.incarnation = incarnation(1), .draining = true}});
  LoseFirst();
  Judged();
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_EQ(node_->counters().moves, 1);
}

TEST_F(ReturnsAddressesTest, GoesByTheOneThatCounts) {
  LoseFirst();
  Refuse();
  Up(1, incarnation(1));
  Wait(milliseconds(20));
  ASSERT_EQ(outbox_.decodes.size(), 3u);
  EXPECT_EQ(outbox_.decodes.back().worker, 2);
}

TEST_F(ReturnsAddressesTest, ACallThatIsLostAloneIsARetryThough) {
  Closed(outbox_.decodes[0].call, Gone());
  Wait(milliseconds(1));
  Heard(1);
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  Judged();
  Judged();
  EXPECT_EQ(node_->counters().retries, 1);
  EXPECT_EQ(node_->counters().returns, 0);
}

using ReturnsConnectionsTest = ReturnsHarness;

// The link to a worker is ahead of the node: a call goes over a connection that the node hears of
// later. When that is lost too, it costs one of the tries and not two.
TEST_F(ReturnsConnectionsTest, IsNotAskedOverOneThatIsLostAsFarAsMailTells) {
  LoseSession();
  Back(worker_);
  for (size_t asked = 2; asked < 4; ++asked) {
    ASSERT_EQ(outbox_.decodes.size(), asked);
    Handle(WorkerDown{.worker = worker_, .reason = "a message was damaged"});
    Back(worker_);  // The call went over this one.
    Closed(decode_call(), Gone());
    ASSERT_EQ(outbox_.decodes.size(), asked);
    Handle(WorkerDown{.worker = worker_, .reason = "a message was damaged"});
    Back(worker_);
  }
  EXPECT_EQ(outbox_.decodes.size(), 4u);
  EXPECT_EQ(node_->counters().moves, 0);
  Tokens(decode_call(), 4, 51, FinishReason::kStop, 4);
  EXPECT_EQ(Ended(1), absl::StatusCode::kOk);
}

TEST_F(ReturnsConnectionsTest, OneThatStandsForAMomentIsBelieved) {
  LoseSession();
  Back(worker_);
  Handle(WorkerDown{.worker = worker_, .reason = "a message was damaged"});
  Back(worker_);
  Closed(decode_call(), Gone());
  Sleep(milliseconds(19));
  EXPECT_EQ(outbox_.decodes.size(), 2u);
  Sleep(milliseconds(1));
  EXPECT_EQ(outbox_.decodes.size(), 3u);
}

}  // namespace
}  // namespace baton
