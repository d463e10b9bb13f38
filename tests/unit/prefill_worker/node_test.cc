#include "prefill_worker/node.h"

#include "common/base/digest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/prefill_worker/prefill_node_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using Code = absl::StatusCode;

class PrefillNodeTest : public PrefillNodeHarness {};

// ---- Refusals ----------------------------------------------------------------------------------

TEST_F(PrefillNodeTest, RefusesNewCallsWhileItDrainsAndEndsTheOldOnes) {
  Open(1, Request(1, 4, /*handoff=*/false));
  Handle(Drain{});
  Open(2, Request(2, 4));
  EXPECT_EQ(outbox_.Closed(2), Code::kResourceExhausted);
  EXPECT_TRUE(node_.Status().draining);
  FinishStep();
  EXPECT_EQ(outbox_.Closed(1), Code::kOk);
  EXPECT_TRUE(node_.idle());
}

TEST_F(PrefillNodeTest, RefusesAPromptThatCanNeverFitWithTheLimit) {
  Open(1, Request(1, 49));
  EXPECT_EQ(outbox_.Closed(1), Code::kInvalidArgument);
  EXPECT_THAT(std::string(outbox_.calls[1].closed->message()), HasSubstr("takes 1 to 48"));
  Open(2, Request(2, 0));
  EXPECT_EQ(outbox_.Closed(2), Code::kInvalidArgument);
  EXPECT_EQ(node_.counters().refused, 2);
}

TEST_F(PrefillNodeTest, RefusesAHandoffThatStartsOutsideThePrompt) {
  for (int32_t first : {-1, 4}) {
    PrefillRequest request = Request(1, 4);
    request.handoff->first_token = first;
    Open(10 + first, std::move(request));
    EXPECT_EQ(outbox_.Closed(10 + first), Code::kInvalidArgument);
  }
}

TEST_F(PrefillNodeTest, RefusesADuplicateWhileTheFirstLivesAndTheFirstGoesOn) {
  Open(1, Request(1, 4));
  Open(2, Request(1, 4));
  EXPECT_EQ(outbox_.Closed(2), Code::kAlreadyExists);
  EXPECT_EQ(node_.counters().duplicates, 1);
  EXPECT_EQ(outbox_.Closed(1), std::nullopt);
  EXPECT_EQ(transport_.started.size(), 1u);
}

TEST_F(PrefillNodeTest, AnotherAttemptIsNoDuplicate) {
  Open(1, Request(1, 4));
  PrefillRequest second = Request(1, 4);
  second.attempt = 2;
  second.handoff->ticket = {9, 2};
  Open(2, std::move(second));
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);
}

TEST_F(PrefillNodeTest, RefusesATicketOfALiveCallEvenBeforeItsTransferStarts) {
  Open(1, Request(1, 40));
  Open(2, Request(2, 40));  // Waits.
  PrefillRequest third = Request(3, 4);
  third.handoff->ticket = {9, 2};
  Open(3, std::move(third));
  EXPECT_EQ(outbox_.Closed(3), Code::kAborted);  // No fault of the request.
  PrefillRequest fourth = Request(4, 4);
  fourth.handoff->ticket = {9, 1};
  Open(4, std::move(fourth));
  EXPECT_EQ(outbox_.Closed(4), Code::kAborted);
}

TEST_F(PrefillNodeTest, RefusesWhenItsQueueIsFull) {
  Open(1, Request(1, 48));
  for (uint64_t id : {2, 3, 4}) Open(id, Request(id, 4));
  Open(5, Request(5, 4));
  EXPECT_EQ(outbox_.Closed(5), Code::kResourceExhausted);
  EXPECT_EQ(outbox_.Closed(4), std::nullopt);
}

// ---- WAITING -----------------------------------------------------------------------------------

TEST_F(PrefillNodeTest, WaitsForAllItsBlocksAndIsNotOvertakenByAYoungerOne) {
  Open(1, Request(1, 40));
  Open(2, Request(2, 12));  // 3 blocks, 2 are left.
  Open(3, Request(3, 4));
  EXPECT_EQ(transport_.started.size(), 1u);
  EXPECT_EQ(node_.Status().waiting, 2);
  Handle(CallBroken{1});
  TransferEnds(1, absl::CancelledError(""));  // The step still holds the blocks.
  EXPECT_EQ(transport_.started.size(), 1u);
  FinishStep();
  EXPECT_EQ(transport_.started.size(), 3u);
}

