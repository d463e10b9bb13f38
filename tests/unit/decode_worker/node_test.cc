#include "decode_worker/node.h"

#include "common/base/digest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/decode_worker/decode_node_harness.h"

namespace baton {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using Code = absl::StatusCode;

class DecodeNodeTest : public DecodeNodeHarness {};

// ---- Refusals ----------------------------------------------------------------------------------

TEST_F(DecodeNodeTest, RefusesNewCallsWhileItDrainsAndEndsTheOldOnes) {
  Run(1, 4, 2);
  Handle(Drain{});
  Open(2, Request(2, 4));
  EXPECT_EQ(outbox_.Closed(2), Code::kResourceExhausted);
  FinishStep();
  EXPECT_EQ(outbox_.Closed(1), Code::kOk);
  EXPECT_TRUE(node_.idle());
}

TEST_F(DecodeNodeTest, RefusesWhatCanNeverFitWithTheLimit) {
  Open(1, Request(1, 30, 12));  // 41 tokens of KV in a pool of 40.
  EXPECT_EQ(outbox_.Closed(1), Code::kInvalidArgument);
  EXPECT_THAT(std::string(outbox_.calls[1].closed->message()), HasSubstr("at most 41"));
  Open(2, Request(2, 30, 11));
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);
}

TEST_F(DecodeNodeTest, RefusesMoreTokensThanThePromptAndAnswerMayHave) {
  DecodeRequest request = Request(1, 44, 2);  // A recovery: prompt of 4, 40 emitted of 2 allowed.
  request.prompt_length = 4;
  Open(1, std::move(request));
  EXPECT_EQ(outbox_.Closed(1), Code::kInvalidArgument);
}

TEST_F(DecodeNodeTest, RefusesADuplicateWhileTheFirstLivesAndTheFirstGoesOn) {
  Open(1, Request(1, 4));
  Open(2, Request(1, 4));
  EXPECT_EQ(outbox_.Closed(2), Code::kAlreadyExists);
  EXPECT_EQ(node_.counters().duplicates, 1);
  EXPECT_EQ(outbox_.Closed(1), std::nullopt);
  EXPECT_EQ(transport_.expected.size(), 1u);
  DecodeRequest next = Request(1, 4);
  next.attempt = 2;
  Open(3, std::move(next));
  EXPECT_EQ(outbox_.Closed(3), std::nullopt);
}

TEST_F(DecodeNodeTest, LeavesEachRunningSequenceABlockToGrowInto) {
  Run(1, 4);
  Run(2, 4);
  Open(3, Request(3, 24));  // 6 of 7 blocks, but two run.
  EXPECT_EQ(outbox_.Closed(3), Code::kResourceExhausted);
  EXPECT_EQ(node_.counters().refused, 1);
  Open(4, Request(4, 20));
  EXPECT_EQ(outbox_.Closed(4), std::nullopt);
  EXPECT_EQ(pool_.counts().reserved, 5);
}

TEST_F(DecodeNodeTest, ARefusalReservesNothing) {
  Open(1, Request(1, 36, 2));
  const BlockCounts before = pool_.counts();
  Open(2, Request(2, 8));
  EXPECT_EQ(outbox_.Closed(2), Code::kResourceExhausted);
  EXPECT_EQ(pool_.counts(), before);
  EXPECT_EQ(transport_.expected.size(), 1u);
  EXPECT_TRUE(outbox_.calls[2].events.empty());
}

// ---- Progress ----------------------------------------------------------------------------------

TEST_F(DecodeNodeTest, TimeInWhichItStoodStillIsNoLayersTime) {
  Run(1, 4);
  FinishStep();  // Cold.
  for (int step = 0; step < 2; ++step) {
    now_ += std::chrono::milliseconds(60);
    node_.Step(now_);
    EXPECT_EQ(node_.NextDeadline(), now_ + LayerProgress::kPulse);
    now_ += seconds(8);
    FinishStep();
  }
  EXPECT_EQ(node_.Status().longest_layer, std::chrono::milliseconds(60) + LayerProgress::kPulse);
  EXPECT_EQ(node_.Status().progress, 3u);
}

// ---- RESERVED ----------------------------------------------------------------------------------

TEST_F(DecodeNodeTest, StandsStillWhenARunnerNeverAnswersThoughItsCallsAreGone) {
  const auto wait = [this](Duration time) {
    for (const Time end = now_ + time; now_ < end;) {
      now_ = std::min(end, std::max(now_, node_.NextDeadline()));
      node_.Step(now_);
    }
  };
  Run(1, 4);
  FinishStep();
  for (int slow = 0; slow < 3; ++slow) {
    wait(seconds(8));
    EXPECT_FALSE(node_.stands_still());
    FinishStep();
  }
  wait(seconds(140));
  EXPECT_EQ(outbox_.Closed(1), Code::kDeadlineExceeded);
  EXPECT_FALSE(node_.stands_still()) << "its steps took 8 s";
  wait(seconds(30));
  EXPECT_TRUE(node_.stands_still());
  FinishStep();
  EXPECT_FALSE(node_.stands_still());
  EXPECT_TRUE(node_.idle());
}

