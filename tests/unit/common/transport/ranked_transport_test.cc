#include "common/transport/ranked_transport.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/transport/wire.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr TicketId kHandoff{3, 0x40};

// A rank's transport that does as the test says.
class FakeRank : public KvTransport {
 public:
  explicit FakeRank(EventSink sink) : sink_(std::move(sink)) {}

  void Expect(ExpectArgs args) override { Note("expect", args.ticket); }
  void Start(StartArgs args) override {
    started.push_back(args);
    Note("start", args.ticket);
  }
  void Push(PushArgs args) override { Note("push", args.ticket); }
  void Finish(FinishArgs args) override { Note("finish", args.ticket); }
  void Abort(TicketId ticket) override { Note("abort", ticket); }

  void Begin(TicketId leg) {
    sink_({.kind = TransferEvent::Kind::kBegun, .ticket = leg, .receiver = true});
  }
  void End(TicketId leg, bool receiver, absl::Status status = {}, int64_t bytes = 1,
           int32_t token = 7) {
    TransferEvent event{
        .ticket = leg, .receiver = receiver, .status = std::move(status), .bytes = bytes};
    if (receiver && event.status.ok()) event.first.token = token;
    sink_(std::move(event));
  }

  std::vector<std::string> calls;  // Each with the rank that receives.
  std::vector<StartArgs> started;
  std::function<void()> next_call;  // Within the next call.

 private:
  void Note(const std::string& what, TicketId leg) {
    EXPECT_EQ(HandoffOf(leg), kHandoff);
    calls.push_back(what + " " + std::to_string(ReceiverOf(leg)));
    if (next_call) std::exchange(next_call, nullptr)();
  }

  const EventSink sink_;
};

class RankedTransportTest : public testing::Test {
 protected:
  // A worker of so many ranks, of a model with so many KV heads.
  void Make(int32_t size, int32_t kv_heads) {
    transport_ = std::make_unique<RankedTransport>(
        kv_heads, [this](TransferEvent event) { events_.push_back(std::move(event)); });
    std::vector<KvTransport*> children;
    ranks_.clear();
    for (int32_t r = 0; r < size; ++r) {
      ranks_.push_back(std::make_unique<FakeRank>(transport_->SinkOf(r)));
      children.push_back(ranks_.back().get());
    }
    transport_->SetRanks(children);
  }
  static StartArgs Start(int32_t size, int32_t kv_heads) {
    StartArgs args{.ticket = kHandoff, .sender = 1, .receiver = 2};
    for (int32_t d = 0; d < size; ++d) {
      args.receivers.push_back({"rank" + std::to_string(d), HeadsOf(d, size, kv_heads)});
    }
    return args;
  }
  void EndAll(bool receiver, const absl::Status& status = {}) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r]->End(LegOf(kHandoff, static_cast<int32_t>(r)), receiver, status);
    }
  }
  std::vector<std::string> TakeCalls(int32_t rank) {
    return std::exchange(ranks_[rank]->calls, {});
  }
  using Calls = std::vector<std::string>;

  std::vector<TransferEvent> events_;
  std::unique_ptr<RankedTransport> transport_;
  std::vector<std::unique_ptr<FakeRank>> ranks_;
};

TEST_F(RankedTransportTest, AReceivedHandoffBeginsWithItsFirstLegAndEndsWithItsLast) {
  Make(2, 4);
  transport_->Expect({.ticket = kHandoff});
  EXPECT_EQ(TakeCalls(0), Calls{"expect 0"});
  EXPECT_EQ(TakeCalls(1), Calls{"expect 1"});
  ranks_[1]->Begin(LegOf(kHandoff, 1));
  ranks_[0]->Begin(LegOf(kHandoff, 0));
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].kind, TransferEvent::Kind::kBegun);
  EXPECT_EQ(events_[0].ticket, kHandoff);
  ranks_[1]->End(LegOf(kHandoff, 1), true, {}, 30);
  ASSERT_EQ(events_.size(), 1u);
  ranks_[0]->End(LegOf(kHandoff, 0), true, {}, 4);
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_EQ(events_[1].kind, TransferEvent::Kind::kEnded);
  EXPECT_EQ(events_[1].ticket, kHandoff);
  EXPECT_TRUE(events_[1].receiver);
  EXPECT_TRUE(events_[1].status.ok());
  EXPECT_EQ(events_[1].bytes, 34);
  EXPECT_EQ(events_[1].first.token, 7);
  EXPECT_EQ(TakeCalls(0), Calls{});
}

