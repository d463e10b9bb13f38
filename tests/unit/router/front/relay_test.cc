#include "router/front/relay.h"

#include <poll.h>

#include <chrono>
#include <random>
#include <thread>

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

TEST_P(RelayTest, WhoTakesNothingForAWhileGoesAndWhoTakesSomeStays) {
  Serve({.write_limit = std::chrono::seconds(3)});
  auto [slow, slow_server] = Begun(/*receive_bytes=*/8192);
  auto [client, server] = Begun(/*receive_bytes=*/8192);
  const std::string bytes = SomeFrames(32 << 20);
  WriteWhileTaken(server->fd(), bytes);
  const std::string some = Frame(kDataFrame, 0, 1, std::string(16'000, 'x'));
  for (int i = 0; i < 20; ++i) {  // Longer than the limit in all.
    ASSERT_TRUE(slow_server->Send(some));
    ASSERT_EQ(ReadExactly(*slow, some.size()), some);
    absl::SleepFor(absl::Milliseconds(200));
  }
  EXPECT_TRUE(HoldsSoon([&] { return front_->num_connections() == 1; }));
  EXPECT_TRUE(server->AtEnd());
  ASSERT_TRUE(slow_server->Send(some));
  EXPECT_EQ(ReadExactly(*slow, some.size()), some);
}

TEST_P(RelayTest, GoawayComesBetweenTwoFramesOfTheServer) {
  Serve();
  const std::string settings = Frame(kSettingsFrame, 0, 0);
  const std::string frame = Frame(kDataFrame, 0, 1, std::string(1000, 'x'));
  for (const size_t cut : {size_t{0}, size_t{4}, size_t{9}, size_t{500}, frame.size()}) {
    auto [client, server] = Begun();
    const int64_t before = front_->num_calmed();
    const std::string begun = settings + frame.substr(0, cut);
    ASSERT_TRUE(server->Send(begun));
    ASSERT_EQ(ReadExactly(*client, begun.size()), begun);
    ASSERT_TRUE(client->Send(Opened(200)));
    server->Read(Opened(200).size());
    EXPECT_EQ(front_->num_calmed(), before);
    ASSERT_TRUE(client->Send(Opened(1, 401)));
    const bool is_within = cut > 0 && cut < frame.size();
    EXPECT_TRUE(HoldsSoon([&] { return front_->num_calmed() > before; }));
    if (is_within) {
      ASSERT_TRUE(server->Send(frame.substr(cut) + frame));
    }
    const std::string rest = is_within ? frame.substr(cut) : "";
    EXPECT_EQ(ReadAll(*client), rest + Http2Goaway(kTooManyOpen)) << cut;
    EXPECT_TRUE(server->AtEnd());
  }
}

TEST_P(RelayTest, GoawayComesAfterSettingsIfTheServerHasSaidNothing) {
  Serve();
  auto [client, server] = Begun();
  ASSERT_TRUE(client->Send(Opened(201)));
  EXPECT_EQ(ReadAll(*client), Frame(kSettingsFrame, 0, 0) + Http2Goaway(kTooManyOpen));
  EXPECT_TRUE(server->AtEnd());
}

// ---- Turns --------------------------------------------------------------------------------------

constexpr int kDebt = 50;

// One stream in fifty seconds, once 50 were reset.
GrpcFrontOptions FewTurns() { return {.streams = {.most_debt = kDebt, .digested_per_s = 0.02}}; }

// The debt is above its limit, and the next turn far away.
void TakeAllTurns(Connection& flood) {
  const std::string bytes = OpenedAndReset(kDebt + 2);
  ASSERT_TRUE(flood.client->Send(bytes));
  EXPECT_EQ(flood.server->Read(bytes.size()), bytes);
}

TEST_P(RelayTest, AStreamThatWaitsGoesOnWhereItStoodAndTheServerIsHeardMeanwhile) {
  Serve({.streams = {.most_debt = kDebt, .digested_per_s = 20}});
  Connection flood = Begun();
  const std::string bytes = OpenedAndReset(kDebt + 30);
  ASSERT_TRUE(flood.client->Send(bytes));
  EXPECT_TRUE(HoldsSoon([&] { return front_->num_paced() == 1; }));
  const std::string said = SomeFrames(200'000);
  std::thread writer([&] { flood.server->Send(said); });
  EXPECT_EQ(ReadExactly(*flood.client, said.size()), said);
  EXPECT_EQ(flood.server->Read(bytes.size()), bytes) << "in time, and in order";
  writer.join();
  const std::string more = Frame(kDataFrame, 0, 1, "later");
  ASSERT_TRUE(flood.client->Send(more));
  EXPECT_EQ(flood.server->Read(more.size()), more);
  EXPECT_EQ(front_->num_paced(), 1) << "counted once";
  EXPECT_EQ(front_->num_calmed(), 0);
}

TEST_P(RelayTest, TheServerKnowsNothingOfAStreamThatWaits) {
  Serve(FewTurns());
  Connection flood = Begun();
  TakeAllTurns(flood);
  Connection client = Begun();
  const std::string before = Frame(kDataFrame, 0, 0, "ping") + Reset(1);
  ASSERT_TRUE(client.client->Send(before + Opened(1)));
  const std::string head = Opened(1).substr(0, 8);  // But the last byte.
  EXPECT_EQ(client.server->Read(before.size() + 8), before + head);
  EXPECT_TRUE(HoldsSoon([&] { return front_->num_paced() == 1; }));
  pollfd more{.fd = client.server->fd(), .events = POLLIN};
  EXPECT_EQ(poll(&more, 1, 100), 0);
}

TEST_P(RelayTest, ResetsOfStreamsThatAreNotOpenAreNoDebtAndNoCredit) {
  Serve(FewTurns());
  auto [client, server] = Begun();
  std::string resets = Opened(1);
  for (uint32_t stream = 0; stream < 500; ++stream) resets += Reset(stream % 100 + 1);
  resets += OpenedAndReset(kDebt - 1, 1001);
  ASSERT_TRUE(client->Send(resets));
  EXPECT_EQ(server->Read(resets.size()).size(), resets.size());
  EXPECT_EQ(front_->num_paced(), 0);
  // Nor do they make room for open ones.
  std::string open = Opened(200, 10'001);
  for (uint32_t stream = 0; stream < 500; ++stream) open += Reset(2 * stream);
  ASSERT_TRUE(client->Send(open + Opened(1, 20'001)));
  EXPECT_EQ(ReadAll(*client), Frame(kSettingsFrame, 0, 0) + Http2Goaway(kTooManyOpen));
}

TEST_P(RelayTest, AnAnswersEndThatCrossesAResetCountsOnce) {
  Serve(FewTurns());
  auto [client, server] = Begun();
  std::string answers;
  for (uint32_t stream = 1; stream < 2 * 200; stream += 2) {
    answers += Frame(kHeadersFrame, kEndStreamFlag, stream, "trailers") + Reset(stream, 0);
  }
  ASSERT_TRUE(client->Send(Opened(200)));
  server->Read(Opened(200).size());
  ASSERT_TRUE(server->Send(answers));
  ASSERT_EQ(ReadExactly(*client, answers.size()), answers);
  std::string resets;
  for (uint32_t stream = 1; stream < 2 * 200; stream += 2) resets += Reset(stream);
  const std::string more = resets + Opened(200, 1001);
  ASSERT_TRUE(client->Send(more));
  EXPECT_EQ(server->Read(more.size()), more);
  EXPECT_EQ(front_->num_paced(), 0) << "answered ones are no debt";
  EXPECT_EQ(front_->num_calmed(), 0) << "and free their places";
  ASSERT_TRUE(client->Send(Opened(1, 2001)));
  EXPECT_EQ(ReadAll(*client), Http2Goaway(kTooManyOpen)) << "once each";
}

// "MadeYouReset": frames that are not allowed let the server do it.
TEST_P(RelayTest, ResetsByTheServerAreADebt) {
  Serve(FewTurns());
  auto [client, server] = Begun();
  ASSERT_TRUE(client->Send(Opened(kDebt + 2)));
  server->Read(Opened(kDebt + 2).size());
  std::string resets;
  for (uint32_t stream = 1; stream < 2 * (kDebt + 2); stream += 2) resets += Reset(stream, 3);
  ASSERT_TRUE(server->Send(resets));
  EXPECT_EQ(ReadExactly(*client, resets.size()), resets);
  ASSERT_TRUE(client->Send(Opened(3, 1001)));
  EXPECT_TRUE(HoldsSoon([&] { return front_->num_paced() == 1; }));
}

TEST_P(RelayTest, WhoWaitsMayGo) {
  Serve(FewTurns());
  Connection flood = Begun();
  TakeAllTurns(flood);
  {
    Connection by_server = Begun();
    ASSERT_TRUE(by_server.client->Send(Opened(3)));
    EXPECT_TRUE(HoldsSoon([&] { return front_->num_paced() == 1; }));
    ASSERT_TRUE(by_server.server->Send(Frame(kSettingsFrame, 0, 0)));
    by_server.server.reset();
    EXPECT_EQ(ReadAll(*by_server.client), Frame(kSettingsFrame, 0, 0));
  }
  EXPECT_TRUE(HoldsSoon([&] { return front_->num_connections() == 1; }));
  Connection at_stop = Begun();
  ASSERT_TRUE(at_stop.client->Send(Opened(3)));
  EXPECT_TRUE(HoldsSoon([&] { return front_->num_paced() == 2; }));
  ASSERT_TRUE(at_stop.server->Send(Frame(kSettingsFrame, 0, 0)));
  at_stop.server.reset();
  front_->Stop();
  EXPECT_EQ(ReadAll(*at_stop.client), Frame(kSettingsFrame, 0, 0));
  EXPECT_EQ(front_->num_connections(), 0);
}

}  // namespace
}  // namespace baton
