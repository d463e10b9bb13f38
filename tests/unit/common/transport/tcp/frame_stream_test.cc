#include "common/transport/tcp/frame_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include "common/base/random.h"
#include "common/base/crc32c.h"
#include "common/transport/tcp/socket.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

// Records frames, and plans payloads as the test says.
class RecordingLink : public Link {
 public:
  absl::StatusOr<PayloadPlan> OnHeader(const FrameHeader& header) override {
    headers.push_back(header);
    return plan;
  }
  absl::Status OnFrame(const ReceivedFrame& frame) override {
    frames.push_back(frame);
    bodies.emplace_back(frame.body.begin(), frame.body.end());
    if (on_frame) on_frame();
    return absl::OkStatus();
  }
  std::optional<OutgoingFrame> NextFrame() override {
    if (on_next) on_next();
    if (to_send.empty()) return std::nullopt;
    OutgoingFrame frame = std::move(to_send.front());
    to_send.pop_front();
    return frame;
  }
  absl::Status OnReady(bool, bool, Time) override { return absl::OkStatus(); }
  absl::Status OnTimer(Time) override { return absl::OkStatus(); }
  Time NextDeadline() const override { return kNever; }
  void OnClosed(const absl::Status&) override {}
  FrameStream& stream() override { return *own_stream; }
  bool wants_slot() const override { return false; }

  PayloadPlan plan;
  std::vector<FrameHeader> headers;
  std::vector<ReceivedFrame> frames;
  std::vector<std::vector<std::byte>> bodies;
  std::deque<OutgoingFrame> to_send;
  FrameStream* own_stream = nullptr;
  std::function<void()> on_frame;
  std::function<void()> on_next;
};

constexpr TicketId kTicket{1, 2};

