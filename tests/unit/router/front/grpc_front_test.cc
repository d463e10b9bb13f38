#include "router/front/grpc_front.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "tests/unit/router/front/front_fixture.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using GrpcFrontTest = FrontTest;

int64_t NumFiles() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST_F(GrpcFrontTest, WhoDoesNotBeginInTimeGoes) {
  for (const bool over_tls : {false, true}) {
    Serve({.handshake_limit = milliseconds(50)}, over_tls);
    const auto silent = Client();
    http::TestClient half(front_->port(), 0, nullptr);
    EXPECT_TRUE(half.Send(over_tls ? "\x16\x03\x01" : kHttp2Preface));
    EXPECT_TRUE(http::TestClient(front_->port(), 0, nullptr).AtEnd());
    EXPECT_TRUE(half.AtEnd());
    EXPECT_TRUE(HoldsSoon([&] { return front_->num_connections() == 0; }));
    EXPECT_EQ(num_unclaimed(), 0U);
    client_tls_ = nullptr;
  }
}

TEST_F(GrpcFrontTest, WhoHasBegunHasNoSuchLimit) {
  Serve({.handshake_limit = milliseconds(2000)});
  auto [client, server] = Begun();
  EXPECT_TRUE(http::TestClient(front_->port(), 0, nullptr).AtEnd()) << "another one's is over";
  ASSERT_TRUE(client->Send(Frame(kDataFrame, 0, 1)));
  EXPECT_EQ(server->Read(9), Frame(kDataFrame, 0, 1));
}

// A stream of it is open.
void OpenStream(Connection& connection, uint32_t stream = 1) {
  ASSERT_TRUE(connection.client->Send(Frame(kHeadersFrame, 5, stream, "head")));
  connection.server->Read(13);
}

TEST_F(GrpcFrontTest, AtTheLimitTheQuietestWithoutAStreamGoes) {
  Serve({.max_connections = 3});
  Connection busy = Begun();
  OpenStream(busy);
  Connection quiet = Begun();
  Connection younger = Begun();
  Connection fourth = Begun();
  EXPECT_TRUE(quiet.client->AtEnd());
  EXPECT_TRUE(quiet.server->AtEnd());
  OpenStream(younger);
  OpenStream(fourth);
  EXPECT_TRUE(Client()->AtEnd()) << "all are busy";
  // An answer that has ended is one no longer.
  ASSERT_TRUE(busy.server->Send(Frame(kHeadersFrame, kEndStreamFlag, 1, "trailers")));
  ReadExactly(*busy.client, 17);
  const Connection fifth = Begun();
  EXPECT_TRUE(busy.client->AtEnd());
}

