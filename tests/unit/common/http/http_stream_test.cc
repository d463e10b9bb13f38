#include "common/http/http_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/tls/openssl_handles.h"
#include "tests/unit/common/http/server_fixture.h"
#include "tests/unit/common/http/test_client.h"
#include "tests/unit/common/http/test_tls.h"

namespace baton::http {
namespace {

class HttpStreamTest : public ::testing::Test {
 protected:
  std::unique_ptr<HttpServer> Serve(ServerOptions options = {}) {
    options.tls = [this] { return server_tls_; };
    return StartServer(std::move(options));
  }
  std::unique_ptr<TestClient> Client(const HttpServer& server) const {
    return std::make_unique<TestClient>(server.port(), 0, client_tls_.get());
  }

  std::shared_ptr<SSL_CTX> server_tls_ = NewServerTls();
  const std::shared_ptr<SSL_CTX> client_tls_ = NewClientTls();
};

TEST_F(HttpStreamTest, SpeaksTls13And12AndNothingElse) {
  const auto server = Serve();
  const struct {
    int version;
    bool is_served;
  } cases[] = {{TLS1_3_VERSION, true}, {TLS1_2_VERSION, true}, {TLS1_1_VERSION, false}};
  for (const auto& each : cases) {
    const auto tls = NewClientTls(each.version);
    TestClient client(server->port(), 0, tls.get());
    EXPECT_EQ(client.Get("/health").body, each.is_served ? "ok" : "") << each.version;
  }
  TestClient plain(server->port(), 0, nullptr);
  EXPECT_EQ(plain.Get("/health").status, 0);
  EXPECT_TRUE(plain.AtEnd());
}

TEST_F(HttpStreamTest, WhoOffersProtocolsMustOfferHttp11) {
  const auto server = Serve();
  const struct {
    std::string offered;
    bool is_served;
  } cases[] = {{"\x02h2\x08http/1.1", true}, {"\x08http/1.1", true}, {"\x02h2", false}};
  for (const auto& each : cases) {
    const auto client = Client(*server);
    SSL_set_alpn_protos(client->ssl(), reinterpret_cast<const unsigned char*>(each.offered.data()),
                        static_cast<unsigned>(each.offered.size()));
    EXPECT_EQ(client->Get("/health").body, each.is_served ? "ok" : "") << each.offered;
  }
}

TEST_F(HttpStreamTest, AHandshakeThatNeverEndsIsBounded) {
  const auto server = Serve({.header_timeout = milliseconds(100)});
  TestClient silent(server->port(), 0, nullptr);
  TestClient begun(server->port(), 0, nullptr);
  begun.Send(std::string("\x16\x03\x01\x02\x00\x01", 6));  // A client's hello of 512 bytes.
  EXPECT_TRUE(silent.AtEnd());
  EXPECT_TRUE(begun.AtEnd());
  EXPECT_TRUE(EmptiesWithin(*server, absl::Seconds(20)));
}

TEST_F(HttpStreamTest, AHandshakeHasAPlaceAsOneThatIsQuietAndGoesForANewOne) {
  const auto server = Serve({.max_connections = 2, .header_timeout = std::chrono::hours(1)});
  TestClient first(server->port(), 0, nullptr);
  TestClient second(server->port(), 0, nullptr);
  const auto served = Client(*server);
  EXPECT_EQ(served->Get("/health").body, "ok");
  EXPECT_TRUE(first.AtEnd());
  EXPECT_EQ(Client(*server)->Get("/health").body, "ok");
  EXPECT_TRUE(second.AtEnd());
}

// What a client says first.
std::string HelloOf(SSL_CTX* tls) {
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(tls), SSL_free);
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), out);
  SSL_set_connect_state(ssl.get());
  SSL_do_handshake(ssl.get());
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(out, &bytes);
  return std::string(bytes, static_cast<size_t>(size));
}

TEST_F(HttpStreamTest, WhatElseIsReadyHasATurnBetweenTwoHandshakes) {
  const auto server = Serve();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<TestClient>(server->port(), 0, nullptr));
  }
  const auto num_answered = [&] {
    return std::ranges::count_if(clients, [](const auto& c) { return c->BytesWaiting() > 0; });
  };
  while (server->num_connections() < 40) absl::SleepFor(absl::Milliseconds(1));
  // All come while the thread stands; then tasks and handshakes take turns.
  absl::Notification all_came;
  absl::Notification end;
  std::ptrdiff_t answered_meanwhile = 0;
  std::function<void(int)> take_turns = [&](int turns) {
    answered_meanwhile = num_answered();
    if (turns == 0) return end.Notify();
    server->Post([&, turns] { take_turns(turns - 1); });
  };
  server->Post([&] {
    all_came.WaitForNotification();
    take_turns(10);
  });
  for (const auto& client : clients) EXPECT_TRUE(client->Send(HelloOf(client_tls_.get())));
  all_came.Notify();
  end.WaitForNotification();
  EXPECT_GT(answered_meanwhile, 0);
  EXPECT_LE(answered_meanwhile, 12);
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  while (num_answered() < 40 && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(num_answered(), 40);
}

