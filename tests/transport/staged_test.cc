// Copies that land late: what waits for them, what does not, and who gets the slots.

#include <algorithm>
#include <thread>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/transport/fault_proxy.h"
#include "tests/transport/transport_cluster.h"

namespace baton {
namespace {

using Kind = TransferEvent::Kind;
using Work = BlockStager::Work;

constexpr int64_t kFramesOfAHandoff = 3 * 2;  // K and V of three layers, in one push each.

class StagedTest : public testing::Test {
 protected:
  template <typename Condition>
  static void Await(Condition condition) {
    const Time end = SteadyNow() + std::chrono::seconds(20);
    while (!condition() && SteadyNow() < end) std::this_thread::yield();
    ASSERT_TRUE(condition());
  }

  // What was sent or called before it on this pair has been dealt with when it returns: nothing is
  // copied for it.
  void Fence(Endpoint* from, Endpoint* to) {
    if (HasFailure()) return;
    const Handoff nothing = MakeHandoff(from, to, {32, 0}, 200 + fences_++);
    nothing.Run(1);
    nothing.ExpectVerified();
  }

  // While copies are held no deadline is to pass.
  std::unique_ptr<Endpoint> Make(EndpointSpec spec) {
    spec.time_scale = std::max(spec.time_scale, 10.0);
    return cluster_.Make(spec);
  }

  static int Ended(const Handoff& h, bool receiver) {
    return (receiver ? h.to : h.from)->log.Count(Kind::kEnded, h.ticket, receiver);
  }