TEST_F(GrpcFrontTest, AtTheLimitWhoHasNotTakenAnAnswerStays) {
  Serve({.max_connections = 2});
  Connection slow = Begun(/*receive_bytes=*/8192);
  OpenStream(slow);
  const std::string part = Frame(kDataFrame, 0, 1, std::string(16'000, 'x'));
  // More than all buffers take, then its end.
  std::thread writer([&] {
    for (int i = 0; i < 1000; ++i) slow.server->Send(part);
    slow.server->Send(Frame(kHeadersFrame, kEndStreamFlag, 1, "trailers"));
  });
  EXPECT_TRUE(HoldsSoon([&] { return slow.client->BytesWaiting() > 0; }));
  const Connection second = Begun();
  const Connection third = Begun();
  EXPECT_TRUE(second.client->AtEnd());
  EXPECT_EQ(ReadExactly(*slow.client, 1000 * part.size() + 17).size(), 1000 * part.size() + 17);
  writer.join();
}

// 127.0.0.1 has all of them, with streams: others come in all the same.
TEST_F(GrpcFrontTest, OneAddressDoesNotShutThePortForOthers) {
  Serve({.max_connections = 4});
  std::vector<Connection> many;
  for (int i = 0; i < 4; ++i) OpenStream(many.emplace_back(Begun()));
  EXPECT_TRUE(Client()->AtEnd()) << "one more of the same";
  std::vector<Connection> others;
  for (const char* address : {"127.0.0.2", "127.0.0.3"}) {
    others.push_back(Begun(0, address));
    OpenStream(others.back());
  }
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(many[static_cast<size_t>(i)].client->AtEnd()) << i;
  OpenStream(many[2], 3);
  OpenStream(many[3], 3);
  // Each other one has one, 127.0.0.1 two: it gives one more, and then nobody has more than others.
  others.push_back(Begun(0, "127.0.0.4"));
  OpenStream(others.back());
  EXPECT_TRUE(many[2].client->AtEnd());
  EXPECT_TRUE(Client(0, "127.0.0.5")->AtEnd());
  for (Connection& other : others) OpenStream(other, 3);
}

TEST_F(GrpcFrontTest, WhoHasTooManyOpenIsToldAndOthersGoOn) {
  Serve();
  Connection other = Begun();
  for (int i = 0; i < 2; ++i) {
    Connection client = Begun();
    ASSERT_TRUE(client.server->Send(Frame(kSettingsFrame, 0, 0)));
    ASSERT_TRUE(client.client->Send(Opened(201)));
    EXPECT_EQ(ReadAll(*client.client), Frame(kSettingsFrame, 0, 0) + Http2Goaway(kTooManyOpen));
    EXPECT_TRUE(client.server->AtEnd());
    EXPECT_EQ(front_->num_calmed(), i + 1);
  }
  ASSERT_TRUE(other.client->Send(OpenedAndReset(300) + Opened(200, 1001)));
  const size_t size = OpenedAndReset(300).size() + Opened(200).size();
  EXPECT_EQ(other.server->Read(size).size(), size);
  ASSERT_TRUE(other.server->Send(Reset(1)));
  EXPECT_EQ(ReadExactly(*other.client, 13), Reset(1));
  EXPECT_EQ(front_->num_calmed(), 2);
}

TEST_F(GrpcFrontTest, DrainTakesNobodyElseAndStopEndsAllThatIsThere) {
  for (const bool over_tls : {false, true}) {
    const int64_t before = NumFiles();
    Serve({}, over_tls);
    http::TestClient silent(front_->port(), 0, nullptr);
    http::TestClient half(front_->port(), 0, nullptr);
    EXPECT_TRUE(half.Send(over_tls ? "\x16\x03\x01" : kHttp2Preface.substr(0, 5)));
    auto [quiet, quiet_end] = Begun();
    auto [stuck, stuck_end] = Begun();
    const std::string much(200'000, '\0');
    ASSERT_TRUE(stuck->Send(FrameHead(1 << 20, kDataFrame, 0, 1) + much));
    auto late = Client();
    if (over_tls) {
      ASSERT_EQ(SSL_connect(late->ssl()), 1);
    }
    EXPECT_TRUE(HoldsSoon([&] { return front_->num_connections() == 5; }));
    front_->Drain();
    EXPECT_FALSE(http::TestClient(front_->port(), 0, nullptr).connected());
    EXPECT_TRUE(late->Send(ClientsBegin()));
    EXPECT_TRUE(late->AtEnd()) << "it came before, and had not begun";
    ASSERT_TRUE(quiet_end->Send(Frame(kDataFrame, 0, 1)));
    EXPECT_EQ(ReadExactly(*quiet, 9), Frame(kDataFrame, 0, 1)) << "what is there goes on";
    front_->Stop();
    front_->Stop();
    for (auto* client : {&silent, &half, quiet.get(), stuck.get()}) EXPECT_TRUE(client->AtEnd());
    for (auto* end : {quiet_end.get(), stuck_end.get()}) EXPECT_TRUE(end->AtEnd());
    EXPECT_EQ(front_->num_connections(), 0);
    for (auto* client : {&silent, &half, quiet.get(), stuck.get(), late.get()}) client->Close();
    quiet_end.reset();
    stuck_end.reset();
    front_.reset();
    EXPECT_EQ(NumFiles(), before);
    client_tls_ = nullptr;
  }
}

TEST_F(GrpcFrontTest, AtStopWhatTheServerSaysLastArrives) {
  std::string said;  // More than the kernel holds on its way.
  while (said.size() < (8 << 20)) said += Frame(kDataFrame, 0, 1, std::string(16'000, 'x'));
  for (const bool over_tls : {false, true}) {
    Serve({}, over_tls);
    auto [client, server] = Begun(/*receive_bytes=*/8192);
    auto [blocked, blocked_end] = Begun(/*receive_bytes=*/8192);
    std::thread writer([&said, end = std::move(server)] { end->Send(said); });
    std::string read = ReadExactly(*client, 1);
    std::thread reader([&read, from = client.get()] { read += ReadAll(*from); });
    front_->Stop();  // In time, though one reads nothing and another's server has not ended.
    writer.join();
    reader.join();
    EXPECT_TRUE(read == said) << read.size() << " of " << said.size();
    client_tls_ = nullptr;
  }
}

TEST_F(GrpcFrontTest, AtTheLimitWhoHasNotBegunGoesFirst) {
  Serve({.max_connections = 3});
  auto [quiet, quiet_end] = Begun();
  const auto silent = Client();
  EXPECT_TRUE(HoldsSoon([&] { return front_->num_connections() == 2; }));
  const auto third = Begun();
  const auto fourth = Begun();
  EXPECT_TRUE(silent->AtEnd());
  ASSERT_TRUE(quiet->Send(OpenedAndReset(1)));
  EXPECT_EQ(quiet_end->Read(OpenedAndReset(1).size()), OpenedAndReset(1));
}

TEST_F(GrpcFrontTest, AThousandConnectionsAtOnceAllGetThrough) {
  Serve({.max_connections = 100});
  std::vector<std::unique_ptr<http::TestClient>> clients;
  for (int i = 0; i < 1000; ++i) {
    clients.push_back(Client());
    if (clients.size() > 100) clients.erase(clients.begin());
  }
  const auto [client, server] = Begun();
  EXPECT_LE(front_->num_connections(), 100);
  ASSERT_TRUE(client->Send(OpenedAndReset(1)));
  EXPECT_EQ(server->Read(OpenedAndReset(1).size()), OpenedAndReset(1));
}

TEST_F(GrpcFrontTest, AHostThatIsNoAddressIsNotAnsweredByAnotherPort) {
  const absl::Status status = GrpcFront::Create({.host = "nowhere"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("gRPC host \"nowhere\" is not an IP"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("port")));
}

TEST_F(GrpcFrontTest, APortInUseIsAnErrorThatNamesIt) {
  Serve();
  const auto second = GrpcFront::Create({.port = front_->port()});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("cannot listen on 127.0.0.1 port " + std::to_string(front_->port())));
}

}  // namespace
}  // namespace baton