TEST_F(PrefillNodeTest, AnOlderRequestThatArrivesLaterGoesFirst) {
  Open(1, Request(1, 40));
  now_ += seconds(1);
  Open(2, Request(2, 48));
  PrefillRequest older = Request(3, 48);
  older.age = seconds(10);
  Open(3, std::move(older));
  Handle(CallBroken{1});
  TransferEnds(1, absl::CancelledError(""));
  FinishStep();
  EXPECT_EQ(transport_.started.back().ticket, (TicketId{9, 3}));
}

TEST_F(PrefillNodeTest, ACancelledCallThatWaitsIsGoneAtOnce) {
  Open(1, Request(1, 48));
  Open(2, Request(2, 48));
  Handle(CallBroken{2});
  EXPECT_EQ(node_.Status().waiting, 0);
  EXPECT_TRUE(outbox_.calls[2].events.empty());
  EXPECT_TRUE(transport_.aborted.empty());
}

TEST_F(PrefillNodeTest, ADeadlineEndsACallThatWaits) {
  Open(1, Request(1, 48));
  PrefillRequest request = Request(2, 48);
  request.timeout = milliseconds(5);
  Open(2, std::move(request));
  EXPECT_EQ(node_.NextDeadline(), now_ + milliseconds(5));
  now_ += milliseconds(5);
  node_.Step(now_);
  EXPECT_EQ(outbox_.Closed(2), Code::kDeadlineExceeded);
  EXPECT_EQ(node_.NextDeadline(), now_ + LayerProgress::kPulse);  // Of the step.
}

// ---- COMPUTING ---------------------------------------------------------------------------------

TEST_F(PrefillNodeTest, StartsTheTransferWhenItHasTheBlocks) {
  Open(1, Request(1, 10));
  ASSERT_EQ(transport_.started.size(), 1u);
  const StartArgs& start = transport_.started[0];
  EXPECT_EQ(start.ticket, (TicketId{9, 1}));
  EXPECT_EQ(start.receivers, (std::vector<DataRank>{{"d:1", {0, 4}}}));
  EXPECT_EQ(start.key, PairKey{7});
  EXPECT_EQ(start.sender, 66u);
  EXPECT_EQ(start.receiver, 77u);
  EXPECT_EQ(start.blocks.size(), 3u);
  EXPECT_EQ(start.num_tokens, 10);
}

TEST_F(PrefillNodeTest, PushesEachLayersRowsAsTheyAreWritten) {
  Open(1, Request(1, 10));
  EXPECT_TRUE(transport_.pushed.empty());
  Handle(LayerDone{.step = runner_.plans[0]->step, .layer = 0});
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 0, 8)));
  Handle(LayerDone{.step = runner_.plans[0]->step, .layer = 1});
  Handle(DoneWith(*runner_.plans[0], 55));
  LayersDone();
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 0, 8), std::tuple(1, 0, 8), std::tuple(0, 8, 2),
                                    std::tuple(1, 8, 2)));
}

TEST_F(PrefillNodeTest, PushesWhatItHasCachedAtOnceButNothingTheDecodeWorkerHolds) {
  Open(1, Request(1, 10, /*handoff=*/false));
  FinishStep();
  FinishStep();
  PrefillRequest again = Request(1, 10);
  again.attempt = 2;
  again.handoff->first_token = 4;
  Open(2, std::move(again));
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 4, 4), std::tuple(1, 4, 4)));
  EXPECT_EQ(runner_.plans.back()->rows[0].context_len, 8);
  LayersDone();
  EXPECT_EQ(Pushed().size(), 4u);
  EXPECT_EQ(Pushed().back(), std::tuple(1, 8, 2));
  EXPECT_EQ(node_.counters().cached_tokens, 8);
}

TEST_F(PrefillNodeTest, DoesNotPushWhatLiesBeforeTheDecodeWorkersFirstToken) {
  PrefillRequest request = Request(1, 16);
  request.handoff->first_token = 12;
  Open(1, std::move(request));
  FinishStep();
  EXPECT_TRUE(transport_.pushed.empty());
  FinishStep();
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 12, 4), std::tuple(1, 12, 4)));
}

