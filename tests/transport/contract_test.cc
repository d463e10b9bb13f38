// What every KvTransport promises, for loopback and sockets alike.

#include <set>

#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/transport/transport_cluster.h"

namespace baton {
namespace {

using Kind = TransferEvent::Kind;

class TransportContractTest : public testing::TestWithParam<TransportKind> {
 protected:
  TransportCluster cluster_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Kinds, TransportContractTest,
                         testing::Values(TransportKind::kLoopback, TransportKind::kTcp,
                                         TransportKind::kTls, TransportKind::kTcpStaged,
                                         TransportKind::kTcpDevice),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(TransportContractTest, MovesTheSameBytesBetweenAnyTwoBlockSizes) {
  Incarnation incarnation = 1;
  for (auto [from_block, to_block] : std::vector<std::pair<int32_t, int32_t>>{
           {16, 16}, {1, 256}, {256, 1}, {8, 32}, {64, 16}, {32, 128}, {128, 8}}) {
    SCOPED_TRACE(testing::Message() << from_block << " to " << to_block);
    auto from = cluster_.Make({.incarnation = incarnation++,
                               .block_size = from_block,
                               .num_blocks = 310 / from_block + 2});
    auto to = cluster_.Make(
        {.incarnation = incarnation++, .block_size = to_block, .num_blocks = 310 / to_block + 2});
    const Handoff h = MakeHandoff(from.get(), to.get(), {0, 300});
    h.Run(100);
    h.ExpectVerified();
    EXPECT_TRUE(to->IsCanaryBut(0xCD, {h.written()}));
  }
}

TEST_P(TransportContractTest, LeavesThePinnedPrefixAlone) {
  auto from = cluster_.Make({.incarnation = 1, .block_size = 16});
  auto to = cluster_.Make({.incarnation = 2, .block_size = 8, .num_blocks = 64});
  const Handoff h = MakeHandoff(from.get(), to.get(), {37, 163});
  h.Run(64);
  h.ExpectVerified();
  EXPECT_TRUE(to->IsCanaryBut(0xCD, {h.written()}));
}

TEST_P(TransportContractTest, AHandoffWithNothingToSendVerifiesAtOnce) {
  auto from = cluster_.Make({.incarnation = 1});
  auto to = cluster_.Make({.incarnation = 2});
  const Handoff h = MakeHandoff(from.get(), to.get(), {32, 0});
  h.Run(64);
  h.ExpectVerified();
  EXPECT_TRUE(to->IsCanaryBut(0xCD));
}

TEST_P(TransportContractTest, EachRankSendsTheHeadsThatBothHold) {
  auto from = cluster_.Make({.incarnation = 1});
  auto low = cluster_.Make({.incarnation = 2, .block_size = 8, .place = {0, 2}});
  auto high = cluster_.Make({.incarnation = 3, .block_size = 32, .place = {1, 2}});
  Handoff a = MakeHandoff(from.get(), low.get(), {0, 90}, 0);
  Handoff b = MakeHandoff(from.get(), high.get(), {0, 90}, 1);
  a.Run(50);
  b.Run(50);
  a.ExpectVerified();
  b.ExpectVerified();
  EXPECT_TRUE(low->IsCanaryBut(0xCD, {a.written()}));
  EXPECT_TRUE(high->IsCanaryBut(0xCD, {b.written()}));
}

TEST_P(TransportContractTest, FramesOfThousandsOfSegmentsArriveWhole) {
  EndpointSpec spec{.incarnation = 1, .block_size = 1, .num_blocks = 4000, .num_layers = 1};
  auto from = cluster_.Make(spec);
  spec.incarnation = 2;
  auto to = cluster_.Make(spec);
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 4000});
  h.Run(4000);
  h.ExpectVerified();
  EXPECT_TRUE(to->IsCanaryBut(0xCD, {h.written()}));
}

TEST_P(TransportContractTest, APushLargerThanAFrameIsCut) {
  auto from = cluster_.Make({.incarnation = 1, .max_frame_bytes = 1000});
  auto to = cluster_.Make({.incarnation = 2, .block_size = 64});
  const Handoff h = MakeHandoff(from.get(), to.get(), {3, 300});
  h.Run(300);
  h.ExpectVerified();
  EXPECT_TRUE(to->IsCanaryBut(0xCD, {h.written()}));
  EXPECT_GT(to->counters().frames_accepted, 50);
}

TEST_P(TransportContractTest, ManyTicketsBetweenSeveralPeersAtOnce) {
  std::vector<std::unique_ptr<Endpoint>> from, to;
  for (int i = 0; i < 3; ++i) {
    from.push_back(cluster_.Make(
        {.incarnation = static_cast<Incarnation>(1 + i), .block_size = 8 << i, .num_blocks = 512}));
    to.push_back(cluster_.Make({.incarnation = static_cast<Incarnation>(11 + i),
                                .block_size = 32 >> i,
                                .num_blocks = 512}));
  }
  std::vector<Handoff> handoffs;
  for (int32_t i = 0; i < 45; ++i) {
    handoffs.push_back(MakeHandoff(from[i % 3].get(), to[(i / 3) % 3].get(), {i % 5, 60}, i));
    handoffs.back().to->transport->Expect(handoffs.back().expect());
    handoffs.back().from->transport->Start(handoffs.back().start());
  }
  for (int32_t chunk = 0; chunk < 60; chunk += 20) {
    for (const Handoff& h : handoffs) {
      for (int32_t layer = 0; layer < 3; ++layer) {
        h.from->transport->Push({h.ticket, layer, h.first_token + chunk, 20});
      }
    }
  }
  for (const Handoff& h : handoffs) h.from->transport->Finish(h.finish());
  for (const Handoff& h : handoffs) h.ExpectVerified();
  for (auto& e : to) {
    std::vector<Endpoint::Write> writes;
    for (const Handoff& h : handoffs) {
      if (h.to == e.get()) writes.push_back(h.written());
    }
    EXPECT_TRUE(e->IsCanaryBut(0xCD, writes));
  }
}

// Runs a handoff and aborts one side after `steps` of its calls. Whatever the moment, each side
// ends once, and what the receiver does with its blocks afterwards stays.
void AbortAfter(TransportCluster* cluster, int steps, bool at_receiver, Incarnation base) {
  SCOPED_TRACE(testing::Message() << (at_receiver ? "receiver" : "sender") << " after " << steps);
  auto from = cluster->Make({.incarnation = base, .k_dim = 64, .max_frame_bytes = 4096});
  auto to = cluster->Make({.incarnation = base + 1, .k_dim = 64, .max_frame_bytes = 4096});
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 900});
  to->transport->Expect(h.expect());
  std::vector<std::function<void()>> calls;
  calls.push_back([&] { from->transport->Start(h.start()); });
  for (int32_t layer = 0; layer < 3; ++layer) {
    calls.push_back([&, layer] { from->transport->Push({h.ticket, layer, 0, 900}); });
  }
  calls.push_back([&] { from->transport->Finish(h.finish()); });
  for (int i = 0; i < steps; ++i) calls[i]();
  (at_receiver ? to : from)->transport->Abort(h.ticket);
  const TransferEvent first_end = at_receiver ? to->log.WaitEnded(h.ticket, true) : TransferEvent{};
  if (at_receiver && !first_end.status.ok()) to->FillCanary(0x77);
  for (size_t i = steps; i < calls.size(); ++i) calls[i]();
  from->transport->Abort(h.ticket);
  to->transport->Abort(h.ticket);
  const TransferEvent sent = steps == 0 ? TransferEvent{} : from->log.WaitEnded(h.ticket, false);
  const TransferEvent received = to->log.WaitEnded(h.ticket, true);
  // Before Finish nothing can be verified: the side that aborts ends as CANCELLED, the other badly.
  if (steps >= 1 && steps <= 4) {
    const TransferEvent& aborted = at_receiver ? received : sent;
    EXPECT_EQ(aborted.status.code(), absl::StatusCode::kCancelled) << aborted.status;
    EXPECT_FALSE((at_receiver ? sent : received).status.ok());
  }
  // The blocks go to somebody else; nothing of the old transfer may land in them.
  if (!received.status.ok()) {
    to->FillCanary(0x77);
    const Handoff next = MakeHandoff(from.get(), to.get(), {0, 16}, 60);
    next.Run(16);
    next.ExpectVerified();
    EXPECT_TRUE(to->IsCanaryBut(0x77, {next.written()}));
  }
  from->transport.reset();
  to->transport.reset();
  EXPECT_EQ(from->log.Count(Kind::kEnded, h.ticket, false), 1);
  EXPECT_EQ(to->log.Count(Kind::kEnded, h.ticket, true), 1);
  EXPECT_LE(to->log.Count(Kind::kBegun, h.ticket, true), 1);
}