TEST_F(RankedTransportTest, OpenLegsAreThoseThatHaveNotEnded) {
  Make(2, 2);
  using Legs = std::vector<OpenLeg>;
  EXPECT_EQ(transport_->OpenLegs(), Legs{});
  transport_->Expect({.ticket = kHandoff});
  EXPECT_EQ(transport_->OpenLegs(), (Legs{{kHandoff, 0}, {kHandoff, 1}}));
  ranks_[0]->End(LegOf(kHandoff, 0), true, {});
  EXPECT_EQ(transport_->OpenLegs(), (Legs{{kHandoff, 1}}));
  ranks_[1]->End(LegOf(kHandoff, 1), true, {});
  EXPECT_EQ(transport_->OpenLegs(), Legs{});
  transport_->Start(Start(1, 2));
  EXPECT_EQ(transport_->OpenLegs(), (Legs{{kHandoff, 0}, {kHandoff, 1}}));
  ranks_[0]->End(LegOf(kHandoff, 0), false, {});
  ranks_[1]->End(LegOf(kHandoff, 0), false, {});
  EXPECT_EQ(transport_->OpenLegs(), Legs{});
}

TEST_F(RankedTransportTest, EachRankSendsToTheRanksThatHaveSomethingFromIt) {
  Make(4, 2);  // Ranks 0 and 1 hold head 0, 2 and 3 head 1.
  transport_->Start(Start(2, 2));
  transport_->Push({.ticket = kHandoff});
  transport_->Finish({.ticket = kHandoff});
  EXPECT_EQ(TakeCalls(0), (Calls{"start 0", "push 0", "finish 0"}));
  EXPECT_EQ(TakeCalls(1), Calls{});
  EXPECT_EQ(TakeCalls(2), Calls{});
  EXPECT_EQ(TakeCalls(3), (Calls{"start 1", "push 1", "finish 1"}));
  ASSERT_EQ(ranks_[3]->started.size(), 1u);
  EXPECT_EQ(ranks_[3]->started[0].endpoint, "rank1");
  EXPECT_EQ(ranks_[3]->started[0].receiver_place, (RankPlace{1, 2}));
  EXPECT_TRUE(ranks_[3]->started[0].receivers.empty());
  ranks_[0]->End(LegOf(kHandoff, 0), false, {}, 10);
  EXPECT_TRUE(events_.empty());
  ranks_[3]->End(LegOf(kHandoff, 1), false, {}, 20);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].ticket, kHandoff);
  EXPECT_FALSE(events_[0].receiver);
  EXPECT_TRUE(events_[0].status.ok());
  EXPECT_EQ(events_[0].bytes, 30);
}

TEST_F(RankedTransportTest, ALegThatFailsAbortsTheOthersAndGivesTheReason) {
  Make(3, 3);
  transport_->Expect({.ticket = kHandoff});
  for (int32_t r = 0; r < 3; ++r) TakeCalls(r);
  ranks_[1]->End(LegOf(kHandoff, 1), true, absl::DataLossError("rot"));
  EXPECT_EQ(TakeCalls(0), Calls{"abort 0"});
  EXPECT_EQ(TakeCalls(1), Calls{});
  EXPECT_EQ(TakeCalls(2), Calls{"abort 2"});
  ranks_[0]->End(LegOf(kHandoff, 0), true, absl::UnavailableError("late"));
  EXPECT_EQ(TakeCalls(2), Calls{});  // Once is enough.
  EXPECT_TRUE(events_.empty());      // A leg still writes.
  ranks_[2]->End(LegOf(kHandoff, 2), true, absl::CancelledError("aborted here"));
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_TRUE(absl::IsDataLoss(events_[0].status)) << events_[0].status;
}