class FrameStreamTest : public testing::Test {
 protected:
  FrameStreamTest() : scratch_(4096), memory_(kMaxDataPayloadBytes), target_(memory_.size()) {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    const int small = 20000;
    EXPECT_EQ(::setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    const FrameStream::Options options{.counters = &counters_, .scratch = scratch_};
    tx_ = std::make_unique<FrameStream>(std::make_unique<SocketStream>(FileDescriptor(fds[0])),
                                        &tx_link_, options);
    rx_ = std::make_unique<FrameStream>(std::make_unique<SocketStream>(FileDescriptor(fds[1])),
                                        &rx_link_, options);
    Random random(6);
    for (std::byte& b : memory_) b = static_cast<std::byte>(random.Next());
  }

  // The whole memory in pieces of uneven size.
  static std::vector<iovec> Pieces(std::vector<std::byte>* memory, size_t bytes, uint64_t seed) {
    Random random(seed);
    std::vector<iovec> pieces;
    for (size_t at = 0; at < bytes;) {
      const size_t n = std::min<size_t>(bytes - at, 1 + random.Below(700));
      pieces.push_back({memory->data() + at, n});
      at += n;
    }
    return pieces;
  }

  OutgoingFrame DataFrame(size_t bytes) {
    return {.header = {.type = FrameType::kData,
                       .ticket = kTicket,
                       .range = {0, KvPlane::kK, 0, 1, 0, 1}},
            .memory = Pieces(&memory_, bytes, 1)};
  }

  void PlanTarget(size_t bytes) {
    rx_link_.plan = {PayloadPlan::Kind::kMemory, Pieces(&target_, bytes, 2)};
  }

  // Until nothing moves.
  void Exchange() {
    for (int i = 0; i < 1000; ++i) {
      ASSERT_TRUE(tx_->Write().ok());
      ASSERT_TRUE(rx_->Read().ok());
      if (!tx_->wants_write()) break;
    }
    ASSERT_TRUE(rx_->Read().ok());
  }

  CounterBoard counters_;
  std::vector<std::byte> scratch_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> target_;
  RecordingLink tx_link_;
  RecordingLink rx_link_;
  std::unique_ptr<FrameStream> tx_;
  std::unique_ptr<FrameStream> rx_;
};

TEST_F(FrameStreamTest, ScattersWhatItGathered) {
  PlanTarget(memory_.size());
  tx_link_.to_send.push_back(DataFrame(memory_.size()));
  tx_link_.to_send.push_back(DataFrame(0));
  tx_link_.to_send.back().header.type = FrameType::kVerified;
  Exchange();
  ASSERT_EQ(rx_link_.frames.size(), 2u);
  EXPECT_TRUE(rx_link_.frames[0].checksum_ok);
  EXPECT_FALSE(rx_link_.frames[0].abandoned);
  EXPECT_EQ(rx_link_.headers[0].payload_bytes, memory_.size());
  EXPECT_EQ(rx_link_.headers[1].sequence, 2u);
  EXPECT_EQ(target_, memory_);
  EXPECT_EQ(counters_.Read().bytes_sent, static_cast<int64_t>(memory_.size()));
  EXPECT_EQ(counters_.Read().frames_sent, 1);  // Of data.
}

TEST_F(FrameStreamTest, TheEndOfAnotherTicketLeavesAFrameUnderWayAsItIs) {
  PlanTarget(memory_.size());
  tx_link_.to_send.push_back(DataFrame(memory_.size()));
  ASSERT_TRUE(tx_->Write().ok());
  ASSERT_TRUE(tx_->wants_write());
  ASSERT_TRUE(rx_->Read().ok());
  rx_->DivertPayload({9, 9});
  tx_->AbandonFrame({9, 9});
  Exchange();
  ASSERT_EQ(rx_link_.frames.size(), 1u);
  EXPECT_FALSE(rx_link_.frames[0].discarded);
  EXPECT_FALSE(rx_link_.frames[0].abandoned);
  EXPECT_TRUE(rx_link_.frames[0].checksum_ok);
  EXPECT_EQ(target_, memory_);
}

TEST_F(FrameStreamTest, AFinalFrameIsNeitherDivertedNorAbandoned) {
  // Its body is the stream's own, and the verdict on it is the ledger's.
  PlanTarget(40000);
  tx_link_.to_send.push_back(DataFrame(40000));
  std::vector<std::byte> body(60, std::byte{7});
  ASSERT_TRUE(tx_->Write().ok());
  ASSERT_TRUE(tx_->Queue({.header = {.type = FrameType::kFinal, .ticket = kTicket}, .body = body})
                  .ok());
  rx_link_.on_frame = [&] { rx_link_.plan = {}; };
  for (int i = 0; i < 1000 && rx_link_.headers.size() < 2; ++i) {
    tx_->AbandonFrame(kTicket);
    ASSERT_TRUE(tx_->Write().ok());
    tx_->AbandonFrame(kTicket);
    ASSERT_TRUE(rx_->Read().ok());
  }
  rx_->DivertPayload(kTicket);
  Exchange();
  ASSERT_EQ(rx_link_.frames.size(), 2u);
  EXPECT_TRUE(rx_link_.frames[0].abandoned);
  EXPECT_FALSE(rx_link_.frames[1].abandoned);
  EXPECT_EQ(rx_link_.bodies[1], body);
}

TEST_F(FrameStreamTest, ATurnEndsWhenMuchWasReadOrWrittenThoughThereIsMore) {
  constexpr size_t kFrame = 8000;
  constexpr size_t kEnough = 4 << 20;
  PlanTarget(kFrame);
  size_t sent = 0;
  const auto more = [&] {
    if (sent >= kEnough) return;
    sent += kFrame;
    tx_link_.to_send.push_back(DataFrame(kFrame));
  };
  rx_link_.on_frame = [&] {
    more();
    ASSERT_TRUE(tx_->Write().ok());
  };
  more();
  ASSERT_TRUE(tx_->Write().ok());
  ASSERT_TRUE(rx_->Read().ok());
  EXPECT_GT(sent, size_t{1} << 19);
  EXPECT_LT(sent, size_t{2} << 20);

  rx_link_.on_frame = nullptr;
  Exchange();
  sent = 0;
  tx_link_.on_next = [&] {
    ASSERT_TRUE(rx_->Read().ok());
    more();
  };
  ASSERT_TRUE(tx_->Write().ok());
  EXPECT_TRUE(tx_->wants_write());
  EXPECT_GT(sent, size_t{1} << 19);
  EXPECT_LT(sent, size_t{2} << 20);
}

TEST_F(FrameStreamTest, ADivertedPayloadLeavesTheMemoryAloneFromThatMomentOn) {
  PlanTarget(memory_.size());
  tx_link_.to_send.push_back(DataFrame(memory_.size()));
  ASSERT_TRUE(tx_->Write().ok());
  ASSERT_TRUE(tx_->wants_write());
  ASSERT_TRUE(rx_->Read().ok());
  rx_->DivertPayload({9, 9});  // Another ticket: nothing happens.
  rx_->DivertPayload(kTicket);
  std::fill(target_.begin(), target_.end(), std::byte{0x33});
  Exchange();
  ASSERT_EQ(rx_link_.frames.size(), 1u);
  EXPECT_TRUE(rx_link_.frames[0].discarded);
  EXPECT_TRUE(std::all_of(target_.begin(), target_.end(),
                          [](std::byte b) { return b == std::byte{0x33}; }));
  // The next frame is found.
  PlanTarget(100);
  tx_link_.to_send.push_back(DataFrame(100));
  Exchange();
  ASSERT_EQ(rx_link_.frames.size(), 2u);
  EXPECT_TRUE(rx_link_.frames[1].checksum_ok);
  EXPECT_EQ(std::memcmp(target_.data(), memory_.data(), 100), 0);
}

TEST_F(FrameStreamTest, AnAbandonedFrameReadsTheMemoryNoMoreAndSaysSo) {
  PlanTarget(memory_.size());
  tx_link_.to_send.push_back(DataFrame(memory_.size()));
  ASSERT_TRUE(tx_->Write().ok());
  ASSERT_TRUE(tx_->wants_write());
  tx_->AbandonFrame({9, 9});
  tx_->AbandonFrame(kTicket);
  std::fill(memory_.begin(), memory_.end(), std::byte{0xEE});  // Somebody else's bytes now.
  Exchange();
  ASSERT_EQ(rx_link_.frames.size(), 1u);
  EXPECT_TRUE(rx_link_.frames[0].abandoned);
  EXPECT_EQ(target_.back(), std::byte{0});
  EXPECT_EQ(counters_.Read().frames_sent, 0);
  PlanTarget(50);
  tx_link_.to_send.push_back(DataFrame(50));
  Exchange();
  ASSERT_EQ(rx_link_.frames.size(), 2u);
  EXPECT_FALSE(rx_link_.frames[1].abandoned);
  EXPECT_TRUE(rx_link_.frames[1].checksum_ok);
}

TEST_F(FrameStreamTest, AFrameOfWhichNothingWentOutIsDroppedWhole) {
  // Small frames fill the socket; it takes each of them whole or not at all.
  PlanTarget(500);
  constexpr uint64_t kFrames = 1000;
  for (uint64_t i = 0; i < kFrames; ++i) {
    tx_link_.to_send.push_back(DataFrame(500));
    tx_link_.to_send.back().header.ticket = {7, i};
  }
  ASSERT_TRUE(tx_->Write().ok());
  ASSERT_TRUE(tx_->wants_write());
  const uint64_t waiting = kFrames - tx_link_.to_send.size() - 1;
  tx_->AbandonFrame({7, waiting});
  tx_link_.to_send.erase(tx_link_.to_send.begin(), tx_link_.to_send.end() - 1);
  Exchange();
  ASSERT_EQ(rx_link_.frames.size(), waiting + 1);
  EXPECT_EQ(rx_link_.frames[waiting - 1].header.ticket, (TicketId{7, waiting - 1}));
  EXPECT_EQ(rx_link_.frames[waiting].header.ticket, (TicketId{7, kFrames - 1}));
}

TEST_F(FrameStreamTest, ControlFramesOvertakeDataButNotWithinAFrame) {
  PlanTarget(40000);
  tx_link_.to_send.push_back(DataFrame(40000));
  tx_link_.to_send.push_back(DataFrame(40000));
  ASSERT_TRUE(tx_->Write().ok());
  ASSERT_TRUE(tx_->Queue({.header = {.type = FrameType::kAbort, .ticket = {5, 5}}}).ok());
  Exchange();
  ASSERT_EQ(rx_link_.headers.size(), 3u);
  EXPECT_EQ(rx_link_.headers[1].type, FrameType::kAbort);
  EXPECT_EQ(rx_link_.headers[2].sequence, 3u);
}

TEST_F(FrameStreamTest, AnyCutOfTheBytesGivesTheSameFrames) {
  std::vector<std::byte> wire;
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
    const HeaderBytes header = EncodeHeader(
        {.type = FrameType::kFinal, .sequence = sequence, .ticket = kTicket, .payload_bytes = 60});
    std::vector<std::byte> body(60, static_cast<std::byte>(sequence));
    const TrailerBytes trailer = EncodeTrailer({.crc32c = Crc32c(body)});
    wire.insert(wire.end(), header.begin(), header.end());
    wire.insert(wire.end(), body.begin(), body.end());
    wire.insert(wire.end(), trailer.begin(), trailer.end());
  }
  for (size_t step = 1; step <= wire.size(); ++step) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    FileDescriptor out(fds[0]);
    RecordingLink link;
    FrameStream stream(std::make_unique<SocketStream>(FileDescriptor(fds[1])), &link,
                       {&counters_, scratch_});
    for (size_t at = 0; at < wire.size(); at += step) {
      const size_t n = std::min(step, wire.size() - at);
      ASSERT_EQ(::write(out.get(), wire.data() + at, n), static_cast<ssize_t>(n));
      ASSERT_TRUE(stream.Read().ok());
    }
    ASSERT_EQ(link.frames.size(), 3u) << "step " << step;
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(link.frames[i].checksum_ok);
      ASSERT_EQ(link.bodies[i], std::vector<std::byte>(60, static_cast<std::byte>(i + 1)));
    }
  }
}

