#include "common/base/digest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/prefill_worker/prefill_node_harness.h"

namespace baton {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using Code = absl::StatusCode;

class SendTest : public PrefillNodeHarness {
 protected:
  void Send(uint64_t id, Attempt attempt, uint64_t ticket, int32_t first_token = 0) {
    Handle(SendAsked{{.sequence = {1, id},
                      .attempt = attempt,
                      .handoff = {.ticket = {9, ticket},
                                  .ranks = {{"d:2", {0, 4}}},
                                  .pair_key = {8},
                                  .decode = 78,
                                  .first_token = first_token}}});
  }
  // Sequence 1 of 8 tokens is computed and its handoff has failed.
  void ToKept() {
    Open(1, Request(1, 8));
    FinishStep();
    TransferEnds(1, absl::DataLossError("checksum"));
  }
};

TEST_F(SendTest, AFailedHandoffKeepsTheKvAndSaysSo) {
  ToKept();
  EXPECT_EQ(outbox_.Closed(1), std::nullopt);
  const auto told = outbox_.Events<HandoffFailedEvent>(1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].attempt, 1u);
  EXPECT_EQ(told[0].reason, "checksum");
  EXPECT_EQ(pool_.num_available(), 10);
  EXPECT_EQ(node_.counters().handoffs_failed, 1);
}

TEST_F(SendTest, ATargetThatWantsNothingOrLessIsAFailedHandoffAndTheKvIsKept) {
  ToKept();
  Attempt attempt = 1;
  for (int32_t first_token : {-1, 8, 9, INT32_MAX}) {
    Send(1, ++attempt, 50, first_token);
    const HandoffFailedEvent told = outbox_.Events<HandoffFailedEvent>(1).back();
    EXPECT_EQ(told.attempt, attempt) << first_token;
    EXPECT_EQ(told.reason.find("handoff.first_token is"), 0u) << told.reason;
  }
  EXPECT_EQ(transport_.started.size(), 1u);
  Send(1, ++attempt, 50, 7);
  EXPECT_EQ(transport_.started.size(), 2u);
}

TEST_F(SendTest, SendsKeptKvWithoutComputingItAgain) {
  ToKept();
  transport_.pushed.clear();
  Send(1, 2, 50, 3);
  EXPECT_EQ(runner_.plans.size(), 1u);
  ASSERT_EQ(transport_.started.size(), 2u);
  const StartArgs& start = transport_.started[1];
  EXPECT_EQ(start.ticket, (TicketId{9, 50}));
  EXPECT_EQ(start.receivers, (std::vector<DataRank>{{"d:2", {0, 4}}}));
  EXPECT_EQ(start.receiver, 78u);
  EXPECT_EQ(start.blocks, transport_.started[0].blocks);
  EXPECT_EQ(start.first_token, 3);
  EXPECT_EQ(start.num_tokens, 8);
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 3, 5), std::tuple(1, 3, 5)));
  ASSERT_EQ(transport_.finished.size(), 2u);
  EXPECT_EQ(transport_.finished[1].ticket, (TicketId{9, 50}));
  EXPECT_EQ(transport_.finished[1].first.token, 55);
  EXPECT_EQ(transport_.finished[1].digests, transport_.finished[0].digests);
  TransferEnds(50);
  EXPECT_EQ(outbox_.Closed(1), Code::kOk);
  EXPECT_TRUE(node_.idle());
}

TEST_F(SendTest, WhoEndsDoesNotTakeATicketAlongThatIsAnothersByThen) {
  ToKept();
  PrefillRequest request = Request(2, 8);
  request.handoff->ticket = {9, 1};
  Open(2, std::move(request));
  ASSERT_EQ(transport_.started.size(), 2u);
  Handle(CallBroken{1});
  FinishStep();
  TransferEnds(1);
  EXPECT_EQ(outbox_.Closed(2), Code::kOk);
}

TEST_F(SendTest, ATargetThatNeverWasSentToIsForgottenWithTheNext) {
  Open(2, Request(2, 40));
  Open(1, Request(1, 16));
  ASSERT_EQ(node_.Status().waiting, 1);
  Send(1, 2, 50);
  PrefillRequest request = Request(3, 4);
  request.handoff->ticket = {9, 1};
  Open(3, std::move(request));
  EXPECT_EQ(outbox_.Closed(3), std::nullopt);
}

TEST_F(SendTest, KeptKvThatNobodyAsksForIsGivenUp) {
  ToKept();
  EXPECT_EQ(node_.NextDeadline(), now_ + seconds(10));
  now_ += seconds(10);
  node_.Step(now_);
  EXPECT_EQ(outbox_.Closed(1), Code::kAborted);
  EXPECT_EQ(node_.counters().kept_expired, 1);
  EXPECT_TRUE(node_.idle());
  EXPECT_EQ(node_.NextDeadline(), kNever);
}

TEST_F(SendTest, CallsOffTheTransferThatRunsAndWaitsForItsEnd) {
  Open(1, Request(1, 8));
  FinishStep();
  Send(1, 2, 50);
  EXPECT_THAT(transport_.aborted, ElementsAre(TicketId{9, 1}));
  EXPECT_EQ(transport_.started.size(), 1u);
  TransferEnds(1, absl::CancelledError("aborted"));
  EXPECT_EQ(transport_.started.size(), 2u);
  EXPECT_THAT(outbox_.Events<HandoffFailedEvent>(1), IsEmpty());
  TransferEnds(50);
  EXPECT_EQ(outbox_.Closed(1), Code::kOk);
}

