// An answer whose session ended is kept for a while: a call that returns for it goes on at once.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/decode_worker/decode_node_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;
using Code = absl::StatusCode;

class ParkingTest : public DecodeNodeHarness {
 protected:
  ParkingTest() = default;
  explicit ParkingTest(ModelInfo model, const EngineOptions& engine = {.chunk_tokens = 8})
      : DecodeNodeHarness(std::move(model), engine) {}
  // A prompt of 9 tokens, and three of its answer: 50, 55, 55.
  void Answer(CallId call) {
    Run(call, 9);
    for (int i = 0; i < 2; ++i) FinishStep();
  }
  void EndSession(CallId call) { Handle(CallBroken{.call = call, .session_ended = true}); }
  DecodeRequest Returning(CallId of, const std::vector<int32_t>& emitted, int32_t length = 9) {
    DecodeRequest request = Request(of, length, 20);
    request.attempt = 2;
    request.prefill = 0;
    request.tokens.insert(request.tokens.end(), emitted.begin(), emitted.end());
    return request;
  }
  void Return(CallId call, const std::vector<int32_t>& emitted, CallId of = 1) {
    Handle(DecodeOpened{.call = call, .request = Returning(of, emitted)});
  }
  std::vector<int32_t> Emitted(CallId call) {
    std::vector<int32_t> emitted;
    for (const auto& [position, token] : Tokens(call)) emitted.push_back(token);
    return emitted;
  }
  std::vector<std::string> States() const {
    std::vector<std::string> states;
    for (const HeldCall& held : node_.Audit(now_).calls) states.push_back(held.state);
    return states;
  }
  const StepRow& Row() const { return runner_.plans.back()->rows.front(); }
};

class ParkingBesideFollowUpsTest : public ParkingTest {
 protected:
  ParkingBesideFollowUpsTest()
      : ParkingTest(SmallModel(), {.chunk_tokens = 8, .steps_in_flight = 2}) {}
  void End(size_t plan) { Handle(DoneWith(*runner_.plans[plan], 55)); }
};

class ParkingInAWindowTest : public ParkingTest {
 protected:
  ParkingInAWindowTest() : ParkingTest(SmallModel(/*window=*/5)) {}
};

// ---- Going on ----------------------------------------------------------------------------------

TEST_F(ParkingTest, AnAnswerGoesOnAtOnceWithTheBlocksThatItHad) {
  Answer(1);
  EndSession(1);
  FinishStep();
  const std::vector<BlockId> blocks = Row().block_table;
  EXPECT_THAT(States(), ElementsAre("PARKED"));
  const size_t plans = runner_.plans.size();
  Return(2, {50, 55, 55});
  EXPECT_THAT(States(), ElementsAre("RUNNING"));
  ASSERT_EQ(runner_.plans.size(), plans + 1);
  EXPECT_EQ(Row().context_len, 11);
  EXPECT_THAT(Row().tokens, ElementsAre(55));
  EXPECT_EQ(Row().block_table, blocks);
  FinishStep(57);
  EXPECT_THAT(Tokens(2), ElementsAre(Pair(12, 57)));
  EXPECT_EQ(node_.counters().resumed, 1);
  EXPECT_EQ(node_.counters().returned, 1);
}

TEST_F(ParkingTest, WhatTheRouterHasNotHeardIsSaidAgain) {
  Answer(1);
  EndSession(1);
  FinishStep();
  Return(2, {50});
  EXPECT_THAT(Tokens(2), ElementsAre(Pair(10, 55), Pair(11, 55)));
  EXPECT_EQ(Row().context_len, 11);
  // And once more, if it was not heard either.
  EndSession(2);
  FinishStep();
  Return(3, {50});
  EXPECT_THAT(Tokens(3), ElementsAre(Pair(10, 55), Pair(11, 55)));
}

TEST_F(ParkingTest, MoreThanAFewTokensAreNotSaidAgain) {
  Run(1, 9);
  for (int i = 0; i < 9; ++i) FinishStep();
  EndSession(1);
  FinishStep();
  Return(2, {50});
  EXPECT_THAT(Tokens(2), IsEmpty());
  EXPECT_EQ(node_.counters().resumed, 0);
  EXPECT_EQ(node_.counters().returned, 1) << "the usual way";
  EXPECT_EQ(Row().context_len, 8);
  EXPECT_THAT(States(), ElementsAre("RUNNING"));
}