  TransportCluster cluster_{TransportKind::kTcpStaged};
  int fences_ = 0;
};

TEST_F(StagedTest, TheVerdictAndBothEndsWaitForTheLastByteToLand) {
  auto from = Make({.incarnation = 1, .num_blocks = 1000});
  auto to = Make({.incarnation = 2, .num_blocks = 1000});
  to->stager->Hold(true);
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  h.Run(100);
  Fence(from.get(), to.get());
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(to->stager->scatters(), kFramesOfAHandoff);
  EXPECT_EQ(Ended(h, true), 0);
  EXPECT_EQ(Ended(h, false), 0);
  EXPECT_TRUE(to->IsCanaryBut(0xCD));
  to->stager->Hold(false);
  EXPECT_TRUE(to->log.WaitEnded(h.ticket, true).status.ok());
  EXPECT_TRUE(to->IsCanaryBut(0xCD, {h.written()}));
  h.ExpectVerified();
}

TEST_F(StagedTest, AReceiverThatGivesUpHearsTheEndOnceNothingIsWrittenAnyMore) {
  auto from = Make({.incarnation = 1, .num_blocks = 1000});
  auto to = Make({.incarnation = 2, .num_blocks = 1000});
  to->stager->Hold(true);
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  to->transport->Expect(h.expect());
  from->transport->Start(h.start());
  h.PushAll(100);
  Await([&] { return to->stager->scatters() == kFramesOfAHandoff; });
  to->transport->Abort(h.ticket);
  EXPECT_EQ(from->log.WaitEnded(h.ticket, false).status.code(), absl::StatusCode::kAborted);
  // It has ended, though its node has not heard of it: these do nothing.
  to->transport->Abort(h.ticket);
  to->transport->Expect(h.expect());
  Fence(from.get(), to.get());
  EXPECT_EQ(to->counters().ignored_calls, 2);
  EXPECT_EQ(Ended(h, true), 0);
  to->stager->Hold(false);
  EXPECT_EQ(to->log.WaitEnded(h.ticket, true).status.code(), absl::StatusCode::kCancelled);
  to->FillCanary(0x22);
  const Handoff next = MakeHandoff(from.get(), to.get(), {0, 100}, 1);
  next.Run(100);
  next.ExpectVerified();
  EXPECT_TRUE(to->IsCanaryBut(0x22, {next.written()}));
  EXPECT_EQ(Ended(h, true), 1);
}

TEST_F(StagedTest, ASenderThatGivesUpHearsTheEndOnceNothingIsReadAnyMore) {
  auto from = Make({.incarnation = 1, .num_blocks = 1000});
  auto to = Make({.incarnation = 2, .num_blocks = 1000});
  Fence(from.get(), to.get());
  from->stager->Hold(true);
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  to->transport->Expect(h.expect());
  from->transport->Start(h.start());
  h.PushAll(100);
  Await([&] { return from->stager->gathers() == 2; });
  from->transport->Abort(h.ticket);
  // Its node has not heard of the end.
  from->transport->Push({h.ticket, 0, 0, 100});
  from->transport->Finish(h.finish());
  from->transport->Abort(h.ticket);
  from->transport->Start(h.start());
  Fence(from.get(), to.get());
  EXPECT_EQ(from->counters().ignored_calls, 4);
  EXPECT_EQ(Ended(h, false), 0);
  from->stager->Hold(false);
  EXPECT_EQ(from->log.WaitEnded(h.ticket, false).status.code(), absl::StatusCode::kCancelled);
  from->FillCanary(0x22);
  const Handoff next = MakeHandoff(from.get(), to.get(), {0, 100}, 1);
  next.Run(100);
  next.ExpectVerified();
  EXPECT_EQ(Ended(h, false), 1);
  EXPECT_EQ(from->stager->gathers(), 2 + kFramesOfAHandoff);
}

TEST_F(StagedTest, TheEndOfTheConnectionWaitsForWhatIsUnderWayToo) {
  for (const bool sender_lives : {false, true}) {
    const Incarnation base = sender_lives ? 10 : 20;
    auto from = Make({.incarnation = base});
    auto to = Make({.incarnation = base + 1});
    Endpoint* left = sender_lives ? from.get() : to.get();
    left->stager->Hold(true);
    const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
    to->transport->Expect(h.expect());
    from->transport->Start(h.start());
    h.PushAll(100);
    Await([&] { return left->stager->launched() == (sender_lives ? 2 : kFramesOfAHandoff); });
    (sender_lives ? to : from)->transport.reset();
    Await([&] { return left->counters().closed_connections == 1; });
    EXPECT_EQ(Ended(h, !sender_lives), 0);
    left->stager->Hold(false);
    EXPECT_EQ(left->log.WaitEnded(h.ticket, !sender_lives).status.code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(left->stager->launched(), 0);
  }
}

TEST_F(StagedTest, ClosingWaitsForWhatIsUnderWay) {
  auto from = Make({.incarnation = 1});
  auto to = Make({.incarnation = 2});
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  to->stager->Hold(true);
  h.Run(100);
  Await([&] { return to->stager->launched() == kFramesOfAHandoff; });
  const Handoff back = MakeHandoff(to.get(), from.get(), {0, 100}, 1);
  from->transport->Expect(back.expect());
  to->transport->Start(back.start());
  back.PushAll(100);
  Await([&] { return to->stager->launched() == kFramesOfAHandoff + 2; });
  to->transport.reset();
  EXPECT_EQ(to->stager->launched(), 0);
  EXPECT_EQ(Ended(h, true), 1);
  EXPECT_EQ(Ended(back, false), 1);
}

TEST_F(StagedTest, OneTicketOnBothSidesOfAProcessWaitsForEachSideAlone) {
  auto a = Make({.incarnation = 1, .num_blocks = 1000});
  auto b = Make({.incarnation = 2, .num_blocks = 1000});
  Fence(a.get(), b.get());
  const Handoff in = MakeHandoff(b.get(), a.get(), {0, 100});
  Handoff out = MakeHandoff(a.get(), b.get(), {0, 100}, 1);
  out.ticket = in.ticket;
  a->transport->Expect(in.expect());
  b->transport->Start(in.start());
  in.PushAll(100);
  Await([&] { return a->stager->scatters() == kFramesOfAHandoff; });
  Await([&] { return a->stager->launched() == 0; });
  a->stager->Hold(true);
  b->transport->Expect(out.expect());
  a->transport->Start(out.start());
  out.PushAll(100);
  Await([&] { return a->stager->launched() == 2; });
  b->transport->Finish(in.finish());
  EXPECT_TRUE(a->log.WaitEnded(in.ticket, true).status.ok());
  EXPECT_TRUE(b->log.WaitEnded(in.ticket, false).status.ok());
  a->stager->Hold(false);
  a->transport->Finish(out.finish());
  EXPECT_TRUE(a->log.WaitEnded(out.ticket, false).status.ok());
}

// A range that came is written once, also before the first of the two has landed.
TEST_F(StagedTest, ARangeThatComesAgainBeforeItLandedIsNotWrittenTwice) {
  auto from = Make({.incarnation = 1, .num_blocks = 1000});
  auto to = Make({.incarnation = 2, .num_blocks = 1000});
  to->stager->Hold(true);
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  to->transport->Expect(h.expect());
  from->transport->Start(h.start());
  from->transport->Push({h.ticket, 0, 0, 100});
  h.PushAll(100);
  from->transport->Finish(h.finish());
  Fence(from.get(), to.get());
  EXPECT_EQ(to->stager->scatters(), kFramesOfAHandoff);
  EXPECT_EQ(to->counters().duplicate_ranges, 2);
  to->stager->Hold(false);
  EXPECT_TRUE(to->log.WaitEnded(h.ticket, true).status.ok());
  EXPECT_TRUE(to->IsCanaryBut(0xCD, {h.written()}));
}

TEST_F(StagedTest, WithoutASlotAConnectionWaitsAndTheOthersGoOn) {
  auto from = Make({.incarnation = 1});
  auto other = Make({.incarnation = 2, .num_blocks = 1000});
  auto to = Make({.incarnation = 3, .num_blocks = 1000, .stager = {.slots = 1}});
  to->stager->Hold(true);
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  h.Run(100);
  Await([&] { return !to->stager->refused().empty(); });
  Fence(other.get(), to.get());
  // More lies in the socket; nobody asks for it again and again.
  const int64_t before = to->stager->collects();
  const Time since = SteadyNow();
  while (SteadyNow() < since + std::chrono::milliseconds(100)) std::this_thread::yield();
  const double ms = ToSeconds(SteadyNow() - since) * 1e3;
  EXPECT_LT(static_cast<double>(to->stager->collects() - before), 20 * ms + 100);
  EXPECT_EQ(to->stager->scatters(), 1);
  to->stager->Hold(false);
  h.ExpectVerified();
  EXPECT_TRUE(to->IsCanaryBut(0xCD, {h.written()}));
}

TEST_F(StagedTest, AFrameWhoseTicketEndsWhileItWaitsForASlotIsNotWritten) {
  auto from = Make({.incarnation = 1, .num_blocks = 1000});
  auto to = Make({.incarnation = 2, .num_blocks = 1000, .stager = {.slots = 1}});
  const Handoff first = MakeHandoff(from.get(), to.get(), {0, 16}, 40);
  to->stager->Hold(true);
  to->transport->Expect(first.expect());
  from->transport->Start(first.start());
  from->transport->Push({first.ticket, 0, 0, 16});  // K takes the slot, V waits for it.
  Await([&] { return !to->stager->refused().empty(); });
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  to->transport->Abort(first.ticket);
  EXPECT_FALSE(from->log.WaitEnded(first.ticket, false).status.ok());
  EXPECT_EQ(Ended(first, true), 0);
  to->stager->Hold(false);
  EXPECT_EQ(to->log.WaitEnded(first.ticket, true).status.code(), absl::StatusCode::kCancelled);
  to->FillCanary(0x22);
  h.Run(100);
  h.ExpectVerified();
  EXPECT_TRUE(to->IsCanaryBut(0x22, {h.written()}));
  EXPECT_EQ(to->stager->scatters(), 1 + kFramesOfAHandoff);
}

// Each of many has one frame with the only slot or before it, so each gets its turn.
TEST_F(StagedTest, ConnectionsShareTheSlotsInTurn) {
  for (const bool receiving : {true, false}) {
    const Incarnation base = receiving ? 100 : 200;
    EndpointSpec spec{.incarnation = base, .num_blocks = 256, .max_frame_bytes = 1024};
    spec.stager = {.slots = 1, .max_delay = 1};
    auto hub = Make(spec);
    std::vector<std::unique_ptr<Endpoint>> peers;
    std::vector<Handoff> handoffs;
    hub->stager->Hold(true);
    for (int32_t i = 0; i < 4; ++i) {
      spec.incarnation = base + 1 + static_cast<Incarnation>(i);
      spec.stager.slots = 8;
      peers.push_back(Make(spec));
      Endpoint* peer = peers.back().get();
      handoffs.push_back(receiving ? MakeHandoff(peer, hub.get(), {0, 200}, i)
                                   : MakeHandoff(hub.get(), peer, {0, 200}, i));
      handoffs.back().Run(200);
    }
    // One has the slot, and all wait for it.
    Await([&] { return hub->stager->refused().size() == 4; });
    hub->stager->Hold(false);
    for (const Handoff& h : handoffs) h.ExpectVerified();
    // The three others, and some that came while it had nothing to move. Of 113 each.
    EXPECT_LE(hub->stager->max_overtaken(), 8);
  }
}

// What a peer does not send, or take, costs no slot.
TEST_F(StagedTest, PeersThatStandStillHoldNoSlot) {
  for (const bool receiving : {true, false}) {
    const Incarnation base = receiving ? 100 : 200;
    // Far more than the sockets' buffers hold.
    EndpointSpec spec{
        .incarnation = base, .num_blocks = 38, .k_dim = 1024, .time_scale = 20};
    spec.stager.slots = 1;
    auto hub = Make(spec);
    std::vector<std::unique_ptr<Endpoint>> peers;
    std::vector<std::unique_ptr<FaultProxy>> proxies;
    for (int32_t i = 0; i < 3; ++i) {
      spec.incarnation = base + 1 + static_cast<Incarnation>(i);
      peers.push_back(Make(spec));
      Endpoint* peer = peers.back().get();
      Handoff h = receiving ? MakeHandoff(peer, hub.get(), {0, 160}, i)
                            : MakeHandoff(hub.get(), peer, {0, 160}, i);
      proxies.push_back(std::make_unique<FaultProxy>(h.to->address));
      proxies.back()->Set({.stall_at_byte = 100000});
      h.via = proxies.back()->endpoint();
      h.Run(160);
      if (receiving) {
        ASSERT_TRUE(hub->log.WaitBegun(h.ticket));
      } else {
        const Work work{h.ticket, /*receiver=*/false};
        Await([&] {
          const std::vector<Work> works = hub->stager->works();
          return std::count(works.begin(), works.end(), work) >= 2;
        });
      }
    }
    spec.incarnation = base + 50;
    auto healthy = Make(spec);
    const Handoff h = receiving ? MakeHandoff(healthy.get(), hub.get(), {0, 40}, 10)
                                : MakeHandoff(hub.get(), healthy.get(), {0, 40}, 10);
    h.Run(40);
    h.ExpectVerified();
    peers.clear();
  }
}

TEST_F(StagedTest, TwoFramesAreAheadOfTheOneThatIsWritten) {
  auto from = Make({.incarnation = 1, .num_blocks = 1000, .max_frame_bytes = 1024});
  auto to = Make({.incarnation = 2, .num_blocks = 1000});
  Fence(from.get(), to.get());
  from->stager->Hold(true);
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  h.Run(100);
  auto other = Make({.incarnation = 3, .num_blocks = 1000});
  Fence(from.get(), other.get());
  EXPECT_EQ(from->stager->launched(), 2);
  from->stager->Hold(false);
  h.ExpectVerified();
}

TEST_F(StagedTest, OneSlotAndLongDelaysMoveTheSameBytes) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    EndpointSpec spec{.incarnation = 2 * seed,
                      .block_size = 8,
                      .num_blocks = 256,
                      .max_frame_bytes = 700,
                      .stager = {.seed = seed,
                                 .slots = 1 + static_cast<int>(random.Below(3)),
                                 .max_delay = 8}};
    auto a = Make(spec);
    spec.incarnation = 2 * seed + 1;
    spec.block_size = 16;
    auto b = Make(spec);
    std::vector<Handoff> handoffs;
    for (int32_t i = 0; i < 6; ++i) {
      Endpoint* from = i % 2 == 0 ? a.get() : b.get();
      Endpoint* to = i % 2 == 0 ? b.get() : a.get();
      const auto first = static_cast<int32_t>(random.Below(9));
      handoffs.push_back(MakeHandoff(from, to, {first, 66 - first}, i));
    }
    for (const Handoff& h : handoffs) h.Run(25);
    for (const Handoff& h : handoffs) {
      h.ExpectVerified();
      if (HasFailure()) return;  // The others would wait as long.
    }
    for (Endpoint* e : {a.get(), b.get()}) {
      std::vector<Endpoint::Write> writes;
      for (const Handoff& h : handoffs) {
        if (h.from == e) writes.push_back({h.from_blocks, {0, 66}, h.ticket.lo});
        if (h.to == e) writes.push_back(h.written());
      }
      EXPECT_TRUE(e->IsCanaryBut(0xCD, writes));
    }
  }
}

}  // namespace
}  // namespace baton