TEST_F(PrefillNodeTest, TellsTheFirstTokenAndFinishesTheTransferWithTheDigests) {
  PrefillRequest request = Request(1, 8);
  const std::vector<int32_t> tokens = request.tokens;
  Open(1, std::move(request));
  FinishStep();
  const auto prefilled = outbox_.Events<PrefilledEvent>(1);
  ASSERT_EQ(prefilled.size(), 1u);
  EXPECT_EQ(prefilled[0].first->token, 55);
  EXPECT_EQ(prefilled[0].first->position, 8);
  ASSERT_EQ(transport_.finished.size(), 1u);
  EXPECT_EQ(transport_.finished[0].ticket, (TicketId{9, 1}));
  EXPECT_EQ(transport_.finished[0].first.token, 55);
  EXPECT_EQ(transport_.finished[0].digests, (HandoffDigests{.layout = LayoutDigest(model_.layout),
                                                            .model = 42,
                                                            .tokens = TokensDigest(tokens)}));
  EXPECT_EQ(outbox_.Closed(1), std::nullopt);  // Until the decode worker has verified.
}

TEST_F(PrefillNodeTest, AFirstTokenThatIsTheLastIsHandedOffWithItsReason) {
  PrefillRequest request = Request(1, 8);
  request.sampling.max_tokens = 1;
  Open(1, std::move(request));
  FinishStep();
  EXPECT_EQ(transport_.finished.at(0).first.finish, FinishReason::kLength);
  EXPECT_TRUE(transport_.aborted.empty());
}

TEST_F(PrefillNodeTest, WithoutAHandoffItEndsWithTheFirstToken) {
  Open(1, Request(1, 8, /*handoff=*/false));
  FinishStep();
  EXPECT_EQ(outbox_.Events<PrefilledEvent>(1).size(), 1u);
  EXPECT_EQ(outbox_.Closed(1), Code::kOk);
  EXPECT_TRUE(node_.idle());
  EXPECT_EQ(pool_.counts(), (BlockCounts{.free = 10, .cached = 2}));
  EXPECT_TRUE(transport_.started.empty());
}

TEST_F(PrefillNodeTest, AScoredPromptIsComputedInFullAndHasNoToken) {
  Open(1, Request(1, 10, /*handoff=*/false));
  FinishStep();
  FinishStep();
  PrefillRequest request = Request(1, 10, /*handoff=*/false);
  request.attempt = 2;
  request.score_only = true;
  request.sampling.num_prompt_logprobs = 0;
  Open(2, std::move(request));
  EXPECT_EQ(runner_.plans.back()->rows[0].context_len, 0);  // Though it is cached.
  FinishStep();
  FinishStep();
  const auto prefilled = outbox_.Events<PrefilledEvent>(2);
  ASSERT_EQ(prefilled.size(), 1u);
  EXPECT_FALSE(prefilled[0].first.has_value());
  int32_t next = 1;
  for (const ScoresEvent& piece : outbox_.Events<ScoresEvent>(2)) {
    EXPECT_EQ(piece.attempt, 2u);
    for (const PromptLogprob& one : piece.logprobs) EXPECT_EQ(one.position, next++);
  }
  EXPECT_EQ(next, 10);
  EXPECT_EQ(outbox_.Closed(2), Code::kOk);
}

TEST_F(PrefillNodeTest, ScoresGoOutChunkByChunkBeforeThePromptIsPrefilled) {
  PrefillRequest request = Request(1, 20);
  request.sampling.num_prompt_logprobs = 0;
  Open(1, std::move(request));
  int32_t next = 1;
  for (const int32_t end : {8, 16, 19}) {
    EXPECT_TRUE(outbox_.Events<PrefilledEvent>(1).empty());
    FinishStep();
    const auto pieces = outbox_.Events<ScoresEvent>(1);
    ASSERT_FALSE(pieces.empty());
    for (const PromptLogprob& one : pieces.back().logprobs) EXPECT_EQ(one.position, next++);
    EXPECT_EQ(next, end + 1);
  }
  EXPECT_EQ(outbox_.Events<ScoresEvent>(1).size(), 3u);
  EXPECT_TRUE(std::holds_alternative<PrefilledEvent>(outbox_.calls[1].events.back()));
}

TEST_F(PrefillNodeTest, ScoresWithManyAlternativesAreCutIntoPieces) {
  PrefillRequest request = Request(1, 8);
  request.sampling.num_prompt_logprobs = 4096;
  Open(1, std::move(request));
  LayersDone();
  StepDone done = DoneWith(*runner_.plans.back(), 55);
  // 7 x 1,201: three fit into a piece.
  for (PromptLogprob& one : done.rows[0].prompt_logprobs) one.top.resize(1200);
  done.rows[0].prompt_logprobs[6].top.resize(kPieceScores);  // And one that is more than a piece.
  Handle(std::move(done));
  std::vector<int32_t> sizes;
  int32_t next = 1;
  for (const ScoresEvent& piece : outbox_.Events<ScoresEvent>(1)) {
    sizes.push_back(static_cast<int32_t>(piece.logprobs.size()));
    int32_t scores = 0;
    for (const PromptLogprob& one : piece.logprobs) {
      EXPECT_EQ(one.position, next++);
      scores += NumScores(one);
    }
    EXPECT_LE(scores, kPieceScores + 1);
  }
  EXPECT_EQ(sizes, (std::vector<int32_t>{3, 3, 1}));
}

