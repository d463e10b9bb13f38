// Requests that come before the ones ahead of them are answered, more than is read ahead.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/unit/common/http/server_fixture.h"
#include "tests/unit/common/http/test_client.h"

namespace baton::http {
namespace {

// A request that takes `bytes`, if it can, and whose answer has its number.
std::string NumberedGet(int number, size_t bytes) {
  const std::string start = absl::StrCat("GET /files/", number, " HTTP/1.1\r\nHost: t\r\n");
  const std::string pad = "X: ";
  if (start.size() + pad.size() + 4 > bytes) return start + "\r\n";
  return absl::StrCat(start, pad, std::string(bytes - start.size() - pad.size() - 4, 'x'),
                      "\r\n\r\n");
}

void ExpectAnswersInOrder(HttpServer& server, int num_requests, size_t bytes) {
  std::string wire;
  for (int i = 0; i < num_requests; ++i) wire += NumberedGet(i, bytes);
  TestClient client(server.port());
  ASSERT_TRUE(client.Send(wire));
  for (int i = 0; i < num_requests; ++i) {
    ASSERT_EQ(client.Read().body, absl::StrCat("/files/", i, "|")) << bytes;
  }
  EXPECT_EQ(client.Get("/health").body, "ok");
}

TEST(HttpPipelineTest, TenThousandSmallRequestsAtOnceAreAnsweredInOrder) {
  const auto server = StartServer();
  ExpectAnswersInOrder(*server, 10'000, 0);
}

TEST(HttpPipelineTest, RequestsThatFillAReadExactlyAreAnsweredInOrder) {
  const auto server = StartServer();
  for (const size_t bytes : {64, 512, 1024, 4096, 8192, 16384}) {
    ExpectAnswersInOrder(*server, static_cast<int>((400 << 10) / bytes), bytes);
  }
}

TEST(HttpPipelineTest, WhatOneThreadAnswersAtOnceIsAnsweredInOrder) {
  const auto server = StartServer();
  std::string wire;
  for (int i = 0; i < 10'000; ++i) wire += "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(wire));
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(client.Read().body, "ok") << i;
  EXPECT_EQ(client.Get("/files/last").body, "/files/last|");
}

TEST(HttpPipelineTest, BodiesAreTheirRequestsOwn) {
  constexpr int kRequests = 40;
  const auto body = [](int i) { return absl::StrCat(i, ":", std::string(10 << 10, 'a' + i % 26)); };
  const auto server = StartServer();
  std::string wire;
  for (int i = 0; i < kRequests; ++i) {
    absl::StrAppend(&wire, "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: ", body(i).size(),
                    "\r\n\r\n", body(i));
  }
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(wire));
  for (int i = 0; i < kRequests; ++i) ASSERT_EQ(client.Read().body, body(i)) << i;
  EXPECT_EQ(client.Get("/health").body, "ok");
}

// All is answered that came before the client's end, and then the connection ends.
TEST(HttpPipelineTest, WhoHasSentItsLastByteGetsAllAnswers) {
  const auto server = StartServer();
  std::string wire;
  for (int i = 0; i < 10'000; ++i) wire += NumberedGet(i, 0);
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(wire));
  if (client.ssl() == nullptr) client.ShutdownSend();  // OpenSSL's client reads no more after it.
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(client.Read().body, absl::StrCat("/files/", i, "|"));
  client.Close();
  EXPECT_TRUE(EmptiesWithin(*server, absl::Seconds(20)));
}

// A head that comes in pieces, each of them parsed before the next one comes, is one head.
TEST(HttpPipelineTest, AHeadHasItsLimitInPiecesToo) {
  const auto server = StartServer({.header_timeout = std::chrono::seconds(60)});
  TestClient client(server->port());
  client.Send("GET /health HTTP/1.1\r\nX");
  const std::string piece = ": " + std::string(4 << 10, 'x') + "\r\nX";
  for (int i = 0; i < 6; ++i) {  // 24 KiB, of 16.
    absl::SleepFor(absl::Milliseconds(20));
    client.Send(piece);
  }
  EXPECT_EQ(client.Read().status, 431);
  EXPECT_TRUE(client.AtEnd());
}

TEST(HttpPipelineTest, TrailersHaveTheLimitOfAHead) {
  const auto server = StartServer({.body_timeout = std::chrono::seconds(60)});
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n";
  TestClient few(server->port());
  few.Send(head + "X: " + std::string(15 << 10, 'x') + "\r\n\r\n");
  EXPECT_EQ(few.Read().body, "hi");
  TestClient at_once(server->port());
  at_once.Send(head + "X: " + std::string(17 << 10, 'x') + "\r\n\r\n");
  EXPECT_EQ(at_once.Read().status, 431);
  TestClient in_pieces(server->port());
  in_pieces.Send(head);
  for (int i = 0; i < 20; ++i) {
    absl::SleepFor(absl::Milliseconds(5));
    in_pieces.Send("X: " + std::string(1 << 10, 'x') + "\r\n");
  }
  EXPECT_EQ(in_pieces.Read().status, 431);
}

// So does the line of a chunk, whose extensions nobody reads.
TEST(HttpPipelineTest, AChunksLineHasTheLimitOfAHead) {
  const auto server = StartServer({.body_timeout = std::chrono::seconds(60)});
  TestClient client(server->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2;a=" +
              std::string(17 << 10, 'x'));
  EXPECT_EQ(client.Read().status, 431);
}

// What was looked at of one line is not taken for a part of the next one.
TEST(HttpPipelineTest, ALineBehindALongOneIsLookedAtToo) {
  const auto server = StartServer({.body_timeout = std::chrono::seconds(60)});
  TestClient client(server->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2;a=long");
  absl::SleepFor(absl::Milliseconds(100));
  client.Send("\r\nhi\r\n3\n");
  EXPECT_EQ(client.Read().status, 400);
}

}  // namespace
}  // namespace baton::http
