#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/decode_worker/decode_node_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using Code = absl::StatusCode;

class RebindTest : public DecodeNodeHarness {
 protected:
  void Rebind(uint64_t id, Attempt attempt, Incarnation prefill) {
    Handle(RebindAsked{{.sequence = {1, id}, .attempt = attempt, .prefill = prefill}});
  }
  std::vector<uint32_t> Epochs(size_t expect) {
    std::vector<uint32_t> all;
    for (const BlockRef& ref : transport_.expected[expect].blocks) all.push_back(ref.epoch);
    return all;
  }
  std::vector<BlockId> Blocks(size_t expect) {
    std::vector<BlockId> all;
    for (const BlockRef& ref : transport_.expected[expect].blocks) all.push_back(ref.block);
    return all;
  }
};

TEST_F(RebindTest, AFailedTransferKeepsTheReservationAndSaysSo) {
  Open(1, Request(1, 10));
  Begin(1);
  EndTransfer(1, absl::DataLossError("checksum"));
  EXPECT_EQ(outbox_.Closed(1), std::nullopt);
  const auto told = outbox_.Events<HandoffFailedEvent>(1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].attempt, 1u);
  EXPECT_THAT(told[0].reason, HasSubstr("checksum"));
  EXPECT_EQ(pool_.counts().free, 7);
  EXPECT_EQ(node_.counters().handoffs_failed, 1);
  EXPECT_TRUE(runner_.plans.empty());
}

TEST_F(RebindTest, AReservationThatNobodyBindsAgainIsGivenUp) {
  Open(1, Request(1, 10));
  EndTransfer(1, absl::UnavailableError("connection lost"));
  EXPECT_EQ(node_.NextDeadline(), now_ + seconds(5));
  now_ += seconds(5);
  node_.Step(now_);
  EXPECT_EQ(outbox_.Closed(1), Code::kAborted);
  EXPECT_EQ(node_.counters().unbound_expired, 1);
  EXPECT_EQ(pool_.counts().free, 10);
  EXPECT_TRUE(node_.idle());
}

TEST_F(RebindTest, APromptThatItComputesItselfIsNotScoredAgain) {
  DecodeRequest request = Request(1, 10);
  request.sampling.num_prompt_logprobs = 5;
  Open(1, std::move(request));
  EndTransfer(1, absl::UnavailableError("connection lost"));
  Rebind(1, 2, 0);
  ASSERT_FALSE(runner_.plans.empty());
  EXPECT_EQ(runner_.plans.back()->rows[0].sampling->params.num_prompt_logprobs, -1);
}

TEST_F(RebindTest, GivesANewTicketForTheSameBlocksUnderNewEpochs) {
  Open(1, Request(1, 10));
  Begin(1);
  EndTransfer(1, absl::UnavailableError("connection lost"));
  const TicketId old = TicketOf(1);
  Rebind(1, 2, 67);
  ASSERT_EQ(transport_.expected.size(), 2u);
  EXPECT_EQ(Blocks(1), Blocks(0));
  for (size_t i = 0; i < 3; ++i) EXPECT_GT(Epochs(1)[i], Epochs(0)[i]);
  EXPECT_EQ(transport_.expected[1].sender, 67u);
  const ReservedEvent reserved = outbox_.Events<ReservedEvent>(1).back();
  EXPECT_EQ(reserved.attempt, 2u);
  EXPECT_NE(reserved.ticket, old);
  EXPECT_EQ(reserved.pair_key, PairKey{67});
  EXPECT_EQ(pool_.counts().reserved, 3);
  EXPECT_EQ(node_.NextDeadline(), now_ - seconds(0) + seconds(100));
  EndTransfer(1, absl::OkStatus(), {.position = 10, .token = 50});
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(10, 50)));
}

TEST_F(RebindTest, RevokesTheOldTicketAndWaitsForItsWriter) {
  Open(1, Request(1, 10));
  Begin(1);
  Rebind(1, 2, 67);
  EXPECT_THAT(transport_.aborted, ElementsAre(TicketOf(1)));
  EXPECT_EQ(transport_.expected.size(), 1u);  // Not while the old writer may write.
  EndTransfer(1, absl::CancelledError("aborted"));
  EXPECT_EQ(transport_.expected.size(), 2u);
  EXPECT_EQ(node_.counters().handoffs_failed, 0);
  EXPECT_TRUE(outbox_.Events<HandoffFailedEvent>(1).empty());
}

TEST_F(RebindTest, AWriterThatIsNotQuietInTimeEndsTheCallAndKeepsTheBlocks) {
  Open(1, Request(1, 10));
  Begin(1);
  Rebind(1, 2, 67);
  now_ += seconds(2);
  node_.Step(now_);
  EXPECT_EQ(outbox_.Closed(1), Code::kAborted);
  EXPECT_EQ(pool_.counts().draining, 3);
  EndTransfer(1, absl::CancelledError(""));
  EXPECT_EQ(pool_.counts().free, 10);
}

TEST_F(RebindTest, KvThatWasVerifiedIsSaidSoAndDecodingGoesOn) {
  Run(1, 4);
  Rebind(1, 2, 67);
  EXPECT_EQ(transport_.expected.size(), 1u);
  const auto events = outbox_.Events<TokensEvent>(1);
  EXPECT_EQ(events.back().attempt, 2u);
  EXPECT_TRUE(events.back().outputs.empty());
  FinishStep();
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(4, 50), Pair(5, 55)));
}