TEST_F(ParkingTest, OtherTokensOrAnotherWayToSampleDoNotGoOnThere) {
  using Change = std::function<void(DecodeRequest&)>;
  const std::vector<Change> changes = {
      [](DecodeRequest& r) { r.tokens[10] = 56; },
      [](DecodeRequest& r) { r.tokens.push_back(55); },
      [](DecodeRequest& r) { r.sampling.seed = 7; },
      [](DecodeRequest& r) { r.sampling.max_tokens = 4; },
      [](DecodeRequest& r) { r.prompt_length = 8; },
      [](DecodeRequest&) {},
  };
  CallId call = 1;
  for (const auto& change : changes) {
    Answer(call);
    EndSession(call);
    FinishStep();
    DecodeRequest request = Returning(call, {50, 55, 55});
    change(request);
    Handle(DecodeOpened{.call = 100 + call, .request = std::move(request)});
    EXPECT_EQ(node_.counters().resumed, &change == &changes.back()) << call;
    if (outbox_.Closed(100 + call) == std::nullopt) Handle(CallBroken{100 + call});
    FinishStep();
    now_ += seconds(2);
    node_.Step(now_);
    ASSERT_TRUE(node_.idle());
    ++call;
  }
}

TEST_F(ParkingTest, AnotherTenantDoesNotGoOnThere) {
  Answer(1);
  EndSession(1);
  FinishStep();
  DecodeRequest other = Returning(1, {50, 55, 55});
  other.tenant = "other";
  Handle(DecodeOpened{.call = 2, .request = std::move(other)});
  EXPECT_EQ(outbox_.Closed(2), Code::kFailedPrecondition);
  EXPECT_THAT(States(), ElementsAre("PARKED")) << "a call that was refused ends nothing";
}

// ---- Amid a step -------------------------------------------------------------------------------

TEST_F(ParkingTest, OneThatReturnsAmidTheStepGoesOnBehindIt) {
  Answer(1);
  const size_t plans = runner_.plans.size();
  EndSession(1);
  Return(2, {50, 55, 55});
  EXPECT_THAT(outbox_.Events<TokensEvent>(2), SizeIs(1));
  EXPECT_THAT(States(), ElementsAre("ENDING", "RUNNING"));
  EXPECT_EQ(runner_.plans.size(), plans) << "no step starts beside the one that writes its blocks";
  FinishStep(56);
  EXPECT_THAT(Tokens(2), IsEmpty());
  ASSERT_EQ(runner_.plans.size(), plans + 1);
  EXPECT_EQ(Row().context_len, 11);
  FinishStep(57);
  EXPECT_THAT(Tokens(2), ElementsAre(Pair(12, 57)));
  EXPECT_THAT(States(), ElementsAre("RUNNING"));
}

TEST_F(ParkingTest, ACancelAmidThatStepLeavesItTheBlocks) {
  Answer(1);
  EndSession(1);
  Return(2, {50, 55, 55});
  Handle(CallBroken{2});
  EXPECT_THAT(States(), ElementsAre("ENDING"));
  EXPECT_EQ(pool_.counts().draining, 1);
  EXPECT_EQ(node_.Audit(now_).num_unowned, 0);
  FinishStep();
  EXPECT_TRUE(node_.idle());
  EXPECT_EQ(pool_.num_available(), 10);
}

TEST_F(ParkingTest, ASecondEndAmidThatStepParksItAgain) {
  Answer(1);
  EndSession(1);
  Return(2, {50, 55});
  now_ += milliseconds(1900);
  EndSession(2);
  EXPECT_THAT(States(), ElementsAre("PARKED"));
  EXPECT_EQ(pool_.counts().draining, 1);
  now_ += milliseconds(1900);
  node_.Step(now_);
  EXPECT_THAT(States(), ElementsAre("PARKED")) << "for the whole time from the second end";
  Return(3, {50});
  FinishStep();
  FinishStep(57);
  EXPECT_THAT(Tokens(3), ElementsAre(Pair(10, 55), Pair(11, 55), Pair(12, 57)));
}

