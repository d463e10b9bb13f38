#include "common/transport/tcp/outgoing_link.h"

#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "common/transport/tcp/incoming_link.h"
#include "common/transport/tcp/socket.h"
#include "gtest/gtest.h"
#include "tests/transport/late_stager.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// One side of a pair, with its own pool.
struct Side {
  Side(Incarnation incarnation, int32_t k_dim) : epochs(8) {
    const KvLayout layout{
        .block_size = 16,
        .groups = {{.num_layers = 1, .num_kv_heads = 2, .k_dim = k_dim, .v_dim = k_dim}}};
    cache = *KvCache::Create(layout, 8);
    options = {.incarnation = incarnation,
               .cache = cache.get(),
               .epochs = &epochs,
               .sink = [this](TransferEvent event) { events.push_back(std::move(event)); }};
    options.secret.fill(3);
  }
  BlockEpochs epochs;
  std::unique_ptr<KvCache> cache;
  TransportOptions options;
  CounterBoard counters;
  std::vector<TransferEvent> events;
};

// Both ends of one connection in one thread, in virtual time.
class OutgoingLinkTest : public testing::Test {
 protected:
  OutgoingLinkTest() { Connect(8); }

  void Connect(int32_t k_dim, bool staged = false, int slots = 8) {
    out_.reset();
    in_.reset();
    from_ = std::make_unique<Side>(1, k_dim);
    if (staged) {
      stager_ = std::make_unique<LateStager>(from_->cache->base(),
                                             LateStager::Options{.slots = slots});
      from_->options.stager = stager_.get();
    }
    to_ = std::make_unique<Side>(2, k_dim);
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    auto sink = [this](TransferEvent event) {
      if (event.kind == TransferEvent::Kind::kEnded) {
        in_->OnTicketEnded(event.ticket, event.status.ok());
      }
      to_->options.sink(std::move(event));
    };
    ledger_ = std::make_unique<ReceiveLedger>(to_->options, &to_->counters, sink);
    in_ = std::make_unique<IncomingLink>(
        std::make_unique<SocketStream>(FileDescriptor(fds[1])),
        IncomingLink::Options{.transport = &to_->options,
                              .stream = {&to_->counters, scratch_},
                              .ledger = ledger_.get(),
                              .counters = &to_->counters,
                              .handshake_deadline = now_ + seconds(2),
                              .on_unknown_ticket = [this] { on_unknown_ticket_(); },
                              .on_authenticated = [](IncomingLink*) {}});
    out_ = std::make_unique<OutgoingLink>(
        std::make_unique<SocketStream>(FileDescriptor(fds[0])),
        OutgoingLink::Options{.transport = from_->options,
                              .stream = {&from_->counters, scratch_},
                              .counters = &from_->counters,
                              .receiver = 2,
                              .key = DerivePairKey(to_->options.secret, 1, 2),
                              .handshake_timeout = seconds(2),
                              .min_progress_timeout = seconds(1)},
        now_);
  }

  absl::Status Send() { return out_->OnReady(true, true, now_); }
  absl::Status Receive() { return in_->OnReady(true, true, now_); }
  void Exchange() {
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(Send().ok());
      ASSERT_TRUE(Receive().ok());
    }
  }

  static StartArgs Start(TicketId ticket) {
    return {.ticket = ticket,
            .key = DerivePairKey(Side(9, 8).options.secret, 1, 2),
            .sender = 1,
            .receiver = 2,
            .blocks = {0, 1, 2, 3},
            .num_tokens = 64};
  }
  static ExpectArgs Expect(TicketId ticket) {
    return {.ticket = ticket,
            .sender = 1,
            .blocks = {{4, 0}, {5, 0}, {6, 0}, {7, 0}},
            .num_tokens = 64};
  }

  Time now_{};
  std::function<void()> on_unknown_ticket_ = [] {};
  std::vector<std::byte> scratch_ = std::vector<std::byte>(4096);
  std::unique_ptr<Side> from_;
  std::unique_ptr<Side> to_;
  std::unique_ptr<LateStager> stager_;  // Of the sender.
  std::unique_ptr<ReceiveLedger> ledger_;
  std::unique_ptr<IncomingLink> in_;
  std::unique_ptr<OutgoingLink> out_;
};

