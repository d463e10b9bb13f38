#include "router/front/grpc_front.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include "tests/unit/router/front/front_fixture.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
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
  Serve({.handshake_limit = milliseconds(50)});
  auto [client, server] = Begun();
  EXPECT_TRUE(http::TestClient(front_->port(), 0, nullptr).AtEnd()) << "another one's is over";
  ASSERT_TRUE(client->Send(Frame(kDataFrame, 0, 1)));
  EXPECT_EQ(server->Read(9), Frame(kDataFrame, 0, 1));
}

TEST_F(GrpcFrontTest, AtTheLimitTheQuietestWithoutAStreamGoes) {
  Serve({.max_connections = 3});
  auto [busy, busy_end] = Begun();
  ASSERT_TRUE(busy->Send(Frame(kHeadersFrame, 5, 1, "head")));
  busy_end->Read(13);
  auto [quiet, quiet_end] = Begun();
  auto [younger, younger_end] = Begun();
  auto [fourth, fourth_end] = Begun();
  EXPECT_TRUE(quiet->AtEnd());
  EXPECT_TRUE(quiet_end->AtEnd());
  for (auto* client : {younger.get(), fourth.get()}) {
    ASSERT_TRUE(client->Send(Frame(kHeadersFrame, 5, 1, "head")));
  }
  younger_end->Read(13);
  fourth_end->Read(13);
  EXPECT_TRUE(Client()->AtEnd()) << "all are busy";
  // An answer that has ended is one no longer.
  ASSERT_TRUE(busy_end->Send(Frame(kHeadersFrame, kEndStreamFlag, 1, "trailers")));
  ReadExactly(*busy, 17);
  const auto fifth = Begun();
  EXPECT_TRUE(busy->AtEnd());
}

TEST_F(GrpcFrontTest, WhoResetsTooMuchIsToldAndOthersGoOn) {
  Serve({.resets = {.of_client = {.burst = 1500, .per_s = 0.001}}});
  auto [other, other_end] = Begun();
  for (int i = 0; i < 2; ++i) {
    auto [client, server] = Begun();
    ASSERT_TRUE(client->Send(OpenedAndReset(20'000)));
    EXPECT_THAT(ReadAll(*client), HasSubstr("too many resets"));
    EXPECT_TRUE(server->AtEnd());
    EXPECT_EQ(front_->num_calmed(), i + 1);
  }
  const auto refused = Client();
  ASSERT_TRUE(refused->Send(ClientsBegin()));
  const std::string said = ReadAll(*refused);
  EXPECT_THAT(said, StartsWith(Frame(kSettingsFrame, 0, 0))) << "a server's first word";
  EXPECT_THAT(said, HasSubstr("too many resets: of the connections of one address at most 1500"));
  EXPECT_EQ(front_->num_calmed(), 3);
  EXPECT_EQ(num_unclaimed(), 0U);
  ASSERT_TRUE(other->Send(OpenedAndReset(3)));
  EXPECT_EQ(other_end->Read(OpenedAndReset(3).size()), OpenedAndReset(3));
  ASSERT_TRUE(other_end->Send(Reset(1)));
  EXPECT_EQ(ReadExactly(*other, 13), Reset(1));
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

TEST_F(GrpcFrontTest, AtStopWhatTheServerSaidLastArrives) {
  for (const bool over_tls : {false, true}) {
    Serve({}, over_tls);
    auto [client, server] = Begun();
    auto [blocked, blocked_end] = Begun(/*receive_bytes=*/8192);
    const std::string last = Frame(kDataFrame, 0, 1, std::string(16'000, 'x'));
    std::string said;
    for (int i = 0; i < 4; ++i) said += last;
    ASSERT_TRUE(server->Send(said));
    server.reset();
    front_->Stop();  // In time, though one reads nothing and another's server has not ended.
    EXPECT_EQ(ReadAll(*client), said);
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

TEST_F(GrpcFrontTest, APortInUseIsAnErrorThatNamesIt) {
  Serve();
  const auto second = GrpcFront::Create({.port = front_->port()});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("cannot listen on 127.0.0.1 port " + std::to_string(front_->port())));
}

}  // namespace
}  // namespace baton
