// What happens on a line that flips, cuts, repeats, drops and stalls.

#include "common/base/random.h"
#include "common/transport/handshake.h"
#include "common/transport/wire.h"
#include "gtest/gtest.h"
#include "tests/transport/fault_proxy.h"
#include "tests/transport/transport_cluster.h"

namespace baton {
namespace {

using Kind = TransferEvent::Kind;

// Bytes the sender writes before its first data frame: hello and proof.
constexpr int64_t kHandshakeBytes =
    2 * (kHeaderBytes + kTrailerBytes) + int64_t{kHelloBytes} + kProofBytes;

class TcpFaultTest : public testing::TestWithParam<TransportKind> {
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

  TransportCluster cluster_{GetParam()};
  std::unique_ptr<Endpoint> from_;
  std::unique_ptr<Endpoint> to_;
  std::unique_ptr<FaultProxy> proxy_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, TcpFaultTest,
                         testing::Values(TransportKind::kTcp, TransportKind::kTls,
                                         TransportKind::kTcpStaged),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(TcpFaultTest, AQuietProxyChangesNothing) {
  const Handoff h = Begin();
  h.Run(50);
  h.ExpectVerified();
  EXPECT_TRUE(to_->IsCanaryBut(0xCD, {h.written()}));
}

TEST_P(TcpFaultTest, UnderTlsAFlippedBitAnywhereEndsTheConnectionAndNothingElseIsWritten) {
  if (GetParam() != TransportKind::kTls) GTEST_SKIP() << "see the tests of frames";
  for (const int64_t byte : {0, 70, 180, 250, 300, 400, 1000, 5000, 9000}) {
    SCOPED_TRACE(testing::Message() << "byte " << byte);
    Reset({});
    const Handoff h = Begin({0, 100});
    proxy_->Set({.flip_bit = byte * 8 + byte % 8});
    h.Run(50);
    const auto [sent, received] = EndOfBoth(h);
    EXPECT_FALSE(sent.ok());
    EXPECT_FALSE(received.ok());
    EXPECT_EQ(to_->counters().checksum_failures, 0);
    EXPECT_EQ(to_->counters().malformed + to_->counters().failed_handshakes, 1);
    from_->transport.reset();
    to_->transport.reset();
    EXPECT_EQ(from_->log.Count(Kind::kEnded, h.ticket, false), 1);
    EXPECT_EQ(to_->log.Count(Kind::kEnded, h.ticket, true), 1);
  }
}

// Where one frame lies on the line, and what may be flipped in it: a bit of every header field, of
// the payload's ends and middle, and of both trailer fields.
struct Place {
  enum class Part { kHeader, kPayload, kChecksum, kFlags };
  int64_t byte = 0;  // Of the frame.
  Part part = Part::kHeader;
};

std::vector<Place> Places(int64_t payload) {
  std::vector<Place> places;
  for (int64_t field : {0, 4, 6, 7, 8, 16, 24, 32, 36, 40, 44, 48, 52, 56, 60, 64, 72, 76}) {
    places.push_back({field, Place::Part::kHeader});
  }
  if (payload == 0) return places;
  const int64_t header = kHeaderBytes;
  for (int64_t byte : {int64_t{0}, payload / 2, payload - 1}) {
    places.push_back({header + byte, Place::Part::kPayload});
  }
  places.push_back({header + payload, Place::Part::kChecksum});
  places.push_back({header + payload + 4, Place::Part::kFlags});
  return places;
}

TEST_P(TcpFaultTest, AFlippedBitOfAnyFieldOfAnyFrameIsFoundWhereItIs) {
  if (GetParam() == TransportKind::kTls) GTEST_SKIP() << "its frames are sealed";
  // 40 tokens in one push for each of three layers: hello, proof, 3 x (K, V), final.
  std::vector<int64_t> payloads{kHelloBytes, kProofBytes};
  for (int i = 0; i < 3; ++i) payloads.insert(payloads.end(), {40 * 4 * 16, 40 * 4 * 24});
  const FinishArgs finish = Begin({0, 40}).finish();
  payloads.push_back(
      static_cast<int64_t>(EncodeFinal({finish.digests, 40, finish.first})->size()));
  int64_t start = 0;
  int bit = 0;
  for (size_t frame = 0; frame < payloads.size(); ++frame) {
    const bool handshake = frame < 2;
    const bool final = frame + 1 == payloads.size();
    for (const Place& place : Places(payloads[frame])) {
      if (HasFailure()) return;  // The others would say the same, and wait for it.
      SCOPED_TRACE(testing::Message() << "frame " << frame << ", byte " << place.byte);
      Reset({});
      const Handoff h = Begin({0, 40});
      proxy_->Set({.flip_bit = (start + place.byte) * 8 + bit++ % 8});
      h.Run(40);
      const auto [sent, received] = EndOfBoth(h);
      EXPECT_FALSE(sent.ok());
      EXPECT_FALSE(received.ok());
      const bool header = place.part == Place::Part::kHeader;
      const bool gave_up = place.part == Place::Part::kFlags && !final;
      if (handshake || header) {
        EXPECT_EQ(sent.code(), absl::StatusCode::kUnavailable);
        EXPECT_EQ(to_->counters().malformed, 1);
      } else if (gave_up) {
        EXPECT_EQ(received.code(), absl::StatusCode::kAborted);
        EXPECT_EQ(to_->counters().abandoned_frames, 1);
      } else {
        EXPECT_EQ(sent.code(), absl::StatusCode::kDataLoss);
        EXPECT_EQ(received.code(), absl::StatusCode::kDataLoss);
        EXPECT_EQ(to_->counters().checksum_failures, 1);
      }
      from_->transport.reset();
      to_->transport.reset();
      EXPECT_EQ(from_->log.Count(Kind::kEnded, h.ticket, false), 1);
      EXPECT_EQ(to_->log.Count(Kind::kEnded, h.ticket, true), 1);
    }
    start += kHeaderBytes + payloads[frame] + kTrailerBytes;
  }
}

TEST_P(TcpFaultTest, AFlippedBitOfAnyAnswerEndsTheSenderWithoutAVerdict) {
  if (GetParam() == TransportKind::kTls) GTEST_SKIP() << "its frames are sealed";
  // The answers: challenge, accepted, then the acknowledgement of the only push or, without a
  // token to send, the verdict.
  const int64_t challenge = kHeaderBytes + kChallengeBytes + kTrailerBytes;
  struct Answer {
    int64_t start = 0;
    int64_t payload = 0;
    bool verdict = false;
  };
  int bit = 0;
  for (const Answer& answer : {Answer{0, kChallengeBytes}, Answer{challenge},
                               Answer{challenge + int64_t{kHeaderBytes}},
                               Answer{challenge + int64_t{kHeaderBytes}, 0, true}}) {
    for (const Place& place : Places(answer.payload)) {
      if (HasFailure()) return;
      SCOPED_TRACE(testing::Message() << "answer at " << answer.start << ", byte " << place.byte);
      Reset({});
      const Handoff h = Begin(answer.verdict ? TokenRange{40, 0} : TokenRange{0, 40});
      proxy_->Set({.flip_answer_bit = (answer.start + place.byte) * 8 + bit++ % 8});
      to_->transport->Expect(h.expect());
      from_->transport->Start(h.start());
      if (answer.verdict) {
        from_->transport->Finish(h.finish());
      } else {
        from_->transport->Push({h.ticket, 0, 0, 40});
      }
      EXPECT_EQ(from_->log.WaitEnded(h.ticket, false).status.code(),
                absl::StatusCode::kUnavailable);
      EXPECT_EQ(from_->counters().malformed, 1);
      from_->transport.reset();
      EXPECT_EQ(from_->log.Count(Kind::kEnded, h.ticket, false), 1);
    }
  }
}

TEST_P(TcpFaultTest, AFlippedPayloadBitFailsThatTicketAloneAndTheConnectionStays) {
  if (GetParam() == TransportKind::kTls) GTEST_SKIP() << "its frames are sealed";
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

TEST_P(TcpFaultTest, ACutAtAnyByteEndsBothSidesOnceAndANewConnectionWorks) {
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

TEST_P(TcpFaultTest, ARepeatedFrameIsACountedNoOp) {
  if (GetParam() == TransportKind::kTls) GTEST_SKIP() << "its frames are sealed";
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

TEST_P(TcpFaultTest, AnyMissingFrameDropsTheConnection) {
  if (GetParam() == TransportKind::kTls) GTEST_SKIP() << "its frames are sealed";
  // Frames: hello, proof, 3 x (K, V), final. Nothing comes behind the handshake's or the last.
  for (int64_t frame = 2; frame < 8; ++frame) {
    SCOPED_TRACE(frame);
    Reset({});
    proxy_->Set({.drop_frame = frame});
    const Handoff h = Begin({0, 60});
    h.Run(60);
    const auto [sent, received] = EndOfBoth(h);
    EXPECT_EQ(sent.code(), absl::StatusCode::kUnavailable);
    EXPECT_FALSE(received.ok());
    EXPECT_EQ(to_->counters().malformed, 1);
  }
}

TEST_P(TcpFaultTest, AStalledLineEndsTheSenderByItsDeadline) {
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

TEST_P(TcpFaultTest, AStallInTheMiddleOfAFrameClosesTheConnection) {
  // Far more than the sockets' buffers hold, so that the sender is stuck within a frame.
  EndpointSpec spec{.incarnation = 1, .num_blocks = 38, .k_dim = 1024};
  from_ = cluster_.Make(spec);
  spec.incarnation = 2;
  to_ = cluster_.Make(spec);
  proxy_ = std::make_unique<FaultProxy>(to_->address);
  proxy_->Set({.stall_at_byte = kHandshakeBytes + 100000});
  const Handoff stuck = Begin({0, 500}, 0);
  stuck.Run(500);
  // Of a ticket of which nothing came the receiver never hears the end; its node gives it up.
  ASSERT_TRUE(to_->log.WaitBegun(stuck.ticket));
  EXPECT_EQ(from_->log.WaitEnded(stuck.ticket, false).status.code(),
            absl::StatusCode::kDeadlineExceeded);
  const Handoff next = MakeHandoff(from_.get(), to_.get(), {0, 20}, 17);  // Past the proxy.
  next.Run(20);
  next.ExpectVerified();
  EXPECT_EQ(from_->counters().opened_connections, 2);
  // The new connection of the same sender ended what had begun on the old one, and it writes no
  // more.
  EXPECT_EQ(to_->log.WaitEnded(stuck.ticket, true).status.code(), absl::StatusCode::kUnavailable);
  to_->FillCanary(0x22);
  proxy_->Set({});
  const Handoff last = MakeHandoff(from_.get(), to_.get(), {0, 20}, 18);
  last.Run(20);
  last.ExpectVerified();
  proxy_.reset();
  to_->transport.reset();
  EXPECT_TRUE(to_->IsCanaryBut(0x22, {last.written()}));
}

TEST_P(TcpFaultTest, AStalledHandshakeIsUnavailable) {
  Reset({.time_scale = 0.1});
  proxy_->Set({.stall_at_byte = 100});
  const Handoff h = Begin();
  h.Run(50);
  EXPECT_EQ(from_->log.WaitEnded(h.ticket, false).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(to_->log.Count(Kind::kBegun, h.ticket, true), 0);
}

TEST_P(TcpFaultTest, WhateverOfAFrameIsStillToComeWhenItsTicketEndsIsNotWritten) {
  if (GetParam() == TransportKind::kTls) GTEST_SKIP() << "its frames are sealed";
  // Frames of 100 tokens: K, V, K, V, ... The ticket ends when the line stands still in a header, a
  // payload, a trailer, or before a byte of it came.
  const int64_t k = kHeaderBytes + 100 * 4 * 16 + kTrailerBytes;
  const int64_t v = kHeaderBytes + 100 * 4 * 24 + kTrailerBytes;
  const int64_t header = kHeaderBytes;
  for (int64_t at : {int64_t{0}, int64_t{40}, header - 1, header, header + 1, header + 3000, k - 9,
                     k - 8, k - 4, k - 1, k, k + 40, k + header + 3000, k + v - 4,
                     3 * (k + v) - 1, 3 * (k + v), 3 * (k + v) + 40, 3 * (k + v) + header,
                     3 * (k + v) + header + 20}) {
    SCOPED_TRACE(at);
    Reset({});
    proxy_->Set({.stall_at_byte = kHandshakeBytes + at});
    const Handoff h = Begin();
    h.Run(100);
    if (at >= header) {
      ASSERT_TRUE(to_->log.WaitBegun(h.ticket));
    }
    to_->transport->Abort(h.ticket);
    EXPECT_EQ(to_->log.WaitEnded(h.ticket, true).status.code(), absl::StatusCode::kCancelled);
    to_->FillCanary(0x22);  // The blocks have a new owner.
    // The line moves again, and another handoff comes behind the rest.
    proxy_->Set({});
    EXPECT_FALSE(from_->log.WaitEnded(h.ticket, false).status.ok());
    const Handoff next = Begin({0, 20}, 4);
    next.Run(20);
    next.ExpectVerified();
    EXPECT_TRUE(to_->IsCanaryBut(0x22, {next.written()}));
    EXPECT_EQ(from_->counters().opened_connections, 1);
    EXPECT_EQ(to_->counters().checksum_failures, 0);
    EXPECT_EQ(to_->counters().malformed, 0);
    EXPECT_EQ(to_->log.Count(Kind::kEnded, h.ticket, true), 1);
  }
}

TEST_P(TcpFaultTest, ALineThatMovesAgainInTimeDeliversEverything) {
  for (int64_t at : {int64_t{100}, kHandshakeBytes + 40, kHandshakeBytes + 5000}) {
    SCOPED_TRACE(at);
    Reset({});
    proxy_->Set({.stall_at_byte = at});
    const Handoff h = Begin();
    h.Run(50);
    if (at > kHandshakeBytes + 80) {
      ASSERT_TRUE(to_->log.WaitBegun(h.ticket));
    }
    proxy_->Set({});
    h.ExpectVerified();
    EXPECT_TRUE(to_->IsCanaryBut(0xCD, {h.written()}));
  }
}

TEST_P(TcpFaultTest, ASenderThatGivesUpMidFrameAbandonsItAndTheOthersGoOn) {
  if (GetParam() == TransportKind::kTls) GTEST_SKIP() << "its frames are sealed";
  // A frame larger than the socket takes at once, so that the abort finds it half written.
  EndpointSpec spec{.incarnation = 1, .num_blocks = 64, .k_dim = 4096};
  from_ = cluster_.Make(spec);
  spec.incarnation = 2;
  to_ = cluster_.Make(spec);
  for (int32_t i = 0; i < 2; ++i) {
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

TEST_P(TcpFaultTest, OneConnectionServesManyHandoffs) {
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