TEST_F(OutgoingLinkTest, HandshakeHasADeadlineOnBothEnds) {
  EXPECT_EQ(out_->NextDeadline(), now_ + seconds(2));
  EXPECT_EQ(in_->NextDeadline(), now_ + seconds(2));
  now_ += seconds(2);
  EXPECT_TRUE(absl::IsUnavailable(out_->OnTimer(now_)));
  EXPECT_FALSE(in_->OnTimer(now_).ok());
  EXPECT_EQ(to_->counters.Read().failed_handshakes, 1);
}

TEST_F(OutgoingLinkTest, AReadyConnectionWithoutWorkHasNoDeadline) {
  Exchange();
  out_->Start(Start({1, 1}));
  Exchange();
  EXPECT_EQ(out_->NextDeadline(), kNever);
  EXPECT_EQ(in_->NextDeadline(), kNever);
  EXPECT_EQ(in_->sender().incarnation, 1u);
}

TEST_F(OutgoingLinkTest, TheDeadlineRunsFromAnAnnounceAndStopsBetweenThem) {
  Exchange();
  ledger_->Expect(Expect({1, 1}));
  out_->Start(Start({1, 1}));
  now_ += seconds(100);
  out_->Push({{1, 1}, 0, 0, 32}, now_);
  EXPECT_EQ(out_->NextDeadline(), now_ + seconds(1));
  now_ += milliseconds(500);
  Exchange();  // Acknowledged.
  ASSERT_TRUE(out_->OnTimer(now_).ok());
  EXPECT_EQ(out_->NextDeadline(), kNever);
  now_ += seconds(1000);  // A long prefill chunk.
  ASSERT_TRUE(out_->OnTimer(now_).ok());
  EXPECT_TRUE(from_->events.empty());
  out_->Push({{1, 1}, 0, 32, 32}, now_);
  out_->Finish({.ticket = {1, 1}}, now_);
  Exchange();
  ASSERT_EQ(from_->events.size(), 1u);
  EXPECT_TRUE(from_->events[0].status.ok()) << from_->events[0].status;
  EXPECT_TRUE(to_->events.back().status.ok());
}

// Until then the handshake's own runs.
TEST_F(OutgoingLinkTest, WhatWasAnnouncedDuringTheHandshakeHasADeadlineFromItsEnd) {
  ledger_->Expect(Expect({1, 1}));
  out_->Start(Start({1, 1}));
  out_->Push({{1, 1}, 0, 0, 32}, now_);
  EXPECT_EQ(out_->NextDeadline(), now_ + seconds(2));
  now_ += milliseconds(1900);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Send().ok());
    ASSERT_TRUE(Receive().ok());
  }
  ASSERT_TRUE(Send().ok());  // It is accepted, and the push has left.
  EXPECT_EQ(out_->NextDeadline(), now_ + seconds(1));
  now_ += seconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(out_->OnTimer(now_)));
  ASSERT_EQ(from_->events.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(from_->events[0].status));
}

// Neither time in which nothing was under way nor that of a few bytes is the line's.
TEST_F(OutgoingLinkTest, OnlyManyBytesUnderWaySayHowSlowALineIs) {
  for (const int32_t k_dim : {2048, 8}) {
    SCOPED_TRACE(k_dim);
    Connect(k_dim);
    Exchange();
    ledger_->Expect(Expect({1, 1}));
    out_->Start(Start({1, 1}));
    now_ += seconds(1000);
    out_->Push({{1, 1}, 0, 0, 16}, now_);
    if (k_dim == 8) now_ += milliseconds(900);
    Exchange();
    ASSERT_GT(to_->counters.Read().bytes_accepted, 0);
    out_->Push({{1, 1}, 0, 16, 16}, now_);
    EXPECT_EQ(out_->NextDeadline(), now_ + seconds(1));
  }
}

