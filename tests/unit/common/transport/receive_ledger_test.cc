#include "common/transport/receive_ledger.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr ReceiveLedger::Sender kFrom{5, {}};
constexpr TicketId kOpen{1, 2};

class ReceiveLedgerTest : public testing::Test {
 protected:
  ReceiveLedgerTest() : epochs_(4) {
    const KvLayout layout{.block_size = 8,
                          .groups = {{.num_layers = 1, .num_kv_heads = 2, .k_dim = 4, .v_dim = 4}}};
    cache_ = *KvCache::Create(layout, 4);
    TransportOptions options{.incarnation = 9, .cache = cache_.get(), .epochs = &epochs_};
    ledger_ = std::make_unique<ReceiveLedger>(
        options, &counters_, [this](TransferEvent event) { events_.push_back(std::move(event)); });
  }

  static ExpectArgs Args() {
    return {.ticket = kOpen,
            .sender = kFrom.incarnation,
            .blocks = {{3, 0}, {1, 0}},
            .first_token = 2,
            .num_tokens = 14,
            .digests = {1, 2, 3}};
  }

  static FrameHeader Data(KvPlane plane, int32_t first, int32_t count) {
    return {.type = FrameType::kData,
            .ticket = kOpen,
            .range = {0, plane, first, count, 0, 2},
            .payload_bytes = static_cast<uint32_t>(count) * 2 * 4 * 4};
  }

  AbortCode Refusal(const FrameHeader& header, const ReceiveLedger::Sender& sender = kFrom) {
    const auto admission = ledger_->Admit(header, sender);
    EXPECT_EQ(admission.kind, ReceiveLedger::Admission::Kind::kRefused);
    EXPECT_TRUE(admission.memory.empty());
    return admission.code;
  }

  void Accept(const FrameHeader& header) {
    ASSERT_EQ(ledger_->Admit(header, kFrom).kind, ReceiveLedger::Admission::Kind::kWrite);
    ledger_->Commit(header, kFrom);
  }

  BlockEpochs epochs_;
  std::unique_ptr<KvCache> cache_;
  CounterBoard counters_;
  std::vector<TransferEvent> events_;
  std::unique_ptr<ReceiveLedger> ledger_;
};

TEST_F(ReceiveLedgerTest, VerifiesWhenEveryPlaneAndTokenCameAndDigestsAgree) {
  ledger_->Expect(Args());
  Accept(Data(KvPlane::kK, 2, 12));
  Accept(Data(KvPlane::kV, 9, 5));
  Accept(Data(KvPlane::kV, 2, 7));
  const FinalBody body{
      .digests = {1, 2, 3}, .num_tokens = 14, .first = {.position = 14, .token = 3}};
  EXPECT_EQ(ledger_->Finish(kOpen, kFrom, body), AbortCode::kNone);
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_EQ(events_[0].kind, TransferEvent::Kind::kBegun);
  EXPECT_TRUE(events_[1].status.ok());
  EXPECT_EQ(events_[1].first, body.first);
  EXPECT_EQ(events_[1].bytes, 2 * 12 * 2 * 4 * 4);
  EXPECT_EQ(ledger_->Finish(kOpen, kFrom, body), AbortCode::kUnknownTicket);
  EXPECT_EQ(events_.size(), 2u);
}

TEST_F(ReceiveLedgerTest, OneMissingTokenIsIncomplete) {
  ledger_->Expect(Args());
  Accept(Data(KvPlane::kK, 2, 12));
  Accept(Data(KvPlane::kV, 2, 11));
  EXPECT_EQ(ledger_->Finish(kOpen, kFrom, {.digests = {1, 2, 3}, .num_tokens = 14}),
            AbortCode::kIncomplete);
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_FALSE(events_[1].status.ok());
}

TEST_F(ReceiveLedgerTest, AnyDifferentDigestFailsTheTicket) {
  for (HandoffDigests digests : {HandoffDigests{0, 2, 3}, {1, 0, 3}, {1, 2, 0}}) {
    ledger_->Expect(Args());
    Accept(Data(KvPlane::kK, 2, 12));
    Accept(Data(KvPlane::kV, 2, 12));
    EXPECT_EQ(ledger_->Finish(kOpen, kFrom, {.digests = digests, .num_tokens = 14}),
              AbortCode::kDigestMismatch);
    EXPECT_FALSE(events_.back().status.ok());
  }
}

