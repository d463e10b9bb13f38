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
    TestClient client(server.port());
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
  EXPECT_EQ(TestClient(server.port()).Get("/health").body, "ok");
  server.Stop(std::chrono::seconds(10));
  EXPECT_EQ(server.num_connections(), 0);
}

TEST(HttpConnectionTest, RefusesWhatCouldBeReadInTwoWays) {
  auto created =
      HttpServer::Create({}, {{"POST", "/echo", [](Request r, std::shared_ptr<ResponseWriter> w) {
                                 w->Respond({.body = std::move(r.body)});
                               }}});
  ASSERT_TRUE(created.ok());
  (*created)->Start();
  const std::string start = "POST /echo HTTP/1.1\r\n";
  for (const std::string& headers :
       {std::string("Content-Length: 5\r\n\r\nhello"),  // No Host.
        std::string("Host: a\r\nHost: b\r\nContent-Length: 5\r\n\r\nhello"),
        std::string("Host: a\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\nhello"),
        std::string("Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        std::string("Host: a\r\nTransfer-Encoding: gzip\r\n\r\nhello"),
        std::string("Host : a\r\nContent-Length: 5\r\n\r\nhello"),
        std::string("Host: a\r\nContent-Length: +5\r\n\r\nhello")}) {
    TestClient client((*created)->port());
    client.Send(start + headers);
    const WireResponse response = client.Read();
    EXPECT_EQ(response.status, 400) << headers;
    EXPECT_EQ(response.Header("Connection"), "close") << headers;
  }
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

TEST(HttpConnectionTest, ABodyOfUnknownLengthTakesThePlaceOfTheLargest) {
  auto server = StartServer({.max_body_bytes = 900, .max_total_body_bytes = 1000});
  TestClient chunked(server->port());
  chunked.Send(
      "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n"
      "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(chunked.ReadSome(), "HTTP/1.1 100 Continue\r\n\r\n");  // The header was seen.
  TestClient other(server->port());
  EXPECT_EQ(other.Post("/echo", std::string(300, 'x')).status, 503);
  chunked.Send("0\r\n\r\n");
  EXPECT_EQ(chunked.Read().status, 200);
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