TEST_P(TransportContractTest, AnAbortAtAnyMomentEndsEachSideOnceAndWritesNothingAfter) {
  Incarnation base = 100;
  for (int steps = 0; steps <= 5; ++steps) {
    for (bool at_receiver : {false, true}) {
      AbortAfter(&cluster_, steps, at_receiver, base);
      base += 2;
    }
  }
}

// The side that aborts has called nothing else; its peer, which has not either, learns of it.
TEST_P(TransportContractTest, AnAbortOfATransferThatHasBegunEndsBothSides) {
  for (const bool at_receiver : {false, true}) {
    SCOPED_TRACE(at_receiver ? "receiver" : "sender");
    const Incarnation base = at_receiver ? 10 : 20;
    auto from = cluster_.Make({.incarnation = base});
    auto to = cluster_.Make({.incarnation = base + 1});
    const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
    to->transport->Expect(h.expect());
    from->transport->Start(h.start());
    from->transport->Push({h.ticket, 0, 0, 100});
    ASSERT_TRUE(to->log.WaitBegun(h.ticket));
    (at_receiver ? to : from)->transport->Abort(h.ticket);
    const absl::Status sent = from->log.WaitEnded(h.ticket, false).status;
    const absl::Status received = to->log.WaitEnded(h.ticket, true).status;
    EXPECT_EQ((at_receiver ? received : sent).code(), absl::StatusCode::kCancelled);
    EXPECT_EQ((at_receiver ? sent : received).code(), absl::StatusCode::kAborted);
    to->FillCanary(0x77);
    h.PushAll(100);
    from->transport->Finish(h.finish());
    const Handoff next = MakeHandoff(from.get(), to.get(), {0, 16}, 60);
    next.Run(16);
    next.ExpectVerified();
    EXPECT_TRUE(to->IsCanaryBut(0x77, {next.written()}));
  }
}