TEST_F(DecodeNodeTest, ReservesBeforeItAnswersAndSaysWhereToWrite) {
  DecodeRequest request = Request(1, 10);
  const std::vector<int32_t> tokens = request.tokens;
  Open(1, std::move(request));
  EXPECT_EQ(pool_.counts().reserved, 3);
  const auto reserved = outbox_.Events<ReservedEvent>(1);
  ASSERT_EQ(reserved.size(), 1u);
  EXPECT_EQ(reserved[0].ranks, (std::vector<DataRank>{{"d:1", {0, 4}}}));
  EXPECT_EQ(reserved[0].pair_key, PairKey{66});
  EXPECT_EQ(reserved[0].decode, 77u);
  EXPECT_EQ(reserved[0].cached_tokens, 0);
  const ExpectArgs& expected = transport_.expected.at(0);
  EXPECT_EQ(expected.ticket, reserved[0].ticket);
  EXPECT_EQ(expected.sender, 66u);
  EXPECT_EQ(expected.first_token, 0);
  EXPECT_EQ(expected.num_tokens, 10);
  EXPECT_EQ(expected.blocks.size(), 3u);
  EXPECT_EQ(expected.digests, (HandoffDigests{.layout = LayoutDigest(model_.layout),
                                              .model = 42,
                                              .tokens = TokensDigest(tokens)}));
}

TEST_F(DecodeNodeTest, PinsACachedPrefixAndAsksForTheRestOnly) {
  Run(1, 10, 2);
  FinishStep();
  ASSERT_TRUE(node_.idle());
  DecodeRequest again = Request(1, 10);
  again.attempt = 2;
  Open(2, std::move(again));
  EXPECT_EQ(outbox_.Events<ReservedEvent>(2).at(0).cached_tokens, 8);
  EXPECT_EQ(transport_.expected.back().first_token, 8);
  EXPECT_EQ(pool_.counts().ready, 2);
  EXPECT_EQ(pool_.counts().reserved, 1);
}

TEST_F(DecodeNodeTest, ACancelledReservationHoldsItsBlocksUntilTheTransportLetsGo) {
  Open(1, Request(1, 10));
  Handle(CallBroken{1});
  EXPECT_THAT(transport_.aborted, ElementsAre(TicketOf(1)));
  EXPECT_EQ(pool_.counts().draining, 3);
  EXPECT_FALSE(node_.idle());
  Begin(1);  // Late: it was on its way.
  EXPECT_EQ(pool_.counts().draining, 3);
  EndTransfer(1, absl::CancelledError(""));
  EXPECT_EQ(pool_.counts().free, 10);
  EXPECT_TRUE(node_.idle());
  EXPECT_EQ(outbox_.Closed(1), std::nullopt);
}

TEST_F(DecodeNodeTest, ADeadlineEndsAReservation) {
  Open(1, Request(1, 10));
  EXPECT_EQ(node_.NextDeadline(), now_ + seconds(100));
  now_ += seconds(100);
  node_.Step(now_);
  EXPECT_EQ(outbox_.Closed(1), Code::kDeadlineExceeded);
  EXPECT_EQ(transport_.aborted.size(), 1u);
  EXPECT_EQ(node_.NextDeadline(), kNever);
  EndTransfer(1, absl::CancelledError(""));
  EXPECT_TRUE(node_.idle());
}

// ---- RECEIVING ---------------------------------------------------------------------------------

TEST_F(DecodeNodeTest, ATransferThatBeginsMakesTheBlocksWritable) {
  Open(1, Request(1, 10));
  Begin(1);
  EXPECT_EQ(pool_.counts().filling, 3);
  Begin(1);  // At most once per ticket; again changes nothing.
  EXPECT_EQ(pool_.counts().filling, 3);
}

TEST_F(DecodeNodeTest, ACancelWhileReceivingFreesNothingBeforeTheEndEvenIfItIsVerified) {
  Open(1, Request(1, 10));
  Begin(1);
  Handle(CallBroken{1});
  EXPECT_EQ(pool_.counts().draining, 3);
  EndTransfer(1, absl::OkStatus(), {.position = 10, .token = 50});
  EXPECT_EQ(pool_.num_available(), 10);
  EXPECT_TRUE(Tokens(1).empty());
  EXPECT_TRUE(runner_.plans.empty());
  EXPECT_TRUE(node_.idle());
}