TEST_F(HttpStreamTest, ADrainWaitsForNoHandshake) {
  const auto server = Serve({.header_timeout = std::chrono::hours(1)});
  TestClient silent(server->port(), 0, nullptr);
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (server->num_connections() == 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(5));
  server->BeginDrain();
  EXPECT_TRUE(EmptiesWithin(*server, absl::Seconds(20)));
}

TEST_F(HttpStreamTest, NewConnectionsGoByTheNewCertificateAndOldOnesGoOn) {
  const auto server = Serve();
  const auto old = Client(*server);
  EXPECT_EQ(old->Get("/health").body, "ok");
  server_tls_ = NewServerTls();
  const auto fresh = Client(*server);
  EXPECT_EQ(fresh->Get("/health").body, "ok");
  EXPECT_EQ(old->Get("/health").body, "ok");
  const auto leaf = [](const std::unique_ptr<TestClient>& client) {
    return ToPem(SSL_get0_peer_certificate(client->ssl()));
  };
  EXPECT_NE(leaf(old), leaf(fresh));
}

TEST_F(HttpStreamTest, RequestsMayComeInARecordForEachByte) {
  const auto server = Serve();
  const auto client = Client(*server);
  const std::string request = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello";
  const std::string rest = request + request;
  for (const char byte : rest) ASSERT_TRUE(client->Send({&byte, 1}));  // A record each.
  EXPECT_EQ(client->Read().body, "hello");
  EXPECT_EQ(client->Read().body, "hello");
}

// Two requests in one record, which a relay hands on byte by byte, as it does with the handshake.
TEST_F(HttpStreamTest, ARecordMayComeByteByByte) {
  const auto server = Serve();
  const std::string request = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello";
  const std::string rest = request + request;
  TestClient wire(server->port(), 0, nullptr);
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(client_tls_.get()), SSL_free);
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), in, out);
  SSL_set_connect_state(ssl.get());
  const auto relay = [&] {
    char byte = 0;
    while (BIO_read(out, &byte, 1) == 1) ASSERT_TRUE(wire.Send({&byte, 1}));
  };
  while (SSL_do_handshake(ssl.get()) != 1) {
    relay();
    const std::string bytes = wire.ReadSome();
    ASSERT_FALSE(bytes.empty());
    BIO_write(in, bytes.data(), static_cast<int>(bytes.size()));
  }
  ASSERT_GT(SSL_write(ssl.get(), rest.data(), static_cast<int>(rest.size())), 0);
  relay();
  std::string answer;
  while (answer.find("hello") == std::string::npos ||
         answer.find("hello") == answer.rfind("hello")) {
    char chunk[4096];
    const int n = SSL_read(ssl.get(), chunk, sizeof(chunk));
    if (n > 0) {
      answer.append(chunk, static_cast<size_t>(n));
      continue;
    }
    const std::string bytes = wire.ReadSome();
    ASSERT_FALSE(bytes.empty()) << answer;
    BIO_write(in, bytes.data(), static_cast<int>(bytes.size()));
  }
}

// Bytes that OpenSSL has opened already, and of which the socket says nothing: a full record brings
// the end of one request and another one, and the reader's buffer ends with the first.
TEST_F(HttpStreamTest, ARequestBehindAnotherOneInItsRecordIsSeenWhereverTheBufferEnds) {
  constexpr size_t kRecordBytes = 16 << 10;
  const auto server = Serve();
  const std::string second = "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";
  for (size_t begun = second.size() - 4; begun <= second.size() + 4; ++begun) {
    const size_t first_bytes = begun + kRecordBytes - second.size();
    std::string first = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 16000\r\nX: ";
    first += std::string(first_bytes - 16'000 - first.size() - 4, 'x') + "\r\n\r\n";
    first += std::string(16'000, 'b');
    const auto client = Client(*server);
    client->Send(first.substr(0, begun));
    client->Send(first.substr(begun) + second);
    EXPECT_EQ(client->Read().body.size(), 16'000u) << begun;
    EXPECT_EQ(client->Read().body, "ok") << begun;
  }
}

TEST_F(HttpStreamTest, NewKeysWithinAConnectionAreNoRequestAndInNobodysWay) {
  const auto server = Serve();
  const auto client = Client(*server);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client->Get("/health").body, "ok") << i;
    ASSERT_EQ(SSL_key_update(client->ssl(), SSL_KEY_UPDATE_REQUESTED), 1);
    ASSERT_EQ(SSL_do_handshake(client->ssl()), 1);
  }
}

TEST_F(HttpStreamTest, TheEndOfAnAnswerIsToldAndTheLossOfAConnectionIsNot) {
  const auto server = Serve();
  const auto client = Client(*server);
  client->Send("GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client->Read().body, "ok");
  EXPECT_TRUE(client->AtEnd());
  EXPECT_NE(SSL_get_shutdown(client->ssl()) & SSL_RECEIVED_SHUTDOWN, 0);
  const auto lost = Client(*server);
  EXPECT_EQ(lost->Get("/health").body, "ok");
  server->Stop(Duration::zero());
  EXPECT_TRUE(lost->AtEnd());
  EXPECT_EQ(SSL_get_shutdown(lost->ssl()) & SSL_RECEIVED_SHUTDOWN, 0);
}

}  // namespace
}  // namespace baton::http