TEST_F(ReceiveLedgerTest, RefusesAFrameOutsideTheTicketAndEndsIt) {
  std::vector<FrameHeader> outside{Data(KvPlane::kK, 1, 3), Data(KvPlane::kK, 13, 2)};
  outside.push_back(Data(KvPlane::kK, 2, 12));
  outside.back().range.layer = 1;
  outside.push_back(Data(KvPlane::kK, 2, 12));
  outside.back().range.first_head = 1;
  outside.push_back(Data(KvPlane::kK, 2, 12));
  outside.back().payload_bytes -= 1;
  outside.push_back(Data(KvPlane::kK, 2, 12));
  outside.back().range.num_tokens = INT32_MAX - 2;
  for (const FrameHeader& header : outside) {
    events_.clear();
    ledger_->Expect(Args());
    EXPECT_EQ(Refusal(header), AbortCode::kOutOfRange);
    ASSERT_EQ(events_.size(), 1u);
    EXPECT_EQ(events_[0].status.code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_EQ(counters_.Read().refused[static_cast<size_t>(AbortCode::kOutOfRange)],
            static_cast<int64_t>(outside.size()));
}

TEST_F(ReceiveLedgerTest, RefusesAStaleEpoch) {
  ledger_->Expect(Args());
  epochs_[1].store(1);
  EXPECT_EQ(ledger_->Admit(Data(KvPlane::kK, 2, 6), kFrom).kind,
            ReceiveLedger::Admission::Kind::kWrite);  // Block 3 alone.
  EXPECT_EQ(Refusal(Data(KvPlane::kK, 7, 2)), AbortCode::kStaleEpoch);
}

TEST_F(ReceiveLedgerTest, AnotherSenderIsRefusedAndTheTicketLivesOn) {
  ledger_->Expect(Args());
  EXPECT_EQ(Refusal(Data(KvPlane::kK, 2, 12), {6, {}}), AbortCode::kWrongSender);
  EXPECT_EQ(ledger_->Finish(kOpen, {6, {}}, {}), AbortCode::kWrongSender);
  EXPECT_FALSE(ledger_->Fail(kOpen, absl::AbortedError("x"), {6, {}}));
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(ledger_->SenderOf(kOpen), kFrom.incarnation);
}

TEST_F(ReceiveLedgerTest, UnknownAndEndedTicketsAreRefused) {
  EXPECT_EQ(Refusal(Data(KvPlane::kK, 2, 12)), AbortCode::kUnknownTicket);
  ledger_->Expect(Args());
  EXPECT_TRUE(ledger_->Fail(kOpen, absl::CancelledError("x")));
  EXPECT_EQ(Refusal(Data(KvPlane::kK, 2, 12)), AbortCode::kUnknownTicket);
  EXPECT_EQ(events_.size(), 1u);
}

TEST_F(ReceiveLedgerTest, ARangeAgainIsADuplicateAndPartOfItAnOverlap) {
  ledger_->Expect(Args());
  Accept(Data(KvPlane::kK, 2, 6));
  EXPECT_EQ(ledger_->Admit(Data(KvPlane::kK, 3, 4), kFrom).kind,
            ReceiveLedger::Admission::Kind::kDuplicate);
  EXPECT_EQ(counters_.Read().duplicate_ranges, 1);
  EXPECT_EQ(Refusal(Data(KvPlane::kK, 6, 4)), AbortCode::kOverlap);
}

TEST_F(ReceiveLedgerTest, ALostSenderEndsOnlyWhatHadBegun) {
  ledger_->Expect(Args());
  ExpectArgs other = Args();
  other.ticket = {7, 7};
  ledger_->Expect(other);
  Accept(Data(KvPlane::kK, 2, 6));
  ledger_->SenderLost(kFrom, absl::UnavailableError("gone"));
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_EQ(events_[1].ticket, kOpen);
  EXPECT_EQ(events_[1].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ledger_->SenderOf({7, 7}), kFrom.incarnation);
}

TEST_F(ReceiveLedgerTest, DoesNotLookAtBlocksBeforeTheFirstToken) {
  ExpectArgs args = Args();
  args.blocks[0] = {};
  args.first_token = 9;
  ledger_->Expect(args);
  EXPECT_TRUE(events_.empty());
  for (KvPlane plane : {KvPlane::kK, KvPlane::kV}) Accept(Data(plane, 9, 5));
  EXPECT_EQ(Refusal(Data(KvPlane::kK, 7, 2)), AbortCode::kOutOfRange);
}

TEST_F(ReceiveLedgerTest, ImpossibleArgumentsEndAtOnceWithAReason) {
  ExpectArgs args = Args();
  args.blocks[1].block = 4;
  ledger_->Expect(args);
  args = Args();
  args.num_tokens = 17;
  ledger_->Expect(args);
  ASSERT_EQ(events_.size(), 2u);
  for (const TransferEvent& event : events_) {
    EXPECT_EQ(event.status.code(), absl::StatusCode::kInvalidArgument);
  }
  const auto end_with_a_reason = [&](auto change) {
    ExpectArgs bad = Args();
    change(bad);
    events_.clear();
    ledger_->Expect(bad);
    ASSERT_EQ(events_.size(), 1u);
    EXPECT_EQ(events_[0].status.code(), absl::StatusCode::kInvalidArgument);
  };
  end_with_a_reason([](ExpectArgs& a) { a.ticket = {}; });
  end_with_a_reason([](ExpectArgs& a) { a.sender = 0; });
  end_with_a_reason([](ExpectArgs& a) { a.first_token = -1; });
  end_with_a_reason([](ExpectArgs& a) { a.first_token = a.num_tokens + 1; });
  end_with_a_reason([](ExpectArgs& a) { a.blocks[0].block = -1; });
  events_.clear();
  ledger_->Expect(Args());
  ledger_->Expect(Args());
  EXPECT_EQ(counters_.Read().ignored_calls, 1);
  EXPECT_TRUE(events_.empty());
}

TEST_F(ReceiveLedgerTest, AcknowledgesWhatCameAgainButCountsItOnce) {
  ledger_->Expect(Args());
  Accept(Data(KvPlane::kK, 2, 6));
  const int64_t bytes = Data(KvPlane::kK, 2, 6).payload_bytes;
  EXPECT_EQ(ledger_->AcceptedBytes(kOpen, kFrom), bytes);
  EXPECT_EQ(ledger_->Admit(Data(KvPlane::kK, 2, 6), kFrom).kind,
            ReceiveLedger::Admission::Kind::kDuplicate);
  EXPECT_EQ(ledger_->AcceptedBytes(kOpen, kFrom), 2 * bytes);
  EXPECT_EQ(counters_.Read().frames_accepted, 1);
  EXPECT_EQ(counters_.Read().bytes_accepted, bytes);
  ledger_->Fail(kOpen, absl::CancelledError("x"));
  EXPECT_EQ(events_.back().bytes, bytes);
  EXPECT_EQ(ledger_->AcceptedBytes(kOpen, kFrom), 0);
}

// The sender counts what it has sent on the connection: more acknowledged than that ends it.
TEST_F(ReceiveLedgerTest, WhatCameBesideTheConnectionIsNotAcknowledgedOnIt) {
  ledger_->Expect(Args());
  FrameHeader beside = Data(KvPlane::kK, 2, 6);
  beside.type = FrameType::kCarried;
  Accept(beside);
  EXPECT_EQ(ledger_->AcceptedBytes(kOpen, kFrom), 0);
  EXPECT_EQ(ledger_->Admit(beside, kFrom).kind, ReceiveLedger::Admission::Kind::kDuplicate);
  EXPECT_EQ(ledger_->AcceptedBytes(kOpen, kFrom), 0);
  const FrameHeader on_it = Data(KvPlane::kK, 8, 6);
  Accept(on_it);
  EXPECT_EQ(ledger_->AcceptedBytes(kOpen, kFrom), on_it.payload_bytes);
  EXPECT_EQ(counters_.Read().nccl_bytes_accepted, beside.payload_bytes);
  ledger_->Fail(kOpen, absl::CancelledError("x"));
  EXPECT_EQ(events_.back().bytes, int64_t{beside.payload_bytes} + on_it.payload_bytes);
}

TEST_F(ReceiveLedgerTest, WhatIsCommittedAfterTheEndCountsForNothing) {
  ledger_->Expect(Args());
  ASSERT_EQ(ledger_->Admit(Data(KvPlane::kK, 2, 6), kFrom).kind,
            ReceiveLedger::Admission::Kind::kWrite);
  ledger_->Fail(kOpen, absl::CancelledError("x"));
  ledger_->Commit(Data(KvPlane::kK, 2, 6), kFrom);
  EXPECT_EQ(counters_.Read().frames_accepted, 0);
}

TEST_F(ReceiveLedgerTest, AFinalFrameOfAnotherLengthFailsTheTicketAndIsCounted) {
  ledger_->Expect(Args());
  Accept(Data(KvPlane::kK, 2, 12));
  Accept(Data(KvPlane::kV, 2, 12));
  EXPECT_EQ(ledger_->Finish(kOpen, kFrom, {.digests = {1, 2, 3}, .num_tokens = 13}),
            AbortCode::kDigestMismatch);
  EXPECT_FALSE(events_.back().status.ok());
  EXPECT_EQ(counters_.Read().refused[static_cast<size_t>(AbortCode::kDigestMismatch)], 1);
}

TEST_F(ReceiveLedgerTest, AnotherSendersLossEndsNothing) {
  ledger_->Expect(Args());
  Accept(Data(KvPlane::kK, 2, 6));
  ledger_->SenderLost({kFrom.incarnation + 1, {}}, absl::UnavailableError("gone"));
  EXPECT_EQ(ledger_->SenderOf(kOpen), kFrom.incarnation);
}

}  // namespace
}  // namespace baton