// The frame left the node's list of work; it has not left this process.
TEST_F(OutgoingLinkTest, TheDeadlineRunsWhileAFrameIsGathered) {
  Connect(8, /*staged=*/true);
  Exchange();
  stager_->Hold(true);
  ledger_->Expect(Expect({1, 1}));
  out_->Start(Start({1, 1}));
  out_->Push({{1, 1}, 0, 0, 32}, now_);
  Exchange();
  EXPECT_EQ(stager_->launched(), 2);  // All of the push.
  EXPECT_EQ(out_->NextDeadline(), now_ + seconds(1));
  stager_->Hold(false);
  stager_->AwaitQuiet();
  Exchange();
  EXPECT_EQ(out_->NextDeadline(), kNever);
  stager_->Hold(true);
  out_->Push({{1, 1}, 0, 32, 32}, now_);
  Exchange();
  now_ += seconds(1);
  ASSERT_TRUE(absl::IsDeadlineExceeded(out_->OnTimer(now_)));
  ASSERT_EQ(from_->events.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(from_->events[0].status));
}

// One that others wait for to land is not held up by a second that it has no slot for.
TEST_F(OutgoingLinkTest, WhoGotASlotWantsNoneInTheSameTurn) {
  Connect(8, /*staged=*/true, /*slots=*/1);
  Exchange();
  out_->Start(Start({1, 1}));
  out_->Push({{1, 1}, 0, 0, 32}, now_);
  stager_->Hold(true);
  ASSERT_TRUE(Send().ok());
  EXPECT_EQ(stager_->launched(), 1);
  EXPECT_FALSE(out_->wants_slot());
  ASSERT_TRUE(Send().ok());
  EXPECT_TRUE(out_->wants_slot());
}

TEST_F(OutgoingLinkTest, ASilentReceiverEndsTheTicketAndTheConnection) {
  Exchange();
  ledger_->Expect(Expect({1, 1}));
  out_->Start(Start({1, 1}));
  out_->Push({{1, 1}, 0, 0, 64}, now_);
  out_->Finish({.ticket = {1, 1}}, now_);
  ASSERT_TRUE(Send().ok());  // The kernel has all of it, nobody reads.
  now_ += milliseconds(999);
  ASSERT_TRUE(out_->OnTimer(now_).ok());
  EXPECT_TRUE(from_->events.empty());
  now_ += milliseconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(out_->OnTimer(now_)));
  ASSERT_EQ(from_->events.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(from_->events[0].status));
  out_.reset();
  // The receiver wakes up: it is the authority, the bytes are whole, so it verifies.
  EXPECT_FALSE(Receive().ok());
  EXPECT_TRUE(to_->events.back().status.ok());
}

TEST_F(OutgoingLinkTest, ATicketTheReceiverDoesNotKnowEndsAlone) {
  Exchange();
  ledger_->Expect(Expect({2, 2}));
  out_->Start(Start({1, 1}));
  out_->Start(Start({2, 2}));
  out_->Finish({.ticket = {1, 1}}, now_);
  ASSERT_TRUE(Send().ok());
  now_ += milliseconds(600);
  out_->Push({{2, 2}, 0, 0, 32}, now_);
  ASSERT_TRUE(Send().ok());
  ASSERT_TRUE(Receive().ok());
  ASSERT_TRUE(Send().ok());
  EXPECT_EQ(from_->events.size(), 1u);
  EXPECT_TRUE(absl::IsNotFound(from_->events[0].status));
  now_ += milliseconds(600);
  ASSERT_TRUE(out_->OnTimer(now_).ok());
  EXPECT_TRUE(out_->Has({2, 2}));
}

TEST_F(OutgoingLinkTest, AStallWithinAFrameClosesTheConnection) {
  Connect(2048);
  Exchange();
  out_->Start(Start({1, 1}));
  out_->Push({{1, 1}, 0, 0, 64}, now_);  // 1 MiB frames into a socket that takes 200 KB.
  ASSERT_TRUE(Send().ok());
  ASSERT_TRUE(out_->stream().wants_write());
  now_ += seconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(out_->OnTimer(now_)));
  EXPECT_EQ(from_->events.size(), 1u);
}

