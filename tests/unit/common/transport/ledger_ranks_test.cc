// The ledger of a rank into which several ranks of one process send.
#include <memory>
#include <vector>

#include "common/transport/receive_ledger.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using Verdict = ReceiveLedger::Admission::Kind;

constexpr TicketId kBoth{1, 8};
constexpr TicketId kLater{1, 16};

// The only rank of its process, with both heads; the sender's ranks 0 and 1 hold one each.
class LedgerRanksTest : public testing::Test {
 protected:
  LedgerRanksTest() : epochs_(4) {
    const KvLayout layout{.block_size = 8,
                          .groups = {{.num_layers = 1, .num_kv_heads = 2, .k_dim = 4, .v_dim = 0}}};
    cache_ = *KvCache::Create(layout, 4);
    TransportOptions options{.incarnation = 9, .cache = cache_.get(), .epochs = &epochs_};
    ledger_ = std::make_unique<ReceiveLedger>(
        options, &counters_, [this](TransferEvent event) { events_.push_back(std::move(event)); });
    Expect(kBoth);
  }

  void Expect(TicketId ticket) {
    ledger_->Expect({.ticket = ticket,
                     .sender = 5,
                     .blocks = {{3, 0}, {1, 0}},
                     .num_tokens = 12,
                     .digests = {1, 2, 3}});
  }
  static ReceiveLedger::Sender Rank(int32_t rank, int32_t size = 2) { return {5, {rank, size}}; }
  static FrameHeader Data(int32_t head, int32_t first = 0, int32_t count = 12) {
    return {.type = FrameType::kData,
            .ticket = kBoth,
            .range = {0, KvPlane::kK, first, count, head, 1},
            .payload_bytes = static_cast<uint32_t>(count) * 4 * 4};
  }
  void Accept(const FrameHeader& header, const ReceiveLedger::Sender& sender) {
    ASSERT_EQ(ledger_->Admit(header, sender).kind, Verdict::kWrite);
    ledger_->Commit(header, sender);
  }
  AbortCode Refusal(const FrameHeader& header, const ReceiveLedger::Sender& sender) {
    const auto admission = ledger_->Admit(header, sender);
    EXPECT_EQ(admission.kind, Verdict::kRefused);
    return admission.code;
  }
  AbortCode Finish(const ReceiveLedger::Sender& sender, int32_t token = 3) {
    return ledger_->Finish(kBoth, sender,
                           {.digests = {1, 2, 3},
                            .num_tokens = 12,
                            .first = {.position = 12, .token = token}});
  }
  bool IsOpen(TicketId ticket = kBoth) const { return ledger_->SenderOf(ticket) != 0; }

  BlockEpochs epochs_;
  std::unique_ptr<KvCache> cache_;
  CounterBoard counters_;
  std::vector<TransferEvent> events_;
  std::unique_ptr<ReceiveLedger> ledger_;
};

TEST_F(LedgerRanksTest, ATicketIsVerifiedWithTheLastFinalWhoseverItIs) {
  for (const int32_t last : {0, 1}) {
    events_.clear();
    Expect(kBoth);
    Accept(Data(1 - last), Rank(1 - last));
    EXPECT_EQ(Finish(Rank(1 - last)), AbortCode::kNone);
    ASSERT_TRUE(IsOpen());  // Incomplete, and not all have spoken.
    Accept(Data(last), Rank(last));
    ASSERT_TRUE(IsOpen());  // Complete, and not all have spoken.
    EXPECT_EQ(Finish(Rank(last)), AbortCode::kNone);
    ASSERT_EQ(events_.size(), 2u);
    EXPECT_EQ(events_[0].kind, TransferEvent::Kind::kBegun);
    EXPECT_TRUE(events_[1].status.ok());
    EXPECT_EQ(events_[1].first.token, 3);
    EXPECT_EQ(events_[1].bytes, 2 * 12 * 4 * 4);
    EXPECT_FALSE(IsOpen());
  }
}

TEST_F(LedgerRanksTest, WhatIsMissingWithTheLastFinalFailsTheTicket) {
  Accept(Data(0, 0, 11), Rank(0));
  EXPECT_EQ(Finish(Rank(0)), AbortCode::kNone);
  Accept(Data(1), Rank(1));
  EXPECT_EQ(Finish(Rank(1)), AbortCode::kIncomplete);
  EXPECT_FALSE(events_.back().status.ok());
  EXPECT_FALSE(IsOpen());
}

