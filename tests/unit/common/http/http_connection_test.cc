#include "common/http/http_connection.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/random.h"
#include "common/http/http_server.h"
#include "tests/unit/common/http/server_fixture.h"
#include "tests/unit/common/http/test_client.h"

namespace baton::http {
namespace {

// A request that is broken in one of the ways that a seed picks.
std::string BrokenRequest(Random& random) {
  static const std::vector<std::string> kPieces = {"GET",
                                                   "POST",
                                                   " ",
                                                   "/echo",
                                                   "/health",
                                                   " HTTP/1.1",
                                                   " HTTP/1.0",
                                                   " HTTP/9.9",
                                                   "\r\n",
                                                   "\n",
                                                   "\r",
                                                   "Host: t",
                                                   "Content-Length: ",
                                                   "Content-Length: 5",
                                                   "Content-Length: -1",
                                                   "Content-Length: 99999999999999999999",
                                                   "Transfer-Encoding: chunked",
                                                   "Transfer-Encoding: gzip",
                                                   "Transfer-Encoding: chunked, chunked",
                                                   "Expect: 100-continue",
                                                   "Connection: close",
                                                   "Connection: upgrade",
                                                   "ffffffffffffffff\r\n",
                                                   "5\r\nhello\r\n",
                                                   "0\r\n\r\n",
                                                   ":",
                                                   ": x",
                                                   "\0",
                                                   "\xFF\xFE",
                                                   "%",
                                                   "%zz",
                                                   "*",
                                                   "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                                   "{\"a\":1}",
                                                   "\x16\x03\x01\x02\x00",
                                                   " folded",
                                                   "\t"};
  std::string request;
  const uint64_t kind = random.Below(4);
  if (kind == 0) {  // Noise.
    const uint64_t length = random.Below(200);
    for (uint64_t i = 0; i < length; ++i) request.push_back(static_cast<char>(random.Below(256)));
    return request;
  }
  if (kind == 1) {  // Pieces in any order.
    const uint64_t count = 1 + random.Below(20);
    for (uint64_t i = 0; i < count; ++i) request += kPieces[random.Below(kPieces.size())];
    return request + (random.Below(2) == 0 ? "\r\n\r\n" : "");
  }
  request = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello";
  if (kind == 2) {  // A good one, cut and with a few bytes changed.
    const uint64_t flips = random.Below(4);
    for (uint64_t i = 0; i < flips; ++i) {
      request[random.Below(request.size())] = static_cast<char>(random.Below(256));
    }
    return request.substr(0, random.Below(request.size() + 1));
  }
  // A good one with a piece in the middle.
  return request.insert(random.Below(request.size()), kPieces[random.Below(kPieces.size())]);
}

TEST(HttpConnectionTest, SurvivesTenThousandMalformedRequests) {
  auto created = HttpServer::Create(
      {.idle_timeout = std::chrono::seconds(2),
       .header_timeout = std::chrono::seconds(2),
       .body_timeout = std::chrono::seconds(2)},
      {{"GET", "/health",
        [](Request, std::shared_ptr<ResponseWriter> w) { w->Respond({.body = "ok"}); }, true},
       {"POST", "/echo", [](Request r, std::shared_ptr<ResponseWriter> w) {
          w->Respond({.body = std::move(r.body)});
        }}});
  ASSERT_TRUE(created.ok());
  HttpServer& server = **created;
  server.Start();
  Random random(20240601);
  int answered = 0;
  for (int i = 0; i < 10'000; ++i) {
    TestClient client(server.port(), 0, nullptr);
    ASSERT_TRUE(client.connected()) << "request " << i;
    client.Send(BrokenRequest(random));
    client.ShutdownSend();
    const WireResponse response = client.Read();
    if (response.status != 0) {
      ++answered;
      ASSERT_NE(response.status / 100, 5) << "request " << i << ": " << response.head;
    }
  }
  EXPECT_GT(answered, 1000);
  EXPECT_EQ(TestClient(server.port(), 0, nullptr).Get("/health").body, "ok");
  server.Stop(std::chrono::seconds(10));
  EXPECT_EQ(server.num_connections(), 0);
}

TEST(HttpConnectionTest, RefusesWhatCouldBeReadInTwoWays) {
  const auto server = StartServer();
  const std::string start = "POST /echo HTTP/1.1\r\n";
  for (const std::string& headers :
       {std::string("Content-Length: 5\r\n\r\nhello"),  // No Host.
        std::string("Host: a\r\nHost: b\r\nContent-Length: 5\r\n\r\nhello"),
        std::string("Host: a\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\nhello"),
        std::string("Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        std::string("Host: a\r\nTransfer-Encoding: gzip\r\n\r\nhello"),
        std::string("Host: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        std::string("Host: a\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n"),
        std::string("Host: a\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n"
                    "\r\n0\r\n\r\n"),
        std::string("Host : a\r\nContent-Length: 5\r\n\r\nhello"),
        std::string("Host: a\r\nContent-Length: +5\r\n\r\nhello")}) {
    TestClient client(server->port());
    client.Send(start + headers);
    const WireResponse response = client.Read();
    EXPECT_EQ(response.status, 400) << headers;
    EXPECT_EQ(response.Header("Connection"), "close") << headers;
  }
}

// Nobody waits for the CR of a line that has ended for others.
TEST(HttpConnectionTest, ALineThatEndsWithoutACarriageReturnIsRefusedAtOnce) {
  const auto server = StartServer(
      {.header_timeout = std::chrono::seconds(10), .body_timeout = std::chrono::seconds(10)});
  const std::string head = "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& bytes :
       {head + "5\n", head + "5;a=b\n", head + "5\r\nhello\n", head + "5\r\nhello\r\n3\n",
        head + "0\n", head + "0\r\n\n", head + "0\r\nX: y\n", std::string("\n"),
        std::string("POST /echo HTTP/1.1\n"), std::string("POST /echo HTTP/1.1\r\nHost: t\n")}) {
    TestClient client(server->port());
    client.Send(bytes);
    const WireResponse response = client.Read();
    ASSERT_EQ(response.status, 400) << bytes;
    EXPECT_EQ(response.Header("Connection"), "close") << bytes;
  }
}

// What stands between chunks comes in any pieces, and a line feed within a chunk is its own.
TEST(HttpConnectionTest, ChunksComeInPieces) {
  const auto server = StartServer();
  TestClient client(server->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (const char byte : std::string("3;a=b\r\n\nx\n\r\n1\r\n\n\r\n0\r\nX: y\r\n\r\n")) {
    client.Send(std::string(1, byte));
  }
  EXPECT_EQ(client.Read().body, "\nx\n\n");
  EXPECT_EQ(client.Get("/health").body, "ok");
}

TEST(HttpConnectionTest, OldClientsSendNoChunks) {
  const auto server = StartServer();
  TestClient client(server->port());
  client.Send(
      "POST /echo HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
      "2\r\nhi\r\n0\r\n\r\n");
  EXPECT_EQ(client.Read().status, 400);
  EXPECT_TRUE(client.AtEnd());
}

TEST(HttpConnectionTest, WhatComesBehindARefusedRequestIsNoRequest) {
  auto server = StartServer();
  for (const char* refused : {"POST /echo HTTP/1.1\r\nContent-Length: 0\r\n\r\n",  // No Host.
                              "GET /health HTTP/1.1\r\nHost: t\r\nHost: u\r\n\r\n",
                              "GET health HTTP/1.1\r\nHost: t\r\n\r\n"}) {
    TestClient client(server->port());
    client.Send(std::string(refused) + "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    EXPECT_EQ(client.Read().status, 400) << refused;
    EXPECT_EQ(client.Read().status, 0) << refused;
    EXPECT_TRUE(client.AtEnd());
  }
}

TEST(HttpConnectionTest, AClientThatLeavesWithinARequestGetsNoAnswer) {
  auto server = StartServer();
  for (const char* begun : {"", "GET /health HTTP/1.1\r\nHo",
                            "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhel"}) {
    TestClient client(server->port());
    client.Send(begun);
    client.ShutdownSend();
    EXPECT_EQ(client.Read().status, 0) << begun;
    EXPECT_TRUE(client.AtEnd()) << begun;
  }
}

TEST(HttpConnectionTest, SpeaksTwoVersionsAndAnswersForAllPaths) {
  auto server = StartServer();
  for (const char* version : {"1.2", "2.0", "0.9"}) {
    TestClient client(server->port());
    client.Send(std::string("GET /health HTTP/") + version + "\r\nHost: t\r\n\r\n");
    EXPECT_EQ(client.Read().status, 400) << version;
  }
  TestClient client(server->port());
  client.Send("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.Read().Header("Allow"), "GET, HEAD, POST, OPTIONS");
  client.Send("OPTIONS /nothing HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.Read().status, 404);
  EXPECT_EQ(client.Get("/files/").status, 404);  // A prefix is not itself beneath it.
  EXPECT_EQ(client.Get("*").status, 400);
}

// An old client would take the interim answer for the answer.
TEST(HttpConnectionTest, OnlyNewClientsAreAskedToGoOn) {
  auto server = StartServer();
  TestClient client(server->port());
  client.Send("POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi");
  const WireResponse response = client.Read();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "hi");
}

TEST(HttpConnectionTest, AClientThatStillSendsIsHeardOutAndGetsItsRefusal) {
  auto server = StartServer({.max_body_bytes = 1000});
  TestClient client(server->port());
  EXPECT_TRUE(client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 8388608\r\n\r\n" +
                          std::string(8 << 20, 'x')));
  EXPECT_EQ(client.Read().status, 413);
}

TEST(HttpConnectionTest, ARefusedClientIsNotHeardOutForEver) {
  auto server = StartServer({.max_body_bytes = 1000});
  const char* head = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n";
  TestClient silent(server->port());
  silent.Send(head);
  EXPECT_EQ(silent.Read().status, 413);
  EXPECT_TRUE(EmptiesWithin(*server, absl::Seconds(20)));  // Its socket is still open here.
  TestClient endless(server->port());
  endless.Send(head);
  const std::string piece(1 << 20, 'x');
  int megabytes = 0;
  while (megabytes < 10'000 && endless.Send(piece)) ++megabytes;
  EXPECT_LT(megabytes, 150);  // 16, and what the kernel holds.
}

// A server that refuses everybody who does not say "Key: good".
std::unique_ptr<HttpServer> StartPicky() {
  ServerOptions options;
  options.authorize = [](const Request& head) {
    Decision decision;
    if (head.Find("Key") != "good") decision.refusal = ErrorResponse(429, "rate_limit_error", "no");
    return decision;
  };
  return StartServer(std::move(options));
}

TEST(HttpConnectionTest, ARefusalComesBeforeTheBodyIsAskedFor) {
  auto server = StartPicky();
  TestClient client(server->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n"
              "Content-Length: 5\r\n\r\n");
  const WireResponse refused = client.Read();
  EXPECT_EQ(refused.status, 429) << "and not 100";
  EXPECT_EQ(refused.Header("Connection"), "close") << "nobody knows if the body comes";
  EXPECT_TRUE(client.AtEnd());
}

TEST(HttpConnectionTest, ARefusedBodyThatIsStillToComeIsNotWaitedFor) {
  auto server = StartPicky();
  for (const char* framing : {"Content-Length: 100", "Transfer-Encoding: chunked"}) {
    TestClient client(server->port());
    client.Send(absl::StrCat("POST /echo HTTP/1.1\r\nHost: t\r\n", framing, "\r\n\r\n1"));
    const WireResponse refused = client.Read();
    EXPECT_EQ(refused.status, 429) << framing;
    EXPECT_EQ(refused.Header("Connection"), "close") << framing;
    EXPECT_TRUE(client.AtEnd()) << framing;
  }
}

TEST(HttpConnectionTest, ARefusedBodyThatHasComeIsPassedOverAndTheConnectionGoesOn) {
  auto server = StartPicky();
  TestClient client(server->port());
  // What looks like a request within the body is none.
  const std::string body = "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";
  const std::string good = "POST /echo HTTP/1.1\r\nHost: t\r\nKey: good\r\nContent-Length: 2\r\n"
                           "\r\nhi";
  for (int i = 0; i < 3; ++i) {
    client.Send(absl::StrCat("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: ", body.size(),
                             "\r\n\r\n", body, good));
    const WireResponse refused = client.Read();
    EXPECT_EQ(refused.status, 429);
    EXPECT_EQ(refused.Header("Connection"), "keep-alive");
    EXPECT_EQ(client.Read().body, "hi");
  }
}

TEST(HttpConnectionTest, ReadsAheadNoMoreThanItsBufferHolds) {
  absl::Notification started;
  absl::Notification go_on;
  auto routes = TestRoutes();
  routes.push_back({"GET", "/wait", [&](Request, Writer w) {
                      started.Notify();
                      go_on.WaitForNotification();
                      w->Respond({.body = "first"});
                    }});
  auto server = StartServer({}, std::move(routes));
  TestClient client(server->port());
  client.Send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n");
  started.WaitForNotification();
  std::string wire;
  for (int i = 0; i < 20; ++i) {
    wire += "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 20000\r\n\r\n" +
            std::string(20000, static_cast<char>('a' + i));
  }
  client.Send(wire);  // 400 kB.
  absl::SleepFor(absl::Milliseconds(200));
  go_on.Notify();
  EXPECT_EQ(client.Read().body, "first");
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(client.Read().body, std::string(20000, static_cast<char>('a' + i))) << i;
  }
}

std::vector<Route> RoutesOfClients() {
  auto routes = TestRoutes();
  for (Route& route : routes) {
    if (route.path == "/who") route.method = "POST";
  }
  return routes;
}

// Who says "Key: NAME" is NAME.
ServerOptions OptionsOfClients(int64_t max_total) {
  // One thread reads connections in the order in which they were written to.
  ServerOptions options{
      .max_body_bytes = 400, .max_total_body_bytes = max_total};
  options.authorize = [](const Request& head) {
    return Decision{.principal = std::string(head.Find("Key"))};
  };
  return options;
}

std::string PostHead(std::string_view key, std::string_view framing) {
  std::string head = "POST /who HTTP/1.1\r\nHost: t\r\n";
  if (!key.empty()) head.append("Key: ").append(key).append("\r\n");
  return head.append(framing).append("\r\n\r\n");
}

constexpr std::string_view kLong = "Content-Length: 400";
constexpr std::string_view kChunked = "Transfer-Encoding: chunked";

void ExpectRefusal(uint16_t port, std::string_view key, int status) {
  TestClient client(port);
  client.Send(PostHead(key, "Content-Length: 4") + "abcd");
  const WireResponse response = client.Read();
  EXPECT_EQ(response.status, status);
  EXPECT_EQ(response.Header("Retry-After"), "1");
}

TEST(HttpConnectionTest, BodiesCountAsTheyComeAndNotAsTheyAreAnnounced) {
  constexpr int64_t kBytes = 300'000;  // Several reads, whatever a read takes.
  ServerOptions options = OptionsOfClients(4 * (kBytes + 1000));
  options.max_body_bytes = kBytes;
  auto server = StartServer(options, RoutesOfClients());
  const std::string framing = absl::StrCat("Content-Length: ", kBytes);
  std::vector<std::unique_ptr<TestClient>> half_sent;
  for (int i = 0; i < 20; ++i) {
    half_sent.push_back(std::make_unique<TestClient>(server->port()));
    half_sent.back()->Send(PostHead("a", i % 2 == 0 ? std::string_view(framing) : kChunked) + "1");
  }
  for (int i = 0; i < 20; ++i) {
    TestClient other(server->port());
    other.Send(PostHead("a", framing) + std::string(kBytes, 'x'));
    ASSERT_EQ(other.Read().body, "a");
  }
}

TEST(HttpConnectionTest, BodiesOfOneClientHoldAQuarterAndOthersGoOn) {
  auto server = StartServer(OptionsOfClients(1600), RoutesOfClients());
  TestClient most(server->port());
  most.Send(PostHead("a", kLong) + std::string(399, 'x'));
  ExpectRefusal(server->port(), "a", 429);
  TestClient other(server->port());
  other.Send(PostHead("b", kLong) + std::string(400, 'x'));
  EXPECT_EQ(other.Read().body, "b");
  TestClient nameless(server->port());  // Known by its address.
  nameless.Send(PostHead("", kLong) + std::string(399, 'x'));
  ExpectRefusal(server->port(), "", 429);
  most.Send("x");
  EXPECT_EQ(most.Read().body, "a");
}

TEST(HttpConnectionTest, BodiesOfAllClientsHoldNoMoreThanThereIs) {
  auto server = StartServer(OptionsOfClients(1599), RoutesOfClients());
  std::vector<std::unique_ptr<TestClient>> most;
  for (const char* key : {"a", "b", "c", "d"}) {
    most.push_back(std::make_unique<TestClient>(server->port()));
    most.back()->Send(PostHead(key, kLong) + std::string(399, 'x'));
  }
  ExpectRefusal(server->port(), "e", 503);
  most[0]->Send("x");
  EXPECT_EQ(most[0]->Read().body, "a");
}

// A stream may go on for an hour; the body that asked for it is gone by then.
TEST(HttpConnectionTest, ABodyIsLetGoWhenItsHandlerHasReturned) {
  constexpr int64_t kBytes = 100'000;
  std::vector<Writer> streams;
  auto routes = TestRoutes();
  routes.push_back({"POST", "/stream", [&](Request, Writer w) {
                      w->StartStream({.body = "first"});
                      streams.push_back(std::move(w));
                    }});
  auto server = StartServer({.num_handler_threads = 1,
                             .max_body_bytes = kBytes,
                             .max_total_body_bytes = kBytes},
                            std::move(routes));
  std::vector<std::unique_ptr<TestClient>> clients;
  const std::string head = "POST /stream HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n";
  const absl::Time end = absl::Now() + absl::Seconds(10);
  for (int begun = 0; begun < 3;) {
    ASSERT_LT(absl::Now(), end) << "the body of a stream is held";
    absl::SleepFor(absl::Milliseconds(1));
    clients.push_back(std::make_unique<TestClient>(server->port()));
    clients.back()->Send(head + std::string(kBytes, 'x'));
    const std::string answer = clients.back()->ReadSome();
    begun += answer.starts_with("HTTP/1.1 200");
    // Until the server has let the one before go.
    ASSERT_TRUE(begun > 0 || answer.empty()) << answer;
  }
  server->Stop(Duration::zero());
  streams.clear();
}

TEST(HttpConnectionTest, ABodysPlaceIsFreeAgainHoweverItsRequestEnds) {
  auto server = StartServer({.max_body_bytes = 900, .max_total_body_bytes = 1000});
  TestClient client(server->port());
  for (int i = 0; i < 10; ++i) {  // Answered.
    ASSERT_EQ(client.Post("/echo", std::string(600, 'x')).status, 200);
  }
  for (const char* lost : {"Content-Length: 800\r\n\r\nabc",
                           "Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"}) {
    TestClient gone(server->port());
    gone.Send(std::string("POST /echo HTTP/1.1\r\nHost: t\r\n") + lost);
    gone.ShutdownSend();
    gone.Read();
    EXPECT_TRUE(gone.AtEnd());
  }
  while (server->num_connections() > 1) {  // Until the server has let go of them.
  }
  EXPECT_EQ(client.Post("/echo", std::string(900, 'x')).status, 200);
}

}  // namespace
}  // namespace baton::http