TEST_F(OutgoingLinkTest, AcknowledgementsOfOthersKeepTheWaitingAlive) {
  Connect(2048);
  Exchange();
  ledger_->Expect(Expect({1, 1}));
  out_->Start(Start({1, 1}));
  out_->Start(Start({2, 2}));
  out_->Push({{1, 1}, 0, 0, 64}, now_);
  out_->Push({{2, 2}, 0, 0, 64}, now_);
  ASSERT_TRUE(Send().ok());
  now_ += milliseconds(900);
  for (int i = 0; i < 1000 && to_->counters.Read().frames_accepted == 0; ++i) {
    ASSERT_TRUE(Receive().ok());
    ASSERT_TRUE(Send().ok());
  }
  ASSERT_TRUE(Receive().ok());
  ASSERT_TRUE(Send().ok());
  now_ += milliseconds(900);
  ASSERT_TRUE(out_->OnTimer(now_).ok());
  EXPECT_TRUE(from_->events.empty());
}

TEST_F(OutgoingLinkTest, ASlowLineGetsTimeByWhatItWasMeasuredAt) {
  Connect(2048);
  Exchange();
  ledger_->Expect(Expect({1, 1}));
  out_->Start(Start({1, 1}));
  out_->Push({{1, 1}, 0, 0, 64}, now_);
  // Each turn moves about 200 KB and takes 0.4 s: some 500 KB a second.
  for (int i = 0; i < 100 && to_->counters.Read().frames_accepted < 2; ++i) {
    now_ += milliseconds(400);
    ASSERT_TRUE(Send().ok());
    ASSERT_TRUE(Receive().ok());
  }
  ASSERT_TRUE(Send().ok());
  out_->Push({{1, 1}, 0, 0, 64}, now_);
  EXPECT_GT(out_->NextDeadline(), now_ + seconds(5));
}

TEST_F(OutgoingLinkTest, LosingTheConnectionEndsEveryTicketOnce) {
  Exchange();
  out_->Start(Start({1, 1}));
  out_->Start(Start({2, 2}));
  out_->Push({{1, 1}, 0, 0, 64}, now_);
  in_.reset();
  absl::Status status;
  for (int i = 0; i < 10 && status.ok(); ++i) status = Send();
  ASSERT_FALSE(status.ok());
  out_->OnClosed(status);
  ASSERT_EQ(from_->events.size(), 2u);
  for (const TransferEvent& event : from_->events) {
    EXPECT_TRUE(absl::IsUnavailable(event.status)) << event.status;
  }
  EXPECT_TRUE(out_->idle());
}

TEST_F(OutgoingLinkTest, AReceiverThatCannotProveTheKeyGetsNoProofAndNoFrame) {
  to_->options.secret.fill(4);  // An impostor at the receiver's address.
  out_->Start(Start({1, 1}));
  absl::Status status;
  for (int i = 0; i < 10 && status.ok(); ++i) {
    status = Send();
    ASSERT_TRUE(Receive().ok());
  }
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  EXPECT_EQ(from_->counters.Read().failed_handshakes, 1);
  EXPECT_EQ(to_->counters.Read().failed_handshakes, 0);  // It never saw a proof to judge.
}

TEST_F(OutgoingLinkTest, AFrameThatOvertookItsExpectIsAcceptedOnceTheCallIsFound) {
  Exchange();
  on_unknown_ticket_ = [this] { ledger_->Expect(Expect({1, 1})); };
  out_->Start(Start({1, 1}));
  out_->Push({{1, 1}, 0, 0, 64}, now_);
  out_->Finish({.ticket = {1, 1}}, now_);
  Exchange();
  ASSERT_EQ(from_->events.size(), 1u);
  EXPECT_TRUE(from_->events[0].status.ok()) << from_->events[0].status;
}

