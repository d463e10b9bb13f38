#include "router/front/relay.h"

#include <poll.h>

#include <array>
#include <random>

#include "tests/unit/router/front/front_fixture.h"

namespace baton {
namespace {

class RelayTest : public FrontTest, public ::testing::WithParamInterface<bool> {
 protected:
  void Serve(GrpcFrontOptions options = {}) { FrontTest::Serve(std::move(options), GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(OverTlsOrNot, RelayTest, ::testing::Bool());

// Frames of all sizes, with bytes of all values.
std::string SomeFrames(size_t at_least) {
  std::mt19937 random(7);
  std::string bytes;
  while (bytes.size() < at_least) {
    std::string payload(random() % 5 == 0 ? 0 : random() % 40'000, '\0');
    for (char& byte : payload) byte = static_cast<char>(random());
    bytes += Frame(kDataFrame, 0, 1, payload);
  }
  return bytes;
}

TEST_P(RelayTest, BytesGoThroughUnchangedBothWays) {
  Serve();
  auto [client, server] = Begun();
  const std::string bytes = SomeFrames(1 << 20);
  for (size_t at = 0, size = 1; at < bytes.size(); at += size, size = size % 20'000 * 3 + 1) {
    const std::string part = bytes.substr(at, size);
    ASSERT_TRUE(client->Send(part));
    ASSERT_EQ(server->Read(part.size()), part);
    ASSERT_TRUE(server->Send(part));
    ASSERT_EQ(ReadExactly(*client, part.size()), part);
  }
}

TEST_P(RelayTest, ByteByByteIsNoOtherConnection) {
  Serve();
  const auto client = Client();
  const std::string bytes = ClientsBegin() + OpenedAndReset(3);
  for (const char byte : bytes) ASSERT_TRUE(client->Send({&byte, 1}));
  const auto server = Served();
  EXPECT_EQ(server->Read(bytes.size()), bytes);
  for (const char byte : bytes) ASSERT_TRUE(server->Send({&byte, 1}));
  EXPECT_EQ(ReadExactly(*client, bytes.size()), bytes);
}

TEST_P(RelayTest, TheServerNeverHearsOfAClientThatSpeaksSomethingElse) {
  Serve();
  const std::string begin = ClientsBegin();
  for (const std::string& said :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(kHttp2Preface) + Reset(1)}) {
    const auto client = Client();
    EXPECT_TRUE(client->Send(said));
    EXPECT_TRUE(client->AtEnd()) << said;
  }
  const auto half = Client();
  EXPECT_TRUE(half->Send(begin.substr(0, begin.size() - 1)));
  const auto other = Begun();
  EXPECT_EQ(num_unclaimed(), 0U) << "what is half said is not begun";
  EXPECT_TRUE(half->Send(begin.substr(begin.size() - 1)));
  EXPECT_EQ(Served()->Read(begin.size()), begin);
}

TEST_P(RelayTest, EachSideHearsOfTheOthersEnd) {
  Serve();
  {
    auto [client, server] = Begun();
    ASSERT_TRUE(client->Send(Frame(kDataFrame, 0, 1, "last")));
    server->Read(13);
    client->ShutdownSend();  // Whoever ends his side has gone, as for the library.
    EXPECT_TRUE(server->AtEnd());
    EXPECT_TRUE(client->AtEnd());
  }
  auto [client, server] = Begun();
  const std::string last = SomeFrames(100'000);
  ASSERT_TRUE(client->Send(SomeFrames(100'000)));  // Nobody reads it.
  ASSERT_TRUE(server->Send(last));
  server.reset();
  EXPECT_EQ(ReadAll(*client), last) << "what was said before the end";
  client.reset();
  EXPECT_TRUE(HoldsSoon([&] { return front_->num_connections() == 0; }));
}

// Writes until nothing was taken for a while; what was.
size_t WriteWhileTaken(int fd, std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size()) {
    pollfd room{.fd = fd, .events = POLLOUT};
    if (poll(&room, 1, 300) == 0) break;
    const ssize_t sent = send(fd, &bytes[taken], bytes.size() - taken, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) taken += static_cast<size_t>(sent);
  }
  return taken;
}

TEST_P(RelayTest, NoMoreIsHeldThanWhatTheKernelTakes) {
  Serve();
  auto [client, server] = Begun(/*receive_bytes=*/8192);
  const std::string bytes = SomeFrames(32 << 20);
  const size_t taken = WriteWhileTaken(server->fd(), bytes);
  EXPECT_LT(taken, size_t{16} << 20) << "TCP's own buffers have 4 MiB or so";
  EXPECT_EQ(ReadExactly(*client, taken), bytes.substr(0, taken));
  // The other way: what the server leaves stays at the client.
  ASSERT_TRUE(client->Send(bytes.substr(0, 50'000)));
  EXPECT_EQ(server->Read(50'000), bytes.substr(0, 50'000));
}

TEST_P(RelayTest, AServerThatEndsWhileItsClientReadsNothingIsNotHeld) {
  Serve();
  auto [client, server] = Begun(/*receive_bytes=*/8192);
  WriteWhileTaken(server->fd(), SomeFrames(32 << 20));
  server.reset();
  EXPECT_TRUE(HoldsSoon([&] { return front_->num_connections() == 0; }));
}

TEST_P(RelayTest, GoawayComesBetweenTwoFramesOfTheServer) {
  Serve();
  const std::string settings = Frame(kSettingsFrame, 0, 0);
  const std::string frame = Frame(kDataFrame, 0, 1, std::string(1000, 'x'));
  for (const size_t cut : {size_t{0}, size_t{4}, size_t{9}, size_t{500}, frame.size()}) {
    auto [client, server] = Begun();
    const std::string begun = settings + frame.substr(0, cut);
    ASSERT_TRUE(server->Send(begun));
    ASSERT_EQ(ReadExactly(*client, begun.size()), begun);
    // Streams that the server has opened are nobody's resets: 1000 may be, and one is too many.
    ASSERT_TRUE(client->Send(OpenedAndReset(500)));
    server->Read(OpenedAndReset(500).size());
    ASSERT_TRUE(client->Send(OpenedAndReset(501 + 200 * 20, 1001)));
    const bool is_within = cut > 0 && cut < frame.size();
    if (is_within) {
      EXPECT_TRUE(HoldsSoon([&] { return front_->num_calmed() > 0; }));
      ASSERT_TRUE(server->Send(frame.substr(cut) + frame));
    }
    const std::string rest = is_within ? frame.substr(cut) : "";
    const std::string said = ReadAll(*client);
    EXPECT_EQ(said.substr(0, rest.size()), rest) << cut;
    EXPECT_EQ(said.substr(rest.size()),
              Http2Goaway(ResetLimits().TextOf(ResetLimits::Limit::kConnection)));
    EXPECT_TRUE(server->AtEnd());
    // A front of its own for each, as they are of one client.
    front_.reset();
    Serve();
  }
}

// "MadeYouReset": frames that are not allowed let the server do it.
TEST_P(RelayTest, ResetsByTheServerCountAsItsClients) {
  Serve();
  auto [client, server] = Begun();
  std::string resets;
  for (uint32_t stream = 1; stream < 2 * 6000; stream += 2) resets += Reset(stream, 3);
  server->Send(resets);  // It may find its end closed.
  const std::string said = ReadAll(*client);
  const std::string goodbye = Http2Goaway(ResetLimits().TextOf(ResetLimits::Limit::kConnection));
  ASSERT_GE(said.size(), goodbye.size());
  EXPECT_EQ(said.substr(said.size() - goodbye.size()), goodbye);
  EXPECT_LT(said.size(), resets.size());
  EXPECT_TRUE(server->AtEnd());
  EXPECT_EQ(front_->num_calmed(), 1);
}

}  // namespace
}  // namespace baton
