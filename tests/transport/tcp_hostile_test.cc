// What strangers on the data port can do: nothing.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "common/base/random.h"
#include "common/base/crc32c.h"
#include "common/transport/handshake.h"
#include "common/transport/wire.h"
#include "gtest/gtest.h"
#include "tests/transport/transport_cluster.h"

namespace baton {
namespace {

#ifdef BATON_SANITIZED
constexpr int kBlobs = 2000;
#else
constexpr int kBlobs = 10000;
#endif

FileDescriptor Connect(const std::string& endpoint) {
  auto fd = ConnectTcp(endpoint);
  EXPECT_TRUE(fd.ok()) << fd.status();
  if (!fd.ok()) return {};
  pollfd wait{fd->get(), POLLOUT, 0};
  ::poll(&wait, 1, 10000);
  return *std::move(fd);
}

void Send(const FileDescriptor& fd, std::span<const std::byte> bytes) {
  // The other end may have closed already; that is its right.
  (void)!::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// True when the other side closed within ten seconds.
bool WaitClosed(const FileDescriptor& fd) {
  for (;;) {
    pollfd wait{fd.get(), POLLIN, 0};
    if (::poll(&wait, 1, 10000) <= 0) return false;
    char buffer[4096];
    const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
    if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
  }
}

template <size_t n>
std::vector<std::byte> Frame(FrameHeader header, const std::array<std::byte, n>& body,
                             uint32_t crc) {
  header.payload_bytes = n;
  const HeaderBytes head = EncodeHeader(header);
  const TrailerBytes trailer = EncodeTrailer({.crc32c = crc});
  std::vector<std::byte> bytes(head.begin(), head.end());
  bytes.insert(bytes.end(), body.begin(), body.end());
  bytes.insert(bytes.end(), trailer.begin(), trailer.end());
  return bytes;
}

class TcpHostileTest : public testing::TestWithParam<TransportKind> {
 protected:
  TcpHostileTest()
      : from_(cluster_.Make({.incarnation = 1})), to_(cluster_.Make({.incarnation = 2})) {}

  void ExpectStillWorks(int32_t index) {
    const Handoff h = MakeHandoff(from_.get(), to_.get(), {0, 20}, index);
    h.Run(20);
    h.ExpectVerified();
  }

  // Waits until the transport has closed so many connections.
  void WaitClosedConnections(int64_t n) {
    for (int i = 0; i < 20000 && to_->counters().closed_connections < n; ++i) ::poll(nullptr, 0, 1);
    EXPECT_GE(to_->counters().closed_connections, n);
  }

  TransportCluster cluster_{GetParam()};
  std::unique_ptr<Endpoint> from_;
  std::unique_ptr<Endpoint> to_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, TcpHostileTest,
                         testing::Values(TransportKind::kTcp, TransportKind::kTcpStaged),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(TcpHostileTest, RandomBytesCloseTheirOwnConnectionAndNothingElse) {
  Random random(21);
  const HeaderBytes hello =
      EncodeHeader({.type = FrameType::kHello, .sequence = 1, .payload_bytes = kHelloBytes});
  for (int i = 0; i < kBlobs; ++i) {
    std::vector<std::byte> blob(kHeaderBytes + random.Below(300));
    for (std::byte& b : blob) b = static_cast<std::byte>(random.Next());
    // Half of them begin like a real client.
    if (i % 2 == 0) std::copy(hello.begin(), hello.end(), blob.begin());
    if (i % 4 == 0) blob.resize(kHeaderBytes + kHelloBytes + kTrailerBytes);
    const FileDescriptor fd = Connect(to_->address);
    Send(fd, blob);
    if (i % 1000 == 0) ExpectStillWorks(i / 1000);
  }
  WaitClosedConnections(kBlobs);
  EXPECT_GT(to_->counters().malformed, kBlobs / 4);
  EXPECT_TRUE(to_->counters().authenticated_connections == 1);
  ExpectStillWorks(20);
}

TEST_P(TcpHostileTest, EveryKindOfFrameBeforeTheHandshakeIsMalformed) {
  for (FrameType type :
       {FrameType::kChallenge, FrameType::kProof, FrameType::kAccepted, FrameType::kData,
        FrameType::kFinal, FrameType::kAck, FrameType::kVerified, FrameType::kAbort}) {
    uint32_t payload = 0;
    if (type == FrameType::kChallenge) payload = kChallengeBytes;
    if (type == FrameType::kProof) payload = kProofBytes;
    if (type == FrameType::kData || type == FrameType::kFinal) payload = 64;
    FrameHeader header{.type = type, .sequence = 1, .payload_bytes = payload};
    header.range = {0, KvPlane::kK, 0, 1, 0, 1};
    const FileDescriptor fd = Connect(to_->address);
    Send(fd, EncodeHeader(header));
    EXPECT_TRUE(WaitClosed(fd)) << static_cast<int>(type);
  }
  EXPECT_EQ(to_->counters().malformed, 8);
  ExpectStillWorks(0);
}

TEST_P(TcpHostileTest, AClientWithoutTheKeyIsRefusedWhateverItAnswers) {
  const Hello hello{.sender = 1, .receiver = 2, .pool = {16, {0, 4}}};
  const auto body = EncodeHello(hello);
  for (bool echo_receivers_proof : {false, true}) {
    const FileDescriptor fd = Connect(to_->address);
    Send(fd, Frame({.type = FrameType::kHello, .sequence = 1}, body, Crc32c(body)));
    std::array<std::byte, kHeaderBytes + kChallengeBytes + kTrailerBytes> answer{};
    size_t got = 0;
    while (got < answer.size()) {
      pollfd wait{fd.get(), POLLIN, 0};
      ASSERT_GT(::poll(&wait, 1, 10000), 0);
      const ssize_t n = ::read(fd.get(), answer.data() + got, answer.size() - got);
      ASSERT_GT(n, 0);
      got += static_cast<size_t>(n);
    }
    auto challenge = DecodeChallenge(std::span(answer).subspan(kHeaderBytes, kChallengeBytes));
    ASSERT_TRUE(challenge.ok());
    std::array<std::byte, kProofBytes> proof{};
    for (size_t i = 0; echo_receivers_proof && i < proof.size(); ++i) {
      proof[i] = static_cast<std::byte>(challenge->proof[i]);
    }
    Send(fd, Frame({.type = FrameType::kProof, .sequence = 2}, proof, Crc32c(proof)));
    EXPECT_TRUE(WaitClosed(fd));
  }
  EXPECT_EQ(to_->counters().failed_handshakes, 2);
  EXPECT_EQ(to_->counters().authenticated_connections, 0);
}

// The code with which a hello is refused; kNone if it is challenged.
AbortCode AnswerTo(const std::string& address, const Hello& hello) {
  const auto body = EncodeHello(hello);
  const FileDescriptor fd = Connect(address);
  Send(fd, Frame({.type = FrameType::kHello, .sequence = 1}, body, Crc32c(body)));
  HeaderBytes answer{};
  for (size_t got = 0; got < answer.size();) {
    pollfd wait{fd.get(), POLLIN, 0};
    if (::poll(&wait, 1, 10000) <= 0) return AbortCode::kDeadline;
    const ssize_t n = ::read(fd.get(), answer.data() + got, answer.size() - got);
    if (n <= 0) return AbortCode::kDeadline;
    got += static_cast<size_t>(n);
  }
  const auto header = DecodeHeader(answer);
  if (!header.ok()) return AbortCode::kDeadline;
  EXPECT_TRUE(header->type != FrameType::kAbort || WaitClosed(fd));
  return header->code;
}

TEST_P(TcpHostileTest, AHelloOfRanksThatCannotBeIsRefused) {
  struct Row {
    RankPlace sender;
    RankPlace receiver;
    HeadRange heads;
    AbortCode code;
  };
  const RankPlace only;
  for (const Row& row : {Row{only, only, {0, 4}, AbortCode::kNone},
                         Row{{1, 2}, only, {2, 2}, AbortCode::kNone},
                         Row{{5, 8}, only, {2, 1}, AbortCode::kNone},
                         Row{only, {0, 2}, {0, 4}, AbortCode::kWrongReceiver},
                         Row{only, {1, 2}, {0, 4}, AbortCode::kWrongReceiver},
                         Row{{0, 3}, only, {0, 4}, AbortCode::kProtocol},
                         Row{{0, 2}, only, {0, 4}, AbortCode::kProtocol},
                         Row{{0, 2}, only, {2, 2}, AbortCode::kProtocol},
                         Row{only, only, {0, 8}, AbortCode::kProtocol}}) {
    EXPECT_EQ(AnswerTo(to_->address, {.sender = 1,
                                      .receiver = 2,
                                      .sender_place = row.sender,
                                      .receiver_place = row.receiver,
                                      .pool = {16, row.heads}}),
              row.code)
        << "rank " << row.sender.rank << " of " << row.sender.size;
  }
  EXPECT_EQ(to_->counters().failed_handshakes, 6);
  ExpectStillWorks(0);
}

TEST_P(TcpHostileTest, HundredsOfSilentAndSlowConnectionsKeepNobodyOut) {
  to_ = cluster_.Make({.incarnation = 50, .max_unauthenticated = 64});
  std::vector<FileDescriptor> silent;
  const HeaderBytes hello =
      EncodeHeader({.type = FrameType::kHello, .sequence = 1, .payload_bytes = kHelloBytes});
  for (int i = 0; i < 300; ++i) {
    silent.push_back(Connect(to_->address));
    // A slow one: a part of a good header, and later one byte more.
    Send(silent.back(), std::span(hello).first(static_cast<size_t>(i) % kHeaderBytes));
    if (i % 50 == 0) {
      ExpectStillWorks(i / 50);
      from_ = cluster_.Make({.incarnation = static_cast<Incarnation>(100 + i)});
    }
  }
  for (const FileDescriptor& fd : silent) Send(fd, std::span(hello).first(1));
  ExpectStillWorks(10);
  // All of them go: pushed out by newer ones, or by the handshake's deadline.
  WaitClosedConnections(300);
  EXPECT_GE(to_->counters().refused_connections, 300 - 64 - 10);
}

TEST_P(TcpHostileTest, AListenerOutOfRangeOrTakenIsAClearError) {
  TransportOptions options{.incarnation = 1,
                           .cache = to_->cache.get(),
                           .epochs = to_->epochs.get(),
                           .sink = [](TransferEvent) {}};
  auto bad_port = TcpKvTransport::Create({.transport = options, .port = 70000});
  EXPECT_EQ(bad_port.status().code(), absl::StatusCode::kInvalidArgument);
  const int taken = std::stoi(to_->address.substr(to_->address.rfind(':') + 1));
  auto in_use = TcpKvTransport::Create({.transport = options, .port = taken});
  EXPECT_EQ(in_use.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(in_use.status().message().find(std::to_string(taken)), absl::string_view::npos);
  auto bad_host = TcpKvTransport::Create({.transport = options, .bind_host = "not an address"});
  EXPECT_EQ(bad_host.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(TcpHostileTest, AnEndpointThatIsNoAddressEndsTheStart) {
  for (const char* endpoint : {"", "nonsense", "host.example:1", "127.0.0.1:", ":80",
                               "127.0.0.1:99999", "[::1", "127.0.0.1:0x10"}) {
    Handoff h = MakeHandoff(from_.get(), to_.get(), {0, 20}, 0);
    h.ticket.hi = std::hash<std::string>()(endpoint) | 1;
    StartArgs start = h.start();
    start.endpoint = endpoint;
    from_->transport->Start(start);
    EXPECT_FALSE(from_->log.WaitEnded(h.ticket, false).status.ok()) << endpoint;
  }
}

TEST_P(TcpHostileTest, SpeaksIpv6) {
  TransportOptions options{.incarnation = 9,
                           .cache = to_->cache.get(),
                           .epochs = to_->epochs.get(),
                           .sink = [](TransferEvent) {}};
  auto listener = TcpKvTransport::Create({.transport = options, .bind_host = "::1"});
  if (!listener.ok()) {
    // No IPv6 on this machine: the refusal names the address.
    EXPECT_NE(listener.status().message().find("::1"), absl::string_view::npos);
    return;
  }
  EXPECT_EQ((*listener)->endpoint().rfind("[::1]:", 0), 0u);
  EXPECT_GT((*listener)->port(), 0);
  const FileDescriptor fd = Connect((*listener)->endpoint());
  Send(fd, EncodeHeader({.type = FrameType::kAck, .sequence = 1}));
  EXPECT_TRUE(WaitClosed(fd));
}

// Whoever does not begin with TLS, or with a key that is not of this process, is gone at once.
TEST(TlsHostileTest, PlaintextAndRandomBytesCloseTheirOwnConnectionAndNothingElse) {
  TransportCluster cluster(TransportKind::kTls);
  auto from = cluster.Make({.incarnation = 1});
  auto to = cluster.Make({.incarnation = 2});
  const Handoff before = MakeHandoff(from.get(), to.get(), {0, 20}, 0);
  before.Run(20);
  before.ExpectVerified();
  Random random(22);
  constexpr int kStrangers = 50;
  for (int i = 0; i < kStrangers; ++i) {
    std::vector<std::byte> blob(kHeaderBytes + kHelloBytes + kTrailerBytes);
    for (std::byte& b : blob) b = static_cast<std::byte>(random.Next());
    const HeaderBytes hello =
        EncodeHeader({.type = FrameType::kHello, .sequence = 1, .payload_bytes = kHelloBytes});
    std::copy(hello.begin(), hello.end(), blob.begin());
    const FileDescriptor fd = Connect(to->address);
    Send(fd, blob);
    EXPECT_TRUE(WaitClosed(fd));
  }
  EXPECT_EQ(to->counters().failed_handshakes, kStrangers);
  EXPECT_EQ(to->counters().authenticated_connections, 1);
  const Handoff after = MakeHandoff(from.get(), to.get(), {0, 20}, 1);
  after.Run(20);
  after.ExpectVerified();
}

}  // namespace
}  // namespace baton