TEST_F(OutgoingLinkTest, AnAbortWithinAFrameReadsTheBlocksNoMore) {
  Connect(2048);
  Exchange();
  ledger_->Expect(Expect({1, 1}));
  const size_t bytes = HeadBlockBytes(from_->cache->layout(), 0, KvPlane::kK) * 2 * 8;
  std::memset(from_->cache->base(), 0x11, bytes);
  std::memset(to_->cache->Plane(0, KvPlane::kK), 0, bytes);
  out_->Start(Start({1, 1}));
  out_->Push({{1, 1}, 0, 0, 64}, now_);
  ASSERT_TRUE(Send().ok());
  ASSERT_TRUE(out_->stream().wants_write());
  out_->Abort({1, 1});
  ASSERT_EQ(from_->events.size(), 1u);
  std::memset(from_->cache->base(), 0xEE, bytes);  // Another sequence's.
  Exchange();
  EXPECT_EQ(to_->counters.Read().abandoned_frames, 1);
  EXPECT_EQ(to_->counters.Read().checksum_failures, 0);
  EXPECT_TRUE(absl::IsAborted(to_->events.back().status)) << to_->events.back().status;
  EXPECT_EQ(std::memchr(to_->cache->Plane(0, KvPlane::kK), 0xEE, bytes), nullptr);
}

TEST_F(OutgoingLinkTest, AnotherKeyForTheSameReceiverIsRefused) {
  Exchange();
  StartArgs start = Start({1, 1});
  start.key[0] ^= 1;
  out_->Start(start);
  ASSERT_EQ(from_->events.size(), 1u);
  EXPECT_TRUE(absl::IsUnauthenticated(from_->events[0].status));
}

TEST_F(OutgoingLinkTest, AVerdictBeforeTheFinalFrameOrMoreAcknowledgedThanSentIsMalformed) {
  for (const FrameHeader& answer :
       {FrameHeader{.type = FrameType::kVerified, .ticket = {1, 1}},
        FrameHeader{.type = FrameType::kAck, .ticket = {1, 1}, .value = 1}}) {
    Connect(8);
    Exchange();
    out_->Start(Start({1, 1}));
    ASSERT_TRUE(in_->stream().Queue({.header = answer}).ok());
    ASSERT_TRUE(Receive().ok());
    EXPECT_TRUE(absl::IsInvalidArgument(Send()));
    EXPECT_EQ(from_->counters.Read().malformed, 1);
    EXPECT_TRUE(from_->events.empty());
  }
}

TEST_F(OutgoingLinkTest, AnswersAboutATicketThatHasEndedAreReadOver) {
  Exchange();
  for (FrameType type : {FrameType::kVerified, FrameType::kAck, FrameType::kAbort}) {
    FrameHeader answer{.type = type, .ticket = {1, 1}};
    if (type == FrameType::kAbort) answer.code = AbortCode::kCancelled;
    ASSERT_TRUE(in_->stream().Queue({.header = answer}).ok());
  }
  Exchange();
  EXPECT_EQ(from_->counters.Read().malformed, 0);
  EXPECT_TRUE(from_->events.empty());
}

TEST_F(OutgoingLinkTest, AFinalFrameThatIsNoneEndsItsTicketAloneAndIsAnswered) {
  Exchange();
  ledger_->Expect(Expect({1, 1}));
  out_->Start(Start({1, 1}));
  const std::vector<std::byte> nonsense(60, std::byte{0xFF});
  ASSERT_TRUE(out_->stream()
                  .Queue({.header = {.type = FrameType::kFinal, .ticket = {1, 1}},
                          .body = nonsense})
                  .ok());
  Exchange();
  EXPECT_EQ(to_->counters.Read().malformed, 1);
  ASSERT_EQ(to_->events.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(to_->events[0].status)) << to_->events[0].status;
  ASSERT_EQ(from_->events.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(from_->events[0].status)) << from_->events[0].status;
}

TEST_F(OutgoingLinkTest, FramesOfTheOtherDirectionAreMalformed) {
  for (FrameType type : {FrameType::kAck, FrameType::kVerified, FrameType::kAccepted}) {
    Connect(8);
    Exchange();
    ASSERT_TRUE(out_->stream().Queue({.header = {.type = type, .ticket = {1, 1}}}).ok());
    ASSERT_TRUE(Send().ok());
    EXPECT_TRUE(absl::IsInvalidArgument(Receive()));
    EXPECT_EQ(to_->counters.Read().malformed, 1);
  }
  Connect(8);
  Exchange();
  ASSERT_TRUE(in_->stream().Queue({.header = {.type = FrameType::kAccepted}}).ok());
  ASSERT_TRUE(Receive().ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Send()));
}

}  // namespace
}  // namespace baton
