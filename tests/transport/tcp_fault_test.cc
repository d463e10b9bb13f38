// What happens on a line that flips, cuts, repeats, drops and stalls.

#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/transport/fault_proxy.h"
#include "tests/transport/transport_cluster.h"

namespace baton {
namespace {

using Kind = TransferEvent::Kind;

// Bytes the sender writes before its first data frame: hello and proof.
constexpr int64_t kHandshakeBytes =
    2 * (kHeaderBytes + kTrailerBytes) + int64_t{kHelloBytes} + kProofBytes;

class TcpFaultTest : public testing::Test {
 protected:
  // A sender, a receiver and a proxy between them.
  void SetUp() override { Reset({}); }

  void Reset(const EndpointSpec& sender) {
    from_.reset();
    proxy_.reset();
    to_.reset();
    EndpointSpec spec = sender;
    spec.incarnation = 1;
    from_ = cluster_.Make(spec);
    to_ = cluster_.Make({.incarnation = 2, .block_size = 8});
    proxy_ = std::make_unique<FaultProxy>(to_->address);
  }

  Handoff Begin(TokenRange tokens = {0, 100}, int32_t index = 0) {
    Handoff h = MakeHandoff(from_.get(), to_.get(), tokens, index);
    h.via = proxy_->endpoint();
    return h;
  }

  // Both sides end, once; the receiver's ticket is given up by its node if it had not begun.
  std::pair<absl::Status, absl::Status> EndOfBoth(const Handoff& h) {
    const absl::Status sent = from_->log.WaitEnded(h.ticket, false).status;
    if (to_->log.Count(Kind::kBegun, h.ticket, true) == 0) to_->transport->Abort(h.ticket);
    const absl::Status received = to_->log.WaitEnded(h.ticket, true).status;
    return {sent, received};
  }