TEST_F(SendTest, ATransferThatDoesNotEndInTimeEndsTheCallAndKeepsTheBlocks) {
  Open(1, Request(1, 8));
  FinishStep();
  Send(1, 2, 50);
  now_ += seconds(2);
  node_.Step(now_);
  EXPECT_EQ(outbox_.Closed(1), Code::kAborted);
  EXPECT_EQ(pool_.counts().draining, 2);
  TransferEnds(1, absl::CancelledError(""));
  EXPECT_TRUE(node_.idle());
}

TEST_F(SendTest, ATransferThatWasVerifiedMeanwhileDoesNotEndTheCall) {
  Open(1, Request(1, 8));
  FinishStep();
  Send(1, 2, 50);
  TransferEnds(1);  // The lost decode worker had it.
  EXPECT_EQ(outbox_.Closed(1), std::nullopt);
  EXPECT_EQ(transport_.started.size(), 2u);
}

TEST_F(SendTest, WhileItComputesTheNewTargetWaitsForTheWholePrompt) {
  Open(1, Request(1, 16));
  transport_.pushed.clear();
  Send(1, 2, 50);
  TransferEnds(1, absl::CancelledError("aborted"));
  FinishStep();
  EXPECT_THAT(transport_.pushed, IsEmpty());
  EXPECT_EQ(transport_.started.size(), 1u);
  FinishStep();
  EXPECT_EQ(transport_.started.size(), 2u);
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 0, 16), std::tuple(1, 0, 16)));
  EXPECT_EQ(transport_.finished.size(), 1u);
}

TEST_F(SendTest, AFailedTransferDoesNotStopTheComputation) {
  Open(1, Request(1, 16));
  TransferEnds(1, absl::UnavailableError("connection lost"));
  EXPECT_EQ(outbox_.Events<HandoffFailedEvent>(1).size(), 1u);
  FinishStep();
  EXPECT_THAT(transport_.pushed, IsEmpty());
  FinishStep();
  EXPECT_EQ(outbox_.Events<PrefilledEvent>(1).size(), 1u);
  EXPECT_THAT(transport_.finished, IsEmpty());
  Send(1, 2, 50);
  EXPECT_EQ(transport_.finished.size(), 1u);
}

TEST_F(SendTest, BeforeItsTurnTheTargetIsReplaced) {
  Open(1, Request(1, 40));
  Open(2, Request(2, 40));  // Waits for blocks.
  Send(2, 2, 50);
  Handle(CallBroken{1});
  TransferEnds(1, absl::CancelledError(""));
  FinishStep();
  EXPECT_EQ(transport_.started.size(), 1u);
  for (int i = 0; i < 5; ++i) FinishStep();
  ASSERT_EQ(transport_.started.size(), 2u);
  EXPECT_EQ(transport_.started[1].ticket, (TicketId{9, 50}));
}

TEST_F(SendTest, ACancelOfKeptKvFreesItAtOnce) {
  ToKept();
  Handle(CallBroken{1});
  EXPECT_EQ(pool_.num_available(), 12);
  EXPECT_TRUE(node_.idle());
}

TEST_F(SendTest, OldRepeatedAndUnknownOnesAreCountedNoOps) {
  ToKept();
  const int64_t before = node_.counters().stale_mail;
  Send(1, 1, 50);
  Send(9, 2, 50);
  EXPECT_EQ(node_.counters().stale_mail - before, 2);
  Send(1, 2, 50);
  Send(1, 2, 51);
  EXPECT_EQ(node_.counters().stale_mail - before, 3);
  EXPECT_EQ(transport_.started.size(), 2u);
  EXPECT_THAT(transport_.aborted, IsEmpty());
}

TEST_F(SendTest, ATicketInUseIsAFailedHandoffAndTheRunningOneGoesOn) {
  ToKept();
  Send(1, 2, 50);
  Send(1, 3, 50);
  const HandoffFailedEvent told = outbox_.Events<HandoffFailedEvent>(1).back();
  EXPECT_EQ(told.attempt, 3u);
  EXPECT_EQ(told.reason, "handoff.ticket is in use");
  EXPECT_EQ(transport_.started.size(), 2u);
  EXPECT_THAT(transport_.aborted, IsEmpty());
}

TEST_F(SendTest, AnAuditNamesWhatEachCallHolds) {
  ToKept();
  transport_.legs = {{.ticket = {9, 8}, .rank = 1}};
  WorkerAudit audit;
  Handle(WorkerAuditAsked{[&](WorkerAudit told) { audit = std::move(told); }});
  ASSERT_EQ(audit.calls.size(), 1u);
  EXPECT_EQ(audit.calls[0].state, "KEPT");
  EXPECT_EQ(audit.calls[0].num_blocks, 2);
  EXPECT_EQ(audit.num_unowned, 0);
  EXPECT_EQ(audit.unowned_leg_ranks, std::vector<int32_t>{1});
}

}  // namespace
}  // namespace baton