TEST_F(RebindTest, KvThatIsVerifiedWhileTheOldTicketIsRevokedCounts) {
  Open(1, Request(1, 4));
  Begin(1);
  Rebind(1, 2, 67);
  EndTransfer(1, absl::OkStatus(), {.position = 4, .token = 50});
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(4, 50)));
  EXPECT_EQ(transport_.expected.size(), 1u);
  now_ += seconds(3);  // The wait for the writer is over.
  node_.Step(now_);
  EXPECT_EQ(outbox_.Closed(1), std::nullopt);
}

TEST_F(RebindTest, ToNobodyMeansToComputeThePromptHere) {
  Run(1, 9, 2);
  FinishStep();  // Two blocks of sequence 1 are cached now.
  DecodeRequest request = Request(1, 10);
  request.sequence = {1, 2};
  Open(2, std::move(request));
  EndTransfer(2, absl::UnavailableError("connection lost"));
  Rebind(2, 2, 0);
  EXPECT_EQ(node_.counters().computed_here, 1);
  ASSERT_EQ(runner_.plans.size(), 2u);
  const StepRow& row = runner_.plans.back()->rows.at(0);
  EXPECT_EQ(row.context_len, 8);  // The pinned prefix.
  EXPECT_EQ(outbox_.Events<TokensEvent>(2).at(0).cached_tokens, 8);
  EXPECT_EQ(row.tokens.size(), 2u);
  EXPECT_TRUE(row.sample);
  FinishStep();
  EXPECT_THAT(Tokens(2), ElementsAre(Pair(10, 55)));
}

TEST_F(RebindTest, OldRepeatedAndUnknownOnesAreCountedNoOps) {
  Open(1, Request(1, 10));
  const int64_t before = node_.counters().stale_mail;
  Rebind(1, 1, 67);
  Rebind(9, 2, 67);
  EXPECT_EQ(node_.counters().stale_mail - before, 2);
  EXPECT_TRUE(transport_.aborted.empty());
  Rebind(1, 3, 67);
  EndTransfer(1, absl::CancelledError(""));
  Rebind(1, 3, 68);
  Rebind(1, 2, 68);
  EXPECT_EQ(node_.counters().stale_mail - before, 4);
  EXPECT_EQ(transport_.expected.size(), 2u);
}

TEST_F(RebindTest, IsAboutTheLastAttemptBeforeIt) {
  Open(1, Request(1, 4));
  DecodeRequest again = Request(1, 4);
  again.attempt = 2;
  Open(2, std::move(again));  // The cancel of call 1 is still on its way.
  const TicketId second = TicketOf(2);
  Rebind(1, 3, 67);
  EXPECT_THAT(transport_.aborted, ElementsAre(second));
  Rebind(1, 3, 67);  // Repeated.
  EXPECT_THAT(transport_.aborted, ElementsAre(second));
}

TEST_F(RebindTest, ASecondOneTakesThePlaceOfTheFirstThatWaits) {
  Open(1, Request(1, 10));
  Begin(1);
  Rebind(1, 2, 67);
  Rebind(1, 3, 68);
  EndTransfer(1, absl::CancelledError(""));
  ASSERT_EQ(transport_.expected.size(), 2u);
  EXPECT_EQ(transport_.expected[1].sender, 68u);
  EXPECT_EQ(outbox_.Events<ReservedEvent>(1).back().attempt, 3u);
}

TEST_F(RebindTest, AReservationWithoutATransferIsRevokedAndTheNeedySequenceGoesOnAtOnce) {
  Run(1, 4, 30);
  Open(2, Request(2, 20));
  EndTransfer(2, absl::UnavailableError("connection lost"));
  for (int i = 0; i < 20; ++i) {
    const size_t before = runner_.plans.size();
    FinishStep();
    ASSERT_EQ(runner_.plans.size(), before + 1) << "nobody starts another step";
  }
  EXPECT_EQ(outbox_.Closed(2), Code::kResourceExhausted);
  EXPECT_EQ(node_.counters().revoked, 1);
}

TEST_F(RebindTest, AnAuditNamesWhatEachCallHolds) {
  Open(1, Request(1, 10));
  now_ += milliseconds(1500);
  transport_.legs = {{.ticket = transport_.expected.at(0).ticket, .rank = 2}};
  WorkerAudit audit;
  Handle(WorkerAuditAsked{[&](WorkerAudit told) { audit = std::move(told); }});
  EXPECT_EQ(audit.incarnation, 77u);
  EXPECT_EQ(audit.num_unowned, 0);
  ASSERT_EQ(audit.calls.size(), 1u);
  EXPECT_EQ(audit.calls[0].sequence, (SequenceId{1, 1}));
  EXPECT_EQ(audit.calls[0].state, "RESERVED");
  EXPECT_EQ(audit.calls[0].num_blocks, 3);
  EXPECT_TRUE(audit.calls[0].transfer_open);
  EXPECT_EQ(audit.calls[0].leg_ranks, std::vector<int32_t>{2});
  EXPECT_EQ(audit.calls[0].age, milliseconds(1500));
  BlockTable nobodys;
  ASSERT_TRUE(pool_.Grow(nobodys, 2));
  Handle(WorkerAuditAsked{[&](WorkerAudit told) { audit = std::move(told); }});
  EXPECT_EQ(audit.num_unowned, 2);
}

}  // namespace
}  // namespace baton