TEST_F(RankedTransportTest, ThatAPeerGaveUpIsNoReasonIfALegKnowsOne) {
  for (const absl::Status& gave_up : {absl::AbortedError("x"), absl::CancelledError("x")}) {
    Make(2, 2);
    events_.clear();
    transport_->Start(Start(2, 2));
    ranks_[0]->End(LegOf(kHandoff, 0), false, gave_up);
    ranks_[1]->End(LegOf(kHandoff, 1), false, absl::DeadlineExceededError("silent"));
    ASSERT_EQ(events_.size(), 1u);
    EXPECT_TRUE(absl::IsDeadlineExceeded(events_[0].status)) << events_[0].status;
    transport_->Start(Start(2, 2));
    ranks_[0]->End(LegOf(kHandoff, 0), false, gave_up);
    ranks_[1]->End(LegOf(kHandoff, 1), false);
    ASSERT_EQ(events_.size(), 2u);
    EXPECT_EQ(events_[1].status, gave_up);
  }
}

TEST_F(RankedTransportTest, ALegThatIsVerifiedDoesNotMakeTheHandoffSo) {
  for (const int32_t failing : {0, 1}) {
    Make(2, 2);
    events_.clear();
    transport_->Expect({.ticket = kHandoff});
    ranks_[1 - failing]->End(LegOf(kHandoff, 1 - failing), true);
    ranks_[failing]->End(LegOf(kHandoff, failing), true, absl::UnavailableError("lost"));
    ASSERT_EQ(events_.size(), 1u);
    EXPECT_TRUE(absl::IsUnavailable(events_[0].status));
    EXPECT_EQ(events_[0].first, TokenOutput{});
  }
}

// The event of one leg comes on another thread, before the next leg was told of the handoff.
TEST_F(RankedTransportTest, WhatALegReportsWaitsUntilAllLegsHaveTheCall) {
  for (const bool receiver : {true, false}) {
    Make(3, 3);
    events_.clear();
    ranks_[0]->next_call = [&] {
      std::jthread([&] {
        ranks_[0]->End(LegOf(kHandoff, 0), receiver, absl::UnavailableError("at once"));
      }).join();
      EXPECT_TRUE(ranks_[1]->calls.empty());
    };
    if (receiver) {
      transport_->Expect({.ticket = kHandoff});
    } else {
      transport_->Start(Start(3, 3));
    }
    const std::string opened = receiver ? "expect " : "start ";
    EXPECT_EQ(TakeCalls(1), (Calls{opened + "1", "abort 1"}));
    EXPECT_EQ(TakeCalls(2), (Calls{opened + "2", "abort 2"}));
    ranks_[1]->End(LegOf(kHandoff, 1), receiver, absl::CancelledError("x"));
    ranks_[2]->End(LegOf(kHandoff, 2), receiver, absl::CancelledError("x"));
    ASSERT_EQ(events_.size(), 1u);
    EXPECT_TRUE(absl::IsUnavailable(events_[0].status));
  }
}