  TransportCluster cluster_{TransportKind::kTcp};
  std::unique_ptr<Endpoint> from_;
  std::unique_ptr<Endpoint> to_;
  std::unique_ptr<FaultProxy> proxy_;
};

TEST_F(TcpFaultTest, AQuietProxyChangesNothing) {
  const Handoff h = Begin();
  h.Run(50);
  h.ExpectVerified();
  EXPECT_TRUE(to_->IsCanaryBut(0xCD, {h.written()}));
}

TEST_F(TcpFaultTest, NoFlippedBitIsEverVerifiedIntoOtherBytes) {
  Random random(4);
  int caught = 0;
  for (int i = 0; i < 60; ++i) {
    Reset({});
    const Handoff h = Begin({0, 40});
    const int64_t total = kHandshakeBytes + 40 * 3 * 4 * (16 + 24);
    const int64_t bit = static_cast<int64_t>(random.Below(static_cast<uint64_t>(total) * 8));
    SCOPED_TRACE(testing::Message() << "bit " << bit % 8 << " of byte " << bit / 8);
    proxy_->Set({.flip_bit = bit});
    h.Run(20);
    const auto [sent, received] = EndOfBoth(h);
    EXPECT_FALSE(sent.ok());
    EXPECT_FALSE(received.ok());
    if (received.code() == absl::StatusCode::kDataLoss) ++caught;
    from_->transport.reset();
    to_->transport.reset();
    EXPECT_EQ(from_->log.Count(Kind::kEnded, h.ticket, false), 1);
    EXPECT_EQ(to_->log.Count(Kind::kEnded, h.ticket, true), 1);
  }
  EXPECT_GT(caught, 20);  // Most bits are payload.
}

TEST_F(TcpFaultTest, AFlippedPayloadBitFailsThatTicketAloneAndTheConnectionStays) {
  const Handoff bad = Begin({0, 40}, 0);
  proxy_->Set({.flip_bit = (kHandshakeBytes + static_cast<int64_t>(kHeaderBytes) + 5) * 8});
  bad.Run(40);
  const auto [sent, received] = EndOfBoth(bad);
  EXPECT_EQ(sent.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(received.code(), absl::StatusCode::kDataLoss);
  const Handoff good = Begin({0, 40}, 1);
  good.Run(40);
  good.ExpectVerified();
  EXPECT_EQ(to_->counters().checksum_failures, 1);
  EXPECT_EQ(from_->counters().opened_connections, 1);
}

TEST_F(TcpFaultTest, ACutAtAnyByteEndsBothSidesOnceAndANewConnectionWorks) {
  Random random(5);
  for (int i = 0; i < 40; ++i) {
    Reset({.max_frame_bytes = 1500});
    const Handoff h = Begin({0, 60}, 0);
    const int64_t total = kHandshakeBytes + 60 * 3 * 4 * (16 + 24);
    const int64_t at = static_cast<int64_t>(random.Below(static_cast<uint64_t>(total)));
    SCOPED_TRACE(testing::Message() << "byte " << at);
    proxy_->Set({.cut_at_byte = at});
    h.Run(60);
    const auto [sent, received] = EndOfBoth(h);
    EXPECT_EQ(sent.code(), absl::StatusCode::kUnavailable);
    EXPECT_FALSE(received.ok());
    proxy_->Set({});
    to_->FillCanary(0x11);
    const Handoff next = Begin({0, 60}, 1);
    next.Run(60);
    next.ExpectVerified();
    EXPECT_TRUE(to_->IsCanaryBut(0x11, {next.written()}));
    EXPECT_EQ(from_->log.Count(Kind::kEnded, h.ticket, false), 1);
    EXPECT_EQ(to_->log.Count(Kind::kEnded, h.ticket, true), 1);
  }
}

TEST_F(TcpFaultTest, ARepeatedFrameIsACountedNoOp) {
  for (int64_t frame = 0; frame < 9; ++frame) {
    SCOPED_TRACE(frame);
    Reset({});
    proxy_->Set({.duplicate_frame = frame});
    const Handoff h = Begin({0, 60});
    h.Run(60);  // Frames: hello, proof, 3 x (K, V), final.
    h.ExpectVerified();
    to_->transport->Expect(Begin({0, 1}, 30).expect());
    EXPECT_TRUE(to_->IsCanaryBut(0xCD, {h.written()}));
    // The repetition of the last frame may still be on its way; another handoff comes after it.
    const Handoff next = Begin({0, 20}, 1);
    next.Run(20);
    next.ExpectVerified();
    EXPECT_EQ(to_->counters().duplicate_frames, 1);
    EXPECT_EQ(to_->counters().malformed, 0);
  }
}

TEST_F(TcpFaultTest, AMissingFrameDropsTheConnection) {
  proxy_->Set({.drop_frame = 4});
  const Handoff h = Begin();
  h.Run(50);
  const auto [sent, received] = EndOfBoth(h);
  EXPECT_EQ(sent.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(received.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(to_->counters().malformed, 1);
}

TEST_F(TcpFaultTest, AStalledLineEndsTheSenderByItsDeadline) {
  Reset({.time_scale = 0.2});
  proxy_->Set({.stall_at_byte = kHandshakeBytes + 5000});
  const Handoff h = Begin();
  h.Run(50);
  EXPECT_EQ(from_->log.WaitEnded(h.ticket, false).status.code(),
            absl::StatusCode::kDeadlineExceeded);
  // The receiver has no deadline of its own: its lease ends it.
  EXPECT_EQ(to_->log.Count(Kind::kEnded, h.ticket, true), 0);
  to_->transport->Abort(h.ticket);
  EXPECT_EQ(to_->log.WaitEnded(h.ticket, true).status.code(), absl::StatusCode::kCancelled);
}

TEST_F(TcpFaultTest, AStallInTheMiddleOfAFrameClosesTheConnection) {
  // Far more than the sockets' buffers hold, so that the sender is stuck within a frame.
  EndpointSpec spec{.incarnation = 1, .num_blocks = 64, .k_dim = 4096, .time_scale = 0.2};
  from_ = cluster_.Make(spec);
  spec.incarnation = 2;
  spec.time_scale = 1;
  to_ = cluster_.Make(spec);
  proxy_ = std::make_unique<FaultProxy>(to_->address);
  proxy_->Set({.stall_at_byte = kHandshakeBytes + 100000});
  const Handoff stuck = Begin({0, 500}, 0);
  stuck.Run(500);
  EXPECT_FALSE(from_->log.WaitEnded(stuck.ticket, false).status.ok());
  proxy_->Set({});
  const Handoff next = Begin({0, 20}, 31);
  next.Run(20);
  next.ExpectVerified();
  EXPECT_EQ(from_->counters().opened_connections, 2);
  // The new connection of the same sender ended what had begun on the old one.
  EXPECT_EQ(to_->log.WaitEnded(stuck.ticket, true).status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(TcpFaultTest, AStalledHandshakeIsUnavailable) {
  Reset({.time_scale = 0.1});
  proxy_->Set({.stall_at_byte = 100});
  const Handoff h = Begin();
  h.Run(50);
  EXPECT_EQ(from_->log.WaitEnded(h.ticket, false).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(to_->log.Count(Kind::kBegun, h.ticket, true), 0);
}

TEST_F(TcpFaultTest, AnAbortWhileAPayloadIsUnderWayEndsAtOnceAndWritesNothingMore) {
  proxy_->Set({.stall_at_byte = kHandshakeBytes + 1000});
  const Handoff h = Begin();
  h.Run(100);
  ASSERT_TRUE(to_->log.WaitBegun(h.ticket));
  to_->transport->Abort(h.ticket);
  EXPECT_EQ(to_->log.WaitEnded(h.ticket, true).status.code(), absl::StatusCode::kCancelled);
  to_->FillCanary(0x22);
  // The line moves again: the rest of the frame must not land in the blocks.
  proxy_->Set({});
  from_->transport->Abort(h.ticket);
  from_->log.WaitEnded(h.ticket, false);
  from_->transport.reset();
  to_->transport.reset();
  EXPECT_TRUE(to_->IsCanaryBut(0x22));
}

TEST_F(TcpFaultTest, ASenderThatGivesUpMidFrameAbandonsItAndTheOthersGoOn) {
  // A frame larger than the socket takes at once, so that the abort finds it half written.
  EndpointSpec spec{.incarnation = 1, .num_blocks = 64, .k_dim = 4096};
  from_ = cluster_.Make(spec);
  spec.incarnation = 2;
  to_ = cluster_.Make(spec);
  for (int32_t i = 0; i < 4; ++i) {
    Handoff quits = MakeHandoff(from_.get(), to_.get(), {0, 240}, i);
    Handoff stays = MakeHandoff(from_.get(), to_.get(), {0, 16}, 60 + i);
    to_->transport->Expect(quits.expect());
    from_->transport->Start(quits.start());
    quits.PushAll(240);
    ASSERT_TRUE(to_->log.WaitBegun(quits.ticket));
    from_->transport->Abort(quits.ticket);
    from_->log.WaitEnded(quits.ticket, false);
    from_->FillPattern(quits.from_blocks, {0, 240}, 424242);  // The blocks have a new owner.
    stays.Run(16);
    stays.ExpectVerified();
    EXPECT_EQ(to_->log.WaitEnded(quits.ticket, true).status.code(), absl::StatusCode::kAborted);
  }
  EXPECT_EQ(from_->counters().opened_connections, 1);
  EXPECT_EQ(to_->counters().checksum_failures, 0);
}

TEST_F(TcpFaultTest, OneConnectionServesManyHandoffs) {
  for (int32_t i = 0; i < 8; ++i) {
    const Handoff h = Begin({0, 20}, i);
    h.Run(20);
    h.ExpectVerified();
  }
  EXPECT_EQ(from_->counters().opened_connections, 1);
  EXPECT_EQ(to_->counters().authenticated_connections, 1);
}

}  // namespace
}  // namespace baton