TEST_F(PrefillNodeTest, ACallThatHasEndedSendsNoScores) {
  PrefillRequest request = Request(1, 20, /*handoff=*/false);
  request.sampling.num_prompt_logprobs = 0;
  Open(1, std::move(request));
  FinishStep();
  Handle(CallBroken{.call = 1});
  FinishStep();
  EXPECT_EQ(outbox_.Events<ScoresEvent>(1).size(), 1u);
}

TEST_F(PrefillNodeTest, ACancelDuringAStepHoldsTheBlocksUntilStepAndTransferHaveEnded) {
  for (const bool step_first : {true, false}) {
    const uint64_t id = step_first ? 1 : 2;
    Open(id, Request(id, 8));
    Handle(CallBroken{id});
    EXPECT_EQ(transport_.aborted.back(), (TicketId{9, id}));
    EXPECT_EQ(pool_.counts().draining, 2);
    const size_t pushes = transport_.pushed.size();
    step_first ? FinishStep() : TransferEnds(id, absl::CancelledError(""));
    EXPECT_EQ(pool_.counts().draining, 2);
    EXPECT_FALSE(node_.idle());
    step_first ? TransferEnds(id, absl::CancelledError("")) : FinishStep();
    EXPECT_EQ(pool_.num_available(), 12);
    EXPECT_TRUE(node_.idle());
    EXPECT_EQ(transport_.pushed.size(), pushes);
    EXPECT_TRUE(outbox_.calls[id].events.empty());
    EXPECT_EQ(outbox_.Closed(id), std::nullopt);
  }
}

TEST_F(PrefillNodeTest, ADeadlineDuringAStepClosesTheCallAtOnceAndKeepsTheBlocks) {
  Open(1, Request(1, 8));
  now_ += seconds(100);
  node_.Step(now_);
  EXPECT_EQ(outbox_.Closed(1), Code::kDeadlineExceeded);
  EXPECT_EQ(pool_.counts().draining, 2);
  EXPECT_EQ(node_.NextDeadline(), now_ + LayerProgress::kPulse);
  FinishStep();
  EXPECT_EQ(node_.NextDeadline(), kNever);
  TransferEnds(1, absl::CancelledError(""));
  EXPECT_TRUE(node_.idle());
}

// ---- Progress ----------------------------------------------------------------------------------

TEST_F(PrefillNodeTest, TimeInWhichItStoodStillIsNoLayersTime) {
  Open(1, Request(1, 40));
  FinishStep();  // Cold.
  for (int step = 0; step < 2; ++step) {
    now_ += milliseconds(60);
    node_.Step(now_);
    EXPECT_EQ(node_.NextDeadline(), now_ + LayerProgress::kPulse);
    now_ += seconds(8);
    FinishStep();
  }
  EXPECT_EQ(node_.Status().longest_layer, milliseconds(60) + LayerProgress::kPulse);
  EXPECT_EQ(node_.Status().progress, 9u);
}

TEST_F(PrefillNodeTest, AFailedStepEndsItsCallsAndSealsNothing) {
  Open(1, Request(1, 4));
  Open(2, Request(2, 4, /*handoff=*/false));
  Handle(StepDone{.step = runner_.plans[0]->step, .status = absl::InternalError("broken")});
  EXPECT_EQ(outbox_.Closed(1), Code::kInternal);
  EXPECT_EQ(transport_.aborted.size(), 1u);
  EXPECT_EQ(pool_.counts().draining, 1);
  TransferEnds(1, absl::CancelledError(""));
  EXPECT_EQ(pool_.counts().cached, 0);
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);  // Its step came after.
  FinishStep();
  EXPECT_EQ(outbox_.Closed(2), Code::kOk);
  EXPECT_TRUE(node_.idle());
}

// ---- SENDING -----------------------------------------------------------------------------------

TEST_F(PrefillNodeTest, ClosesOkWhenTheDecodeWorkerHasVerified) {
  Open(1, Request(1, 8));
  FinishStep();
  EXPECT_EQ(pool_.num_available(), 10);
  TransferEnds(1);
  EXPECT_EQ(outbox_.Closed(1), Code::kOk);
  EXPECT_EQ(pool_.counts(), (BlockCounts{.free = 10, .cached = 2}));
  EXPECT_TRUE(node_.idle());
}