// Its node names the ticket to the sender right after it, whatever another thread does meanwhile.
TEST_F(RankedTransportTest, AnExpectReturnsWhenAllRanksKnowTheTicket) {
  Make(2, 2);
  absl::Notification entered, go_on, returned;
  ranks_[0]->next_call = [&] {
    entered.Notify();
    go_on.WaitForNotification();
  };
  std::jthread busy([&] { transport_->Start(Start(2, 2)); });
  entered.WaitForNotification();
  std::jthread node([&] {
    transport_->Expect({.ticket = kHandoff});
    returned.Notify();
  });
  EXPECT_FALSE(returned.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  go_on.Notify();
  returned.WaitForNotification();
  for (int32_t r : {0, 1}) {
    const Calls calls = TakeCalls(r);
    EXPECT_NE(std::find(calls.begin(), calls.end(), "expect " + std::to_string(r)), calls.end());
  }
  busy.join();
  EndAll(/*receiver=*/true);
  EndAll(/*receiver=*/false);
}

// As a transport does whose sink is called within its methods.
TEST_F(RankedTransportTest, ARankMayAnswerFromWithinTheCall) {
  Make(2, 2);
  for (int32_t r = 0; r < 2; ++r) {
    ranks_[r]->next_call = [this, r] { ranks_[r]->Begin(LegOf(kHandoff, r)); };
  }
  transport_->Expect({.ticket = kHandoff});
  EXPECT_EQ(events_.size(), 1u);
  EXPECT_EQ(TakeCalls(1), Calls{"expect 1"});
  EndAll(true);
  EXPECT_EQ(events_.size(), 2u);
}

TEST_F(RankedTransportTest, FirstTokensThatDifferFailTheHandoff) {
  Make(2, 2);
  transport_->Expect({.ticket = kHandoff});
  ranks_[0]->End(LegOf(kHandoff, 0), true, {}, 1, 7);
  ranks_[1]->End(LegOf(kHandoff, 1), true, {}, 1, 8);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].status, StatusOfAbort(AbortCode::kDigestMismatch));
}

TEST_F(RankedTransportTest, AReceiverWhoseRanksDoNotHoldPartsOfTheHeadsIsRefused) {
  Make(2, 4);
  std::vector<StartArgs> bad;
  for (int32_t size : {0, 3, 5, 16}) {
    bad.push_back({.ticket = kHandoff});
    bad.back().receivers.resize(size);
  }
  bad.push_back(Start(2, 4));
  std::swap(bad.back().receivers[0], bad.back().receivers[1]);
  bad.push_back(Start(2, 4));
  bad.back().receivers[1].heads.count = 3;
  bad.push_back(Start(2, 8));
  for (const StartArgs& args : bad) {
    events_.clear();
    transport_->Start(args);
    ASSERT_EQ(events_.size(), 1u);
    EXPECT_EQ(events_[0].status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(events_[0].ticket, kHandoff);
    EXPECT_EQ(TakeCalls(0), Calls{});
    EXPECT_EQ(TakeCalls(1), Calls{});
  }
}

TEST_F(RankedTransportTest, ATicketThatIsNoneOfAHandoffIsRefused) {
  Make(2, 4);
  for (const TicketId ticket : {TicketId{}, TicketId{3, 0x41}, TicketId{3, 0x44}}) {
    events_.clear();
    StartArgs start = Start(2, 4);
    start.ticket = ticket;
    transport_->Start(start);
    transport_->Expect({.ticket = ticket});
    ASSERT_EQ(events_.size(), 2u);
    for (const TransferEvent& event : events_) {
      EXPECT_EQ(event.ticket, ticket);
      EXPECT_EQ(event.status.code(), absl::StatusCode::kInvalidArgument);
    }
    EXPECT_FALSE(events_[0].receiver);
    EXPECT_TRUE(events_[1].receiver);
    EXPECT_EQ(TakeCalls(0), Calls{});
  }
}

TEST_F(RankedTransportTest, CallsForAHandoffThatIsNotThereAreCountedAndIgnored) {
  Make(2, 2);
  transport_->Push({.ticket = kHandoff});
  transport_->Finish({.ticket = kHandoff});
  transport_->Abort(kHandoff);
  EXPECT_EQ(transport_->ignored_calls(), 3);
  transport_->Expect({.ticket = kHandoff});
  transport_->Expect({.ticket = kHandoff});
  transport_->Push({.ticket = kHandoff});  // Nothing is sent here.
  EXPECT_EQ(transport_->ignored_calls(), 5);
  EXPECT_EQ(TakeCalls(0), Calls{"expect 0"});
  EndAll(true);
  transport_->Abort(kHandoff);
  EXPECT_EQ(transport_->ignored_calls(), 6);
  EXPECT_EQ(TakeCalls(0), Calls{});
  EXPECT_EQ(events_.size(), 1u);
}

TEST_F(RankedTransportTest, ACallThatIsRefusedDoesNotEndTheHandoffThatIsOpen) {
  Make(2, 2);
  transport_->Start(Start(2, 2));
  transport_->Start(Start(2, 2));
  StartArgs wrong = Start(2, 2);
  wrong.receivers.pop_back();
  transport_->Start(wrong);
  EXPECT_TRUE(events_.empty());
  transport_->Close();
  transport_->Start(Start(2, 2));
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(transport_->ignored_calls(), 3);
  EndAll(false);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_TRUE(events_[0].status.ok());
}

TEST_F(RankedTransportTest, AnAbortGoesToEachLegOnceAndEndsWithTheLast) {
  Make(2, 2);
  transport_->Start(Start(2, 2));
  TakeCalls(0);
  TakeCalls(1);
  transport_->Abort(kHandoff);
  transport_->Abort(kHandoff);
  transport_->Push({.ticket = kHandoff});
  EXPECT_EQ(TakeCalls(0), Calls{"abort 0"});
  EXPECT_EQ(TakeCalls(1), Calls{"abort 1"});
  EndAll(false, absl::CancelledError("aborted here"));
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(events_[0].status));
  EXPECT_EQ(transport_->ignored_calls(), 0);
}