TEST_F(DecodeNodeTest, AVerifiedHandoffRepeatsTheFirstTokenAndDecodesFromIt) {
  Open(1, Request(1, 10));
  Begin(1);
  EndTransfer(1, absl::OkStatus(), {.position = 10, .token = 50});
  EXPECT_THAT(Tokens(1), ElementsAre(std::pair(10, 50)));
  EXPECT_EQ(pool_.counts().ready, 2);
  EXPECT_EQ(node_.counters().handoffs, 1);
  ASSERT_EQ(runner_.plans.size(), 1u);
  const StepRow& row = runner_.plans[0]->rows.at(0);
  EXPECT_EQ(row.context_len, 10);
  EXPECT_THAT(row.tokens, ElementsAre(50));
  EXPECT_TRUE(row.sample);
}

TEST_F(DecodeNodeTest, AVerdictWithoutABeginningIsEnough) {
  Open(1, Request(1, 10));
  EndTransfer(1, absl::OkStatus(), {.position = 10, .token = 50});
  EXPECT_THAT(Tokens(1), ElementsAre(std::pair(10, 50)));
  EXPECT_EQ(runner_.plans.size(), 1u);
}

TEST_F(DecodeNodeTest, AFirstTokenThatIsTheLastEndsTheCall) {
  Open(1, Request(1, 8));
  Begin(1);
  EndTransfer(1, absl::OkStatus(), {.position = 8, .token = 1, .finish = FinishReason::kStop});
  EXPECT_THAT(Tokens(1), ElementsAre(std::pair(8, 1)));
  EXPECT_EQ(outbox_.Closed(1), Code::kOk);
  EXPECT_EQ(pool_.counts(), (BlockCounts{.free = 8, .cached = 2}));
  EXPECT_TRUE(node_.idle());
}

// ---- RUNNING -----------------------------------------------------------------------------------

TEST_F(DecodeNodeTest, StreamsEachTokenAndClosesOkBehindTheLast) {
  Run(1, 4, 3);
  FinishStep(56);
  EXPECT_EQ(outbox_.Closed(1), std::nullopt);
  FinishStep(57);
  EXPECT_THAT(Tokens(1), ElementsAre(std::pair(4, 50), std::pair(5, 56), std::pair(6, 57)));
  EXPECT_EQ(outbox_.Events<TokensEvent>(1).back().outputs[0].finish, FinishReason::kLength);
  EXPECT_EQ(outbox_.Closed(1), Code::kOk);
  EXPECT_TRUE(node_.idle());
}

TEST_F(DecodeNodeTest, ACancelDuringAStepHoldsTheBlocksUntilItHasEnded) {
  Run(1, 4);
  Handle(CallBroken{1});
  EXPECT_EQ(pool_.counts().draining, 1);
  EXPECT_EQ(pool_.counts().ready, 1) << "the step only reads it: it may be found";
  EXPECT_FALSE(node_.idle());
  FinishStep();
  EXPECT_EQ(pool_.num_available(), 10);
  EXPECT_TRUE(node_.idle());
  EXPECT_EQ(Tokens(1).size(), 1u);
  EXPECT_EQ(runner_.plans.size(), 1u);
  EXPECT_TRUE(transport_.aborted.empty());
}

TEST_F(DecodeNodeTest, ACancelOutsideTheStepFreesAtOnce) {
  Run(1, 4);
  Open(2, Request(2, 4));
  Begin(2);
  EndTransfer(2, absl::OkStatus(), {.position = 4, .token = 50});  // Not in 1's step.
  Handle(CallBroken{2});
  EXPECT_EQ(pool_.counts().draining, 0);
  EXPECT_EQ(pool_.counts().cached, 1);
  FinishStep();
  EXPECT_EQ(Tokens(1).size(), 2u);
}

TEST_F(DecodeNodeTest, ADeadlineDuringAStepClosesAtOnceAndKeepsTheBlocks) {
  Run(1, 4);
  now_ += seconds(100);
  node_.Step(now_);
  EXPECT_EQ(outbox_.Closed(1), Code::kDeadlineExceeded);
  EXPECT_EQ(pool_.counts().draining, 1);
  EXPECT_EQ(pool_.num_available(), 8);
  FinishStep();
  EXPECT_EQ(Tokens(1).size(), 1u);
  EXPECT_TRUE(node_.idle());
}

TEST_F(DecodeNodeTest, AFailedStepEndsItsCallsOnly) {
  Run(1, 4);
  Run(2, 4);
  Handle(StepDone{.step = runner_.plans[0]->step, .status = absl::InternalError("broken")});
  EXPECT_EQ(outbox_.Closed(1), Code::kInternal);
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);
  FinishStep();
  EXPECT_EQ(Tokens(2).size(), 2u);
}