TEST_F(LedgerRanksTest, ARankSendsItsOwnHeadsOnly) {
  EXPECT_EQ(Refusal(Data(1), Rank(0)), AbortCode::kOutOfRange);
  EXPECT_FALSE(IsOpen());
  Expect(kBoth);
  FrameHeader both = Data(0);
  both.range.num_heads = 2;
  both.payload_bytes *= 2;
  EXPECT_EQ(Refusal(both, Rank(0)), AbortCode::kOutOfRange);
}

TEST_F(LedgerRanksTest, ARankWithNothingToSendIsNoSender) {
  // Of four ranks, 0 and 1 hold head 0, and it comes from 0.
  Accept(Data(0), Rank(0, 4));
  EXPECT_EQ(Refusal(Data(0), Rank(1, 4)), AbortCode::kWrongSender);
  EXPECT_EQ(Finish(Rank(1, 4)), AbortCode::kWrongSender);
  EXPECT_FALSE(ledger_->Fail(kBoth, absl::AbortedError("x"), Rank(1, 4)));
  ledger_->SenderLost(Rank(1, 4), absl::UnavailableError("gone"));
  Accept(Data(1), Rank(2, 4));
  EXPECT_EQ(Finish(Rank(0, 4)), AbortCode::kNone);
  EXPECT_EQ(Finish(Rank(2, 4)), AbortCode::kNone);
  EXPECT_TRUE(events_.back().status.ok());
}

TEST_F(LedgerRanksTest, AProcessHasOneNumberOfRanks) {
  EXPECT_EQ(Refusal(Data(0), Rank(0, 3)), AbortCode::kWrongSender);  // It cannot hold two heads.
  Accept(Data(0), Rank(0));
  EXPECT_EQ(Refusal(Data(1), Rank(0, 1)), AbortCode::kWrongSender);
  EXPECT_EQ(Finish(Rank(0, 1)), AbortCode::kWrongSender);
  EXPECT_TRUE(IsOpen());
}

TEST_F(LedgerRanksTest, NothingComesFromARankAfterItsFinal) {
  Accept(Data(0, 0, 6), Rank(0));
  EXPECT_EQ(Finish(Rank(0)), AbortCode::kNone);
  EXPECT_EQ(Refusal(Data(0, 6, 6), Rank(0)), AbortCode::kOverlap);
  EXPECT_FALSE(IsOpen());
  Expect(kBoth);
  EXPECT_EQ(Finish(Rank(0)), AbortCode::kNone);
  EXPECT_EQ(Finish(Rank(0)), AbortCode::kOverlap);
  EXPECT_FALSE(IsOpen());
}

TEST_F(LedgerRanksTest, AllRanksNameTheSameFirstToken) {
  Accept(Data(0), Rank(0));
  Accept(Data(1), Rank(1));
  EXPECT_EQ(Finish(Rank(0), 3), AbortCode::kNone);
  EXPECT_EQ(Finish(Rank(1), 4), AbortCode::kDigestMismatch);
  EXPECT_FALSE(events_.back().status.ok());
}

TEST_F(LedgerRanksTest, ARankHearsOfItsOwnBytes) {
  Accept(Data(0), Rank(0));
  Accept(Data(1, 0, 5), Rank(1));
  EXPECT_EQ(ledger_->Admit(Data(1, 0, 5), Rank(1)).kind, Verdict::kDuplicate);
  EXPECT_EQ(ledger_->AcceptedBytes(kBoth, Rank(0)), 12 * 4 * 4);
  EXPECT_EQ(ledger_->AcceptedBytes(kBoth, Rank(1)), 2 * 5 * 4 * 4);
}

TEST_F(LedgerRanksTest, ALostRankFailsWhatItHasSentOf) {
  Expect(kLater);
  Accept(Data(0), Rank(0));
  ledger_->SenderLost(Rank(1), absl::UnavailableError("gone"));
  EXPECT_TRUE(IsOpen());  // It comes again.
  EXPECT_EQ(Finish(Rank(1)), AbortCode::kNone);
  ledger_->SenderLost(Rank(1), absl::UnavailableError("gone"));
  EXPECT_FALSE(IsOpen());  // It will not hear the verdict.
  EXPECT_TRUE(IsOpen(kLater));
  EXPECT_TRUE(absl::IsUnavailable(events_.back().status));
}

TEST_F(LedgerRanksTest, AnyRankGivesTheTicketUp) {
  Accept(Data(0), Rank(0));
  EXPECT_TRUE(ledger_->Fail(kBoth, absl::AbortedError("x"), Rank(1)));
  EXPECT_FALSE(IsOpen());
}

}  // namespace
}  // namespace baton