TEST_F(ParkingTest, AStepThatFailsTakesNothingFromIt) {
  Answer(1);
  EndSession(1);
  Return(2, {50, 55, 55});
  Handle(StepDone{.step = runner_.plans.back()->step, .status = absl::InternalError("x")});
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);
  EXPECT_EQ(Row().context_len, 11);
}

TEST_F(ParkingBesideFollowUpsTest, OneThatReturnsWaitsForBothSteps) {
  Run(1, 9);
  End(0);
  now_ += milliseconds(1);
  node_.Step(now_);
  ASSERT_EQ(runner_.plans.size(), 3u) << "a step and its follow-up";
  EndSession(1);
  Return(2, {50, 55});
  End(1);
  EXPECT_EQ(runner_.plans.size(), 3u);
  EXPECT_THAT(States(), ElementsAre("ENDING", "RUNNING"));
  End(2);
  ASSERT_GE(runner_.plans.size(), 4u);
  EXPECT_EQ(runner_.plans[3]->rows.front().context_len, 10);
  EXPECT_THAT(Tokens(2), IsEmpty());
}

// ---- Its end -----------------------------------------------------------------------------------

TEST_F(ParkingTest, ItsTimeEnds) {
  Answer(1);
  EndSession(1);
  FinishStep();
  EXPECT_EQ(node_.NextDeadline(), now_ + seconds(2));
  now_ += milliseconds(1999);
  node_.Step(now_);
  EXPECT_THAT(States(), ElementsAre("PARKED"));
  now_ += milliseconds(1);
  node_.Step(now_);
  EXPECT_TRUE(node_.idle());
  EXPECT_EQ(pool_.num_available(), 10);
  EXPECT_EQ(outbox_.Closed(1), std::nullopt) << "nobody hears it";
}

TEST_F(ParkingTest, ItsTimeEndsAmidAStep) {
  Answer(1);
  EndSession(1);
  now_ += seconds(2);
  node_.Step(now_);
  EXPECT_THAT(States(), ElementsAre("ENDING"));
  FinishStep();
  EXPECT_TRUE(node_.idle());
}

TEST_F(ParkingTest, ACancelOrADrainKeepsNothing) {
  Answer(1);
  Answer(2);
  Handle(CallBroken{1});
  EndSession(2);
  FinishStep();
  EXPECT_THAT(States(), ElementsAre("PARKED"));
  Handle(Drain{});
  EXPECT_TRUE(node_.idle());
}

TEST_F(ParkingTest, OneThatDrainsParksNothing) {
  Answer(1);
  Handle(Drain{});
  EndSession(1);
  FinishStep();
  EXPECT_TRUE(node_.idle());
}

TEST_F(ParkingTest, WhatIsReceivedIsNotParked) {
  Open(1, Request(1, 9));
  Open(2, Request(2, 9));
  Begin(2);
  EndSession(1);
  EndSession(2);
  EXPECT_THAT(States(), Each("ENDING"));
}

TEST_F(ParkingTest, OneThatHasReturnedAlreadyIsNotParked) {
  Answer(1);
  Return(2, {50, 55, 55});
  EndSession(1);
  EXPECT_THAT(States(), ElementsAre("ENDING", "RUNNING"));
}

TEST_F(ParkingTest, ACallThatBringsItsOwnEndsIt) {
  Answer(1);
  EndSession(1);
  FinishStep();
  DecodeRequest request = Request(1, 9, 20);
  request.attempt = 2;
  Open(2, std::move(request));
  EXPECT_THAT(States(), ElementsAre("RESERVED"));
}

// ---- Room --------------------------------------------------------------------------------------

TEST_F(ParkingTest, ItCountsAsFreeForRouters) {
  Answer(1);
  EndSession(1);
  EXPECT_EQ(node_.Status().blocks.free + node_.Status().blocks.cached, 7) << "a step touches it";
  FinishStep();
  EXPECT_EQ(pool_.num_available(), 7);
  const WorkerStatus status = node_.Status();
  EXPECT_EQ(status.blocks.free + status.blocks.cached, 10);
  EXPECT_EQ(status.blocks.total(), 10);
  EXPECT_EQ(status.waiting, 0);
}