// A sender between two chunks has nothing to say that could be refused: it has to be told.
TEST_P(TransportContractTest, AnAbortOfTheReceiverReachesASenderThatWaitsForItsModel) {
  auto from = cluster_.Make({.incarnation = 10});
  auto to = cluster_.Make({.incarnation = 11});
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  to->transport->Expect(h.expect());
  from->transport->Start(h.start());
  from->transport->Push({h.ticket, 0, 0, 100});
  ASSERT_TRUE(to->log.WaitBegun(h.ticket));
  const KvLayout& layout = to->cache->layout();
  const int64_t bytes = int64_t{100} * to->spec.heads().count *
                        (HeadTokenBytes(layout, 0, KvPlane::kK) +
                         HeadTokenBytes(layout, 0, KvPlane::kV));
  while (to->counters().bytes_accepted < bytes) std::this_thread::yield();
  to->transport->Abort(h.ticket);
  EXPECT_EQ(from->log.WaitEnded(h.ticket, false).status.code(), absl::StatusCode::kAborted);
}

TEST_P(TransportContractTest, AnUnknownTicketIsRefused) {
  auto from = cluster_.Make({.incarnation = 1});
  auto to = cluster_.Make({.incarnation = 2});
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  from->transport->Start(h.start());
  h.PushAll(100);
  EXPECT_EQ(from->log.WaitEnded(h.ticket, false).status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(to->IsCanaryBut(0xCD));
  EXPECT_GE(to->counters().refused[static_cast<size_t>(AbortCode::kUnknownTicket)], 1);
  // The connection is still good.
  const Handoff next = MakeHandoff(from.get(), to.get(), {0, 100}, 1);
  next.Run(50);
  next.ExpectVerified();
}

TEST_P(TransportContractTest, TheTicketOfAnotherSenderIsRefusedAndStays) {
  auto from = cluster_.Make({.incarnation = 1});
  auto thief = cluster_.Make({.incarnation = 3});
  auto to = cluster_.Make({.incarnation = 2});
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  Handoff stolen = MakeHandoff(thief.get(), to.get(), {0, 100});
  stolen.ticket = h.ticket;
  to->transport->Expect(h.expect());
  thief->transport->Start(stolen.start());
  stolen.PushAll(100);
  EXPECT_EQ(thief->log.WaitEnded(h.ticket, false).status.code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(to->IsCanaryBut(0xCD));
  from->transport->Start(h.start());
  h.PushAll(100);
  from->transport->Finish(h.finish());
  h.ExpectVerified();
  EXPECT_TRUE(to->IsCanaryBut(0xCD, {h.written()}));
}

TEST_P(TransportContractTest, AStaleEpochIsRefusedBeforeAByteIsWritten) {
  auto from = cluster_.Make({.incarnation = 1});
  auto to = cluster_.Make({.incarnation = 2});
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  to->transport->Expect(h.expect());
  (*to->epochs)[h.to_blocks[3]].fetch_add(1);
  from->transport->Start(h.start());
  h.PushAll(100);
  EXPECT_EQ(from->log.WaitEnded(h.ticket, false).status.code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(to->log.WaitEnded(h.ticket, true).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(to->IsCanaryBut(0xCD));
  EXPECT_GE(to->counters().refused[static_cast<size_t>(AbortCode::kStaleEpoch)], 1);
}

TEST_P(TransportContractTest, ARangeOutsideTheTicketIsRefused) {
  auto from = cluster_.Make({.incarnation = 1});
  auto to = cluster_.Make({.incarnation = 2});
  Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  ExpectArgs shorter = h.expect();
  shorter.first_token = 40;
  to->transport->Expect(shorter);
  from->transport->Start(h.start());
  h.PushAll(100);
  EXPECT_EQ(from->log.WaitEnded(h.ticket, false).status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(to->log.WaitEnded(h.ticket, true).status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(to->IsCanaryBut(0xCD));
}

TEST_P(TransportContractTest, AFinalFrameWithoutAllBytesOrWithOtherDigestsIsNotVerified) {
  auto from = cluster_.Make({.incarnation = 1});
  auto to = cluster_.Make({.incarnation = 2});
  const Handoff missing = MakeHandoff(from.get(), to.get(), {0, 100}, 0);
  to->transport->Expect(missing.expect());
  from->transport->Start(missing.start());
  from->transport->Push({missing.ticket, 0, 0, 100});
  from->transport->Push({missing.ticket, 2, 0, 100});
  from->transport->Finish(missing.finish());
  EXPECT_EQ(to->log.WaitEnded(missing.ticket, true).status.code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(from->log.WaitEnded(missing.ticket, false).status.ok());

  Handoff other = MakeHandoff(from.get(), to.get(), {0, 100}, 1);
  to->transport->Expect(other.expect());
  other.digests.tokens ^= 1;
  from->transport->Start(other.start());
  other.PushAll(100);
  from->transport->Finish(other.finish());
  EXPECT_EQ(to->log.WaitEnded(other.ticket, true).status.code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(from->log.WaitEnded(other.ticket, false).status.ok());
}

TEST_P(TransportContractTest, AWrongKeyIsUnauthenticatedAndWritesNothing) {
  auto from = cluster_.Make({.incarnation = 1});
  auto to = cluster_.Make({.incarnation = 2});
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  to->transport->Expect(h.expect());
  StartArgs start = h.start();
  start.key[7] ^= 1;
  from->transport->Start(start);
  h.PushAll(100);
  from->transport->Finish(h.finish());
  EXPECT_EQ(from->log.WaitEnded(h.ticket, false).status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(to->IsCanaryBut(0xCD));
  EXPECT_EQ(to->log.Count(Kind::kEnded, h.ticket, true), 0);
}

TEST_P(TransportContractTest, AnotherIncarnationAtTheAddressIsUnavailable) {
  auto from = cluster_.Make({.incarnation = 1});
  auto to = cluster_.Make({.incarnation = 2});
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  StartArgs start = h.start();
  start.receiver = 5;
  start.key = DerivePairKey(to->secret, 1, 5);
  from->transport->Start(start);
  EXPECT_EQ(from->log.WaitEnded(h.ticket, false).status.code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportContractTest, NobodyAtTheAddressIsUnavailable) {
  auto from = cluster_.Make({.incarnation = 1});
  auto to = cluster_.Make({.incarnation = 2});
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  const StartArgs start = h.start();
  to->transport.reset();
  from->transport->Start(start);
  h.PushAll(100);
  EXPECT_EQ(from->log.WaitEnded(h.ticket, false).status.code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportContractTest, CallsThatCannotBeEndWithTheReason) {
  auto from = cluster_.Make({.incarnation = 1});
  auto to = cluster_.Make({.incarnation = 2});
  Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  ExpectArgs expect = h.expect();
  expect.blocks[0].block = 1000;
  to->transport->Expect(expect);
  EXPECT_EQ(to->log.WaitEnded(h.ticket, true).status.code(), absl::StatusCode::kInvalidArgument);
  StartArgs start = h.start();
  start.blocks[0] = -1;
  from->transport->Start(start);
  EXPECT_EQ(from->log.WaitEnded(h.ticket, false).status.code(), absl::StatusCode::kInvalidArgument);
  h = MakeHandoff(from.get(), to.get(), {0, 100}, 1);
  to->transport->Expect(h.expect());
  from->transport->Start(h.start());
  from->transport->Push({h.ticket, 3, 0, 10});
  EXPECT_EQ(from->log.WaitEnded(h.ticket, false).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(TransportContractTest, LateRepeatedAndUnknownCallsAreCountedAndDoNothing) {
  auto from = cluster_.Make({.incarnation = 1});
  auto to = cluster_.Make({.incarnation = 2});
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
  to->transport->Expect(h.expect());
  to->transport->Expect(h.expect());
  from->transport->Start(h.start());
  from->transport->Start(h.start());
  h.PushAll(100);
  from->transport->Finish(h.finish());
  h.ExpectVerified();
  h.PushAll(100);
  from->transport->Finish(h.finish());
  from->transport->Abort(h.ticket);
  to->transport->Abort(h.ticket);
  const Handoff next = MakeHandoff(from.get(), to.get(), {0, 100}, 1);
  next.Run(100);
  next.ExpectVerified();
  EXPECT_EQ(from->counters().ignored_calls, 1 + 3 + 1 + 1);
  EXPECT_EQ(to->counters().ignored_calls, 1 + 1);
  EXPECT_EQ(from->log.Count(Kind::kEnded, h.ticket, false), 1);
  EXPECT_EQ(to->log.Count(Kind::kEnded, h.ticket, true), 1);
}

TEST_P(TransportContractTest, DestroyingEitherSideEndsEverythingOnce) {
  for (bool receiver_dies : {false, true}) {
    const Incarnation base = receiver_dies ? 10 : 20;
    auto from = cluster_.Make({.incarnation = base, .num_blocks = 256});
    auto to = cluster_.Make({.incarnation = base + 1, .num_blocks = 256});
    std::vector<Handoff> handoffs;
    for (int32_t i = 0; i < 8; ++i) {
      handoffs.push_back(MakeHandoff(from.get(), to.get(), {0, 400}, i));
      to->transport->Expect(handoffs.back().expect());
      from->transport->Start(handoffs.back().start());
      handoffs.back().PushAll(400);
    }
    const Handoff idle = MakeHandoff(from.get(), to.get(), {0, 1}, 210);
    to->transport->Expect(idle.expect());
    ASSERT_TRUE(to->log.WaitBegun(handoffs.back().ticket));
    (receiver_dies ? to : from)->transport.reset();
    for (const Handoff& h : handoffs) {
      const auto dead = absl::StatusCode::kCancelled;
      const auto left = absl::StatusCode::kUnavailable;
      EXPECT_EQ(from->log.WaitEnded(h.ticket, false).status.code(), receiver_dies ? left : dead);
      EXPECT_EQ(to->log.WaitEnded(h.ticket, true).status.code(), receiver_dies ? dead : left);
    }
    // A ticket that had not begun is not the lost sender's.
    EXPECT_EQ(to->log.Count(Kind::kEnded, idle.ticket, true), receiver_dies ? 1 : 0);
    from->transport.reset();
    to->transport.reset();
    for (const Handoff& h : handoffs) {
      EXPECT_EQ(from->log.Count(Kind::kEnded, h.ticket, false), 1);
      EXPECT_EQ(to->log.Count(Kind::kEnded, h.ticket, true), 1);
    }
    EXPECT_EQ(to->log.Count(Kind::kEnded, idle.ticket, true), 1);
  }
}

// Aborts, forgotten finishes and tickets unknown to one side, in random order.
TEST_P(TransportContractTest, UnderRandomCallsEverySideEndsExactlyOnceAndVerifiedBytesAreRight) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Incarnation base = 1000 + 2 * seed;
    auto from = cluster_.Make(
        {.incarnation = base, .block_size = 8, .num_blocks = 800, .max_frame_bytes = 2048});
    auto to = cluster_.Make({.incarnation = base + 1, .block_size = 16, .num_blocks = 800});
    std::vector<Handoff> handoffs;
    std::vector<std::vector<std::function<void()>>> scripts;
    for (int32_t i = 0; i < 24; ++i) {
      handoffs.push_back(MakeHandoff(from.get(), to.get(), {3, 200}, i));
    }
    std::set<int32_t> expected, started;
    for (int32_t i = 0; i < 24; ++i) {
      const Handoff& h = handoffs[i];
      auto& script = scripts.emplace_back();
      if (random.Below(8) != 0) {
        expected.insert(i);
        script.push_back([&h] { h.to->transport->Expect(h.expect()); });
      }
      started.insert(i);
      script.push_back([&h] { h.from->transport->Start(h.start()); });
      for (int32_t layer = 0; layer < 3; ++layer) {
        script.push_back([&h, layer] { h.from->transport->Push({h.ticket, layer, 3, 200}); });
      }
      if (random.Below(4) != 0) script.push_back([&h] { h.from->transport->Finish(h.finish()); });
      if (random.Below(2) == 0) {
        Endpoint* side = random.Below(2) == 0 ? h.from : h.to;
        script.insert(script.begin() + 2 + static_cast<ptrdiff_t>(random.Below(script.size() - 1)),
                      [&h, side] { side->transport->Abort(h.ticket); });
      }
    }
    std::vector<size_t> at(scripts.size());
    for (size_t left = scripts.size(); left > 0;) {
      const size_t i = random.Below(scripts.size());
      if (at[i] == scripts[i].size()) continue;
      scripts[i][at[i]++]();
      if (at[i] == scripts[i].size()) --left;
    }
    from->transport.reset();
    to->transport.reset();
    for (int32_t i = 0; i < 24; ++i) {
      const Handoff& h = handoffs[i];
      EXPECT_EQ(from->log.Count(Kind::kEnded, h.ticket, false), started.contains(i) ? 1 : 0);
      EXPECT_EQ(to->log.Count(Kind::kEnded, h.ticket, true), expected.contains(i) ? 1 : 0);
      if (!expected.contains(i) || !to->log.WaitEnded(h.ticket, true).status.ok()) continue;
      auto image = cluster_.Make(
          {.incarnation = 5000 + base * 100 + i, .block_size = 16, .num_blocks = 800});
      image->FillPattern(h.to_blocks, h.tokens(), h.ticket.lo);
      // Verified blocks hold the pattern, whatever happened to the others.
      for (BlockId b : h.to_blocks) {
        if (b == h.to_blocks.front() || b == h.to_blocks.back()) continue;
        const auto want = image->cache->HeadBlock(1, KvPlane::kV, b, 2);
        const auto got = to->cache->HeadBlock(1, KvPlane::kV, b, 2);
        EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin()));
      }
    }
  }
}

}  // namespace
}  // namespace baton