TEST_F(PrefillNodeTest, ACancelWhileSendingHoldsTheBlocksUntilTheTransferHasEnded) {
  Open(1, Request(1, 8));
  FinishStep();
  Handle(CallBroken{1});
  EXPECT_EQ(transport_.aborted.size(), 1u);
  EXPECT_EQ(pool_.counts().draining, 2);
  TransferEnds(1);
  EXPECT_EQ(outbox_.Closed(1), std::nullopt);
  EXPECT_EQ(pool_.num_available(), 12);
  EXPECT_TRUE(node_.idle());
}

TEST_F(PrefillNodeTest, ADeadlineWhileSendingAbortsTheTransfer) {
  Open(1, Request(1, 8));
  FinishStep();
  now_ += seconds(100);
  node_.Step(now_);
  EXPECT_EQ(outbox_.Closed(1), Code::kDeadlineExceeded);
  EXPECT_EQ(transport_.aborted.size(), 1u);
  TransferEnds(1, absl::CancelledError(""));
  EXPECT_TRUE(node_.idle());
}

TEST_F(PrefillNodeTest, RowsOfLogitsAreProgressAndPushNothing) {
  Open(1, Request(1, 10));
  const uint64_t step = runner_.plans[0]->step;
  for (const int32_t layer : {0, 1}) Handle(LayerDone{.step = step, .layer = layer});
  const auto pushed = Pushed();
  Handle(RowsDone{.step = step, .rows = 32});
  EXPECT_EQ(node_.Status().progress, 3u);
  EXPECT_EQ(Pushed(), pushed);
  Handle(RowsDone{.step = step + 1, .rows = 32});
  EXPECT_EQ(node_.Status().progress, 3u);
  EXPECT_EQ(node_.counters().stale_mail, 1);
}

// ---- Late and foreign mail ---------------------------------------------------------------------

TEST_F(PrefillNodeTest, LateMailIsACountedNoOp) {
  Open(1, Request(1, 8));
  FinishStep();
  TransferEnds(1);
  Handle(CallBroken{1});
  TransferEnds(1);
  Handle(LayerDone{.step = 1, .layer = 0});
  EXPECT_EQ(node_.counters().stale_mail, 3);
  Handle(StepDone{.step = 1});
  EXPECT_TRUE(node_.idle());
}

TEST_F(PrefillNodeTest, ASecondCancelOfAnEndingCallIsStale) {
  Open(1, Request(1, 8));
  Handle(CallBroken{1});
  Handle(CallBroken{1});
  EXPECT_EQ(node_.counters().stale_mail, 1);
  EXPECT_EQ(transport_.aborted.size(), 1u);
  FinishStep();
  TransferEnds(1, absl::CancelledError(""));
}

TEST_F(PrefillNodeTest, MailForOthersIsStale) {
  Open(1, Request(1, 8));
  Handle(CallBroken{5});
  Handle(TransferEvent{.kind = TransferEvent::Kind::kEnded, .ticket = {9, 1}, .receiver = true});
  EXPECT_EQ(node_.counters().stale_mail, 2);
  FinishStep();
  TransferEnds(1);
  EXPECT_EQ(outbox_.Closed(1), Code::kOk);
}

TEST_F(PrefillNodeTest, AnEndedAttemptMayComeAgain) {
  Open(1, Request(1, 8));
  Handle(CallBroken{1});
  FinishStep();
  TransferEnds(1, absl::CancelledError(""));
  Open(2, Request(1, 8));
  FinishStep();
  TransferEnds(1);
  EXPECT_EQ(outbox_.Closed(2), Code::kOk);
}

TEST_F(PrefillNodeTest, StatusTellsLoadAndProgress) {
  Open(1, Request(1, 40));
  Open(2, Request(2, 40));
  const WorkerStatus status = node_.Status();
  EXPECT_EQ(status.incarnation, 66u);
  EXPECT_EQ(status.running, 1);
  EXPECT_EQ(status.waiting, 1);
  EXPECT_EQ(status.queued_tokens, 80);
  EXPECT_EQ(status.blocks.filling, 10);
  EXPECT_TRUE(status.computing);
  FinishStep();
  EXPECT_EQ(node_.Status().progress, 3u);  // Two layers and the end of the step.
  EXPECT_EQ(node_.Status().queued_tokens, 72);
  for (CallId call : {1, 2}) Handle(CallBroken{call});
  TransferEnds(1);
  FinishStep();
}

}  // namespace
}  // namespace baton