TEST_F(FrameStreamTest, ARepeatedFrameIsReadOverAndAMissingOneIsAnError) {
  tx_.reset();
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  FileDescriptor out(fds[0]);
  FrameStream stream(std::make_unique<SocketStream>(FileDescriptor(fds[1])), &rx_link_,
                     {&counters_, scratch_});
  const auto send = [&](uint64_t sequence) {
    const std::vector<std::byte> body(60, static_cast<std::byte>(sequence));
    const HeaderBytes header = EncodeHeader(
        {.type = FrameType::kFinal, .sequence = sequence, .ticket = kTicket, .payload_bytes = 60});
    const TrailerBytes trailer = EncodeTrailer({.crc32c = Crc32c(body)});
    for (std::span<const std::byte> part :
         {std::span<const std::byte>(header), std::span<const std::byte>(body),
          std::span<const std::byte>(trailer)}) {
      ASSERT_EQ(::write(out.get(), part.data(), part.size()), static_cast<ssize_t>(part.size()));
    }
  };
  for (uint64_t sequence : {1, 2, 2, 1, 3}) send(sequence);
  ASSERT_TRUE(stream.Read().ok());
  ASSERT_EQ(rx_link_.headers.size(), 3u);
  ASSERT_EQ(rx_link_.frames.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rx_link_.headers[i].sequence, i + 1);
    EXPECT_EQ(rx_link_.bodies[i], std::vector<std::byte>(60, static_cast<std::byte>(i + 1)));
  }
  EXPECT_EQ(counters_.Read().duplicate_frames, 2);
  send(5);
  EXPECT_TRUE(absl::IsDataLoss(stream.Read()));
  EXPECT_EQ(counters_.Read().malformed, 1);
  EXPECT_EQ(rx_link_.headers.size(), 3u);
}

TEST_F(FrameStreamTest, ThePeersEndIsUnavailable) {
  tx_.reset();
  EXPECT_TRUE(absl::IsUnavailable(rx_->Read()));
}

TEST_F(FrameStreamTest, APeerThatTakesNoAnswersIsGivenUp) {
  absl::Status status;
  int queued = 0;
  while (status.ok() && queued < 100000) {
    status = tx_->Queue({.header = {.type = FrameType::kAbort, .ticket = {5, 5}}});
    ++queued;
    if (queued % 100 == 0) {
      ASSERT_TRUE(tx_->Write().ok());
    }
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status));
}

}  // namespace
}  // namespace baton