TEST_F(ParkingTest, WhatARunningOneHoldsTooDoesNotCountAsFree) {
  Answer(1);
  DecodeRequest joins = Request(1, 9, 20);
  joins.sequence = {1, 2};
  joins.prefill = 0;
  Open(2, std::move(joins));
  EndSession(1);
  FinishStep();
  // Of four blocks two are shared; one is the tail of each.
  EXPECT_EQ(pool_.num_available(), 6);
  EXPECT_EQ(node_.Status().blocks.free + node_.Status().blocks.cached, 7);
}

TEST_F(ParkingTest, AReservationTakesItsBlocksTheYoungestFirst) {
  Answer(1);
  Answer(2);
  for (CallId call : {1, 2}) EndSession(call);
  FinishStep();
  Open(3, Request(3, 4 * (pool_.num_available() + 1)));
  EXPECT_EQ(outbox_.Closed(3), std::nullopt);
  EXPECT_THAT(States(), ElementsAre("PARKED", "RESERVED"));
  EXPECT_EQ(node_.Audit(now_).calls[0].sequence.counter, 1u);
}

TEST_F(ParkingTest, WhatAStepTouchesIsNotGivenUpForNothing) {
  Answer(1);
  EndSession(1);
  Open(2, Request(2, 4 * (pool_.num_available() + 1)));
  EXPECT_EQ(outbox_.Closed(2), Code::kResourceExhausted);
  EXPECT_THAT(States(), ElementsAre("PARKED"));
}

TEST_F(ParkingTest, ItGivesWayBeforeAReservationOrARunningOne) {
  Run(1, 12);
  Run(2, 12);
  FinishStep();
  EndSession(2);
  FinishStep();
  Open(3, Request(3, 4));
  ASSERT_LE(pool_.num_available(), 2);
  for (int i = 0; i < 12; ++i) FinishStep();
  EXPECT_EQ(outbox_.Closed(3), std::nullopt);
  EXPECT_EQ(node_.num_preemptions(), 0);
  EXPECT_EQ(node_.counters().revoked, 0);
  EXPECT_THAT(States(), ElementsAre("RUNNING", "RESERVED"));
}

// ---- While others wait for blocks --------------------------------------------------------------

TEST_F(ParkingTest, OneThatIsOlderThanTheyAreGoesOn) {
  Run(1, 12);
  const Time arrival = now_;
  Run(2, 12);
  while (node_.Status().preempted == 0) FinishStep();
  EndSession(1);
  DecodeRequest request = Returning(1, Emitted(1), /*length=*/12);
  request.age = now_ - arrival;
  Handle(DecodeOpened{.call = 3, .request = std::move(request)});
  EXPECT_EQ(outbox_.Closed(3), std::nullopt);
  EXPECT_EQ(node_.counters().resumed, 1);
  FinishStep();
  FinishStep(57);
  ASSERT_THAT(Tokens(3), SizeIs(1));
  EXPECT_EQ(Tokens(3)[0].second, 57);
  EXPECT_EQ(node_.Status().preempted, 1);
}

TEST_F(ParkingTest, OneThatIsYoungerIsRefusedAndGivesWay) {
  Run(1, 12);
  Run(2, 12);
  Open(3, Request(3, 4, 20));
  Begin(3);
  while (node_.Status().preempted == 0) FinishStep();
  EndTransfer(3, absl::OkStatus(), {.position = 4, .token = 50});
  FinishStep();
  EndSession(3);
  Handle(DecodeOpened{.call = 4, .request = Returning(3, Emitted(3), /*length=*/4)});
  EXPECT_EQ(outbox_.Closed(4), Code::kResourceExhausted);
  EXPECT_THAT(States(), ElementsAre("RUNNING", "RUNNING", "PARKED"));
  FinishStep();
  EXPECT_THAT(States(), ElementsAre("RUNNING", "RUNNING")) << "its blocks go to who waits";
}

TEST_F(ParkingInAWindowTest, GoesOnWithWhatTheWindowSeesAlsoBehindAPartialHandoff) {
  Run(1, 30, 8);
  FinishStep();
  EndSession(1);
  FinishStep();
  DecodeRequest request = Returning(1, {50, 55}, /*length=*/30);
  request.sampling.max_tokens = 8;
  Handle(DecodeOpened{.call = 2, .request = std::move(request)});
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);
  EXPECT_EQ(node_.counters().resumed, 1);
  EXPECT_EQ(Row().context_len, 31);
}

}  // namespace
}  // namespace baton
