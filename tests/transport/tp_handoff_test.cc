// Handoffs between workers of any number of ranks, over sockets and within a process.

#include <poll.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/ranked_worker.h"

namespace baton {
namespace {

constexpr int32_t kSizes[] = {1, 2, 4, 8};

std::unique_ptr<RankedWorker> MakeWorker(TransportCluster* cluster, Incarnation incarnation,
                                         int32_t size, int32_t kv_heads, int32_t block_size) {
  return std::make_unique<RankedWorker>(cluster, EndpointSpec{.incarnation = incarnation,
                                                              .block_size = block_size,
                                                              .num_blocks = 128 / block_size + 2,
                                                              .place = {0, size},
                                                              .kv_heads = kv_heads,
                                                              .num_layers = 2,
                                                              .max_frame_bytes = 2000});
}

class TpHandoffTest : public testing::TestWithParam<TransportKind> {
 protected:
  std::unique_ptr<RankedWorker> Make(int32_t size, int32_t kv_heads, int32_t block_size = 16) {
    return MakeWorker(&cluster_, next_++, size, kv_heads, block_size);
  }
  TransportCluster cluster_{GetParam()};
  Incarnation next_ = 1;
};

INSTANTIATE_TEST_SUITE_P(Kinds, TpHandoffTest,
                         testing::Values(TransportKind::kLoopback, TransportKind::kTcp,
                                         TransportKind::kTcpStaged, TransportKind::kTcpDevice),
                         [](const auto& info) { return NameOf(info.param); });

// With and without a prefix that is there already, or lies behind a window.
TEST_P(TpHandoffTest, EachRankHoldsItsHeadsWhateverTheNumbersOfRanks) {
  for (const int32_t kv_heads : kSizes) {
    std::vector<std::unique_ptr<RankedWorker>> from, to;
    for (const int32_t size : kSizes) {
      from.push_back(Make(size, kv_heads, 8));
      to.push_back(Make(size, kv_heads, size > 2 ? 32 : 4));
    }
    int32_t index = 0;
    for (const auto& p : from) {
      for (const auto& d : to) {
        SCOPED_TRACE(testing::Message() << p->size() << " ranks to " << d->size() << ", "
                                        << kv_heads << " KV heads");
        const int32_t first = index % 3 * 21;
        const RankedHandoff h = MakeRankedHandoff(p.get(), d.get(), {first, 100 - first}, index++);
        h.Run(40);
        h.ExpectVerified();
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(TpHandoffTest, AHandoffWithNothingToSendIsVerifiedByAllItsLegs) {
  auto from = Make(4, 4);
  auto to = Make(2, 4);
  const RankedHandoff h = MakeRankedHandoff(from.get(), to.get(), {48, 0});
  h.Run(10);
  h.ExpectVerified();
}

TEST_P(TpHandoffTest, RanksThatHoldTheSameHeadsShareTheBytes) {
  auto from = Make(8, 1);
  auto to = Make(8, 1);
  const RankedHandoff h = MakeRankedHandoff(from.get(), to.get(), {0, 100});
  h.Run(40);
  h.ExpectVerified();
  for (const auto& rank : from->ranks) EXPECT_EQ(rank->counters().bytes_sent, h.bytes() / 8);
}

TEST_P(TpHandoffTest, AnAbortOnEitherSideEndsAllLegsOfBoth) {
  for (const bool at_receiver : {true, false}) {
    auto from = Make(2, 4);
    auto to = Make(4, 4);
    const RankedHandoff h = MakeRankedHandoff(from.get(), to.get(), {0, 100});
    h.Expect();
    h.Start();
    h.PushAll(40);
    EXPECT_TRUE(to->log.WaitBegun(h.ticket));
    (at_receiver ? to : from)->transport.Abort(h.ticket);
    if (!at_receiver) h.Finish();  // Too late: ignored.
    h.ExpectFailed();
    const RankedHandoff again = MakeRankedHandoff(from.get(), to.get(), {0, 100}, 1);
    again.Run(40);
    again.ExpectVerified();
  }
}

TEST_P(TpHandoffTest, ASenderThatGoesAwayFailsTheHandoffInTheMiddle) {
  auto from = Make(2, 4);
  auto to = Make(1, 4);
  const RankedHandoff h = MakeRankedHandoff(from.get(), to.get(), {0, 100});
  h.Expect();
  h.Start();
  h.PushAll(40);
  EXPECT_TRUE(to->log.WaitBegun(h.ticket));
  from.reset();
  EXPECT_FALSE(to->log.WaitEnded(h.ticket, true).status.ok());
}

// An attempt that fails leaves the KV for another receiver, of another number of ranks.
TEST_P(TpHandoffTest, WhatOneReceiverLostIsSentToAnother) {
  auto from = Make(2, 2);
  auto lost = Make(2, 2);
  auto to = Make(4, 2);
  const RankedHandoff first = MakeRankedHandoff(from.get(), lost.get(), {0, 100}, 0);
  first.Expect();
  first.Start();
  first.PushAll(40);
  EXPECT_TRUE(lost->log.WaitBegun(first.ticket));
  lost.reset();
  EXPECT_FALSE(from->log.WaitEnded(first.ticket, false).status.ok());
  const RankedHandoff second = MakeRankedHandoff(from.get(), to.get(), {0, 100}, 1);
  second.Run(40);
  second.ExpectVerified();
}

TEST_P(TpHandoffTest, RanksWhoseAddressesAreSwappedTakeNothing) {
  auto from = Make(2, 2);
  auto to = Make(2, 2);
  RankedHandoff h = MakeRankedHandoff(from.get(), to.get(), {0, 100});
  h.via = to->addresses();
  std::swap(h.via[0].endpoint, h.via[1].endpoint);
  h.Run(40);
  const TransferEvent sent = from->log.WaitEnded(h.ticket, false);
  EXPECT_TRUE(absl::IsUnavailable(sent.status)) << sent.status;
  EXPECT_NE(sent.status.message().find("another incarnation"), absl::string_view::npos);
  for (const auto& rank : to->ranks) {
    EXPECT_TRUE(rank->IsCanaryBut(0xCD));
    EXPECT_EQ(rank->counters().frames_accepted, 0);
  }
  to->transport.Abort(h.ticket);
  EXPECT_TRUE(absl::IsCancelled(to->log.WaitEnded(h.ticket, true).status));
}

TEST_P(TpHandoffTest, AProcessWithAnotherNumberOfHeadsIsRefused) {
  auto from = cluster_.Make({.incarnation = 1, .kv_heads = 4});
  auto to = cluster_.Make({.incarnation = 2, .kv_heads = 2});
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 90});
  h.Run(50);
  EXPECT_TRUE(absl::IsUnavailable(from->log.WaitEnded(h.ticket, false).status));
  EXPECT_TRUE(to->IsCanaryBut(0xCD));
  // A stranger fails no ticket.
  EXPECT_EQ(to->log.Count(TransferEvent::Kind::kEnded, h.ticket, true), 0);
}

TEST_P(TpHandoffTest, AnotherRankThanTheOneMeantRefuses) {
  auto from = cluster_.Make({.incarnation = 1});
  auto to = cluster_.Make({.incarnation = 2, .place = {1, 2}});
  Handoff h = MakeHandoff(from.get(), to.get(), {0, 90});
  StartArgs start = h.start();
  for (const RankPlace meant : {RankPlace{0, 2}, {1, 4}}) {
    h.ticket.lo += 8;
    start.ticket = h.ticket;
    start.receiver_place = meant;
    to->transport->Expect(h.expect());
    from->transport->Start(start);
    h.PushAll(50);
    from->transport->Finish(h.finish());
    const absl::Status ended = from->log.WaitEnded(h.ticket, false).status;
    EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
    EXPECT_NE(ended.message().find("another incarnation or rank"), absl::string_view::npos);
  }
  EXPECT_TRUE(to->IsCanaryBut(0xCD));
}

// One rank's final frame tells of another prompt; the other rank, which waits for the verdict,
// hears of it at once.
TEST_P(TpHandoffTest, ALegThatOneSenderSpoilsEndsForTheOthers) {
  auto first = cluster_.Make({.incarnation = 1, .place = {0, 2}});
  auto second = cluster_.Make({.incarnation = 1, .place = {1, 2}});
  auto to = cluster_.Make({.incarnation = 2});
  const Handoff good = MakeHandoff(first.get(), to.get(), {0, 90});
  const Handoff bad = MakeHandoff(second.get(), to.get(), {0, 90});
  to->transport->Expect(good.expect());
  for (const Handoff* h : {&good, &bad}) {
    h->from->transport->Start(h->start());
    h->PushAll(50);
  }
  first->transport->Finish(good.finish());
  EXPECT_TRUE(to->log.WaitBegun(good.ticket));
  // Both have sent all: 90 tokens of 3 layers, 4 heads and 20 elements of 2 bytes.
  for (int i = 0; i < 20000 && to->counters().bytes_accepted < 90 * 3 * 4 * 20 * 2; ++i) {
    ::poll(nullptr, 0, 1);
  }
  FinishArgs other_prompt = bad.finish();
  ++other_prompt.digests.tokens;
  second->transport->Finish(other_prompt);
  EXPECT_EQ(second->log.WaitEnded(bad.ticket, false).status,
            StatusOfAbort(AbortCode::kDigestMismatch));
  EXPECT_EQ(first->log.WaitEnded(good.ticket, false).status, StatusOfAbort(AbortCode::kCancelled));
  EXPECT_FALSE(to->log.WaitEnded(good.ticket, true).status.ok());
}

// Connections of all ranks of one process stay side by side.
TEST_P(TpHandoffTest, ManyHandoffsGoOverOneConnectionForEachPairOfRanks) {
  if (GetParam() == TransportKind::kLoopback) return;  // Without connections.
  auto from = Make(4, 4);
  auto to = Make(2, 4);
  for (int32_t i = 0; i < 5; ++i) {
    const RankedHandoff h = MakeRankedHandoff(from.get(), to.get(), {0, 100}, i);
    h.Run(40);
    h.ExpectVerified();
  }
  for (const auto& rank : from->ranks) EXPECT_EQ(rank->counters().opened_connections, 1);
  for (const auto& rank : to->ranks) {
    EXPECT_EQ(rank->counters().accepted_connections, 2);
    EXPECT_EQ(rank->counters().closed_connections, 0);
    EXPECT_EQ(rank->counters().malformed, 0);
  }
}

}  // namespace
}  // namespace baton