TEST_F(RankedTransportTest, BothSidesOfOneTicketEndOnTheirOwn) {
  Make(1, 1);
  transport_->Expect({.ticket = kHandoff});
  transport_->Start(Start(1, 1));
  EndAll(true);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_TRUE(events_[0].receiver);
  EndAll(false);
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_FALSE(events_[1].receiver);
}

TEST_F(RankedTransportTest, CloseWaitsForTheCallThatIsUnderWay) {
  Make(1, 1);
  std::atomic<bool> inside = false;
  std::atomic<bool> left = false;
  ranks_[0]->next_call = [&] {
    inside = true;
    inside.notify_one();
    ::poll(nullptr, 0, 50);  // Time for a Close that does not wait.
    left = true;
  };
  std::jthread node([&] { transport_->Expect({.ticket = kHandoff}); });
  inside.wait(false);
  transport_->Close();
  EXPECT_TRUE(left);
  node.join();
  EndAll(true, absl::CancelledError("closing"));
}

TEST_F(RankedTransportTest, AfterCloseNoRankIsCalledAndEveryEndIsTold) {
  Make(2, 2);
  transport_->Expect({.ticket = kHandoff});
  transport_->Start(Start(2, 2));
  TakeCalls(0);
  TakeCalls(1);
  transport_->Close();
  ranks_[0]->End(LegOf(kHandoff, 0), true, absl::CancelledError("closing"));
  transport_->Push({.ticket = kHandoff});
  transport_->Abort(kHandoff);
  EXPECT_EQ(TakeCalls(0), Calls{});
  EXPECT_EQ(TakeCalls(1), Calls{});
  ranks_[0]->End(LegOf(kHandoff, 0), false, absl::CancelledError("closing"));
  ranks_[0].reset();
  ranks_[1]->End(LegOf(kHandoff, 1), true, absl::CancelledError("closing"));
  ranks_[1]->End(LegOf(kHandoff, 1), false, absl::CancelledError("closing"));
  EXPECT_EQ(events_.size(), 2u);
  transport_->Expect({.ticket = kHandoff});
  transport_->Start(Start(2, 2));
  ASSERT_EQ(events_.size(), 4u);
  for (const TransferEvent& event : events_) EXPECT_TRUE(absl::IsCancelled(event.status));
}

}  // namespace
}  // namespace baton