// ---- PREEMPTED and reservations that are taken back --------------------------------------------

TEST_F(DecodeNodeTest, AYoungerReservationIsRevokedForARunningSequence) {
  Run(1, 12, 20);
  Open(2, Request(2, 16));  // 4 blocks; after the next growth of 1, 2 are free.
  Open(3, Request(3, 4));   // The youngest.
  ASSERT_EQ(outbox_.Closed(3), std::nullopt);
  while (outbox_.Closed(3) == std::nullopt) FinishStep();
  EXPECT_EQ(outbox_.Closed(3), Code::kResourceExhausted);
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);
  EXPECT_THAT(transport_.aborted, ElementsAre(TicketOf(3)));
  EXPECT_EQ(node_.counters().revoked, 1);
  const size_t steps = runner_.plans.size();
  EndTransfer(3, absl::CancelledError(""));  // Only now its block can be used.
  EXPECT_EQ(runner_.plans.size(), steps + 1);
  EXPECT_EQ(node_.num_preemptions(), 0);
}

TEST_F(DecodeNodeTest, APreemptedSequenceGoesOnWithoutRepeatingATokenAndBarsNewCalls) {
  Run(1, 16, 20);
  Run(2, 12, 20);  // 5 + 4 of 10 blocks.
  while (node_.Status().preempted == 0) FinishStep(60);
  const auto before = Tokens(2);
  Open(3, Request(3, 4));
  EXPECT_EQ(outbox_.Closed(3), Code::kResourceExhausted);
  while (outbox_.Closed(1) == std::nullopt) FinishStep(60);
  EXPECT_EQ(Tokens(2), before);
  while (outbox_.Closed(2) == std::nullopt) FinishStep(60);
  const auto after = Tokens(2);
  ASSERT_EQ(after.size(), 20u);
  for (int32_t i = 0; i < 20; ++i) EXPECT_EQ(after[i].first, 12 + i);
  EXPECT_GE(node_.num_preemptions(), 1);
  EXPECT_TRUE(node_.idle());
}

TEST_F(DecodeNodeTest, ACancelledPreemptedSequenceIsGoneAtOnce) {
  Run(1, 16, 20);
  Run(2, 12, 20);
  while (node_.Status().preempted == 0) FinishStep(60);
  Handle(CallBroken{2});
  EXPECT_EQ(node_.Status().preempted, 0);
  EXPECT_EQ(node_.Status().waiting, 0);
}

// ---- Late and foreign mail ---------------------------------------------------------------------

TEST_F(DecodeNodeTest, LateMailIsACountedNoOp) {
  Run(1, 4, 2);
  FinishStep();
  ASSERT_TRUE(node_.idle());
  Handle(CallBroken{1});
  EndTransfer(1, absl::OkStatus(), {.position = 4, .token = 50});
  Begin(1);
  EXPECT_EQ(node_.counters().stale_mail, 3);
  Handle(StepDone{.step = 1});
  EXPECT_TRUE(node_.idle());
  EXPECT_EQ(Tokens(1).size(), 2u);
}

TEST_F(DecodeNodeTest, ASecondCancelOfAnEndingCallIsStale) {
  Open(1, Request(1, 4));
  Handle(CallBroken{1});
  Handle(CallBroken{1});
  EXPECT_EQ(node_.counters().stale_mail, 1);
  EXPECT_EQ(transport_.aborted.size(), 1u);
}

TEST_F(DecodeNodeTest, MailForOthersIsStale) {
  Open(1, Request(1, 4));
  Handle(CallBroken{7});
  Handle(TransferEvent{.kind = TransferEvent::Kind::kEnded, .ticket = TicketOf(1)});  // A sender's.
  EXPECT_EQ(node_.counters().stale_mail, 2);
  EXPECT_EQ(pool_.counts().reserved, 1);
}

TEST_F(DecodeNodeTest, StatusTellsLoadAndProgress) {
  Run(1, 4);
  Open(2, Request(2, 8));
  Handle(LayerDone{.step = 1, .layer = 0});
  const WorkerStatus status = node_.Status();
  EXPECT_EQ(status.incarnation, 77u);
  EXPECT_EQ(status.running, 1);
  EXPECT_EQ(status.waiting, 1);
  EXPECT_EQ(status.progress, 1u);
  EXPECT_TRUE(status.computing);
  EXPECT_EQ(status.blocks.reserved, 2);
  Handle(RowsDone{.step = 1, .rows = 32});
  EXPECT_EQ(node_.Status().progress, 2u) << "rows of logits are progress as layers are";
}

}  // namespace
}  // namespace baton
