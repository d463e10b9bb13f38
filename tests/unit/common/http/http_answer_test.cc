#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/http/http_server.h"
#include "tests/unit/common/http/server_fixture.h"
#include "tests/unit/common/http/test_client.h"

namespace baton::http {
namespace {

TEST(HttpAnswerTest, AnswersHeadWithoutBodyAndOptionsWithMethods) {
  auto server = StartServer();
  TestClient client(server->port());
  client.Send("HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n");
  const WireResponse head = client.Read(/*head_only=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.Header("Content-Length"), "2");
  client.Send("OPTIONS /health HTTP/1.1\r\nHost: t\r\n\r\n");
  const WireResponse options = client.Read();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.Header("Allow"), "OPTIONS, GET, HEAD");
  EXPECT_EQ(options.Header("Content-Length"), "");
  EXPECT_EQ(options.Header("Content-Type"), "");
  EXPECT_EQ(client.Get("/health").body, "ok");
}

TEST(HttpAnswerTest, AQuickAnswerIsMadeOnTheThreadThatWritesIt) {
  absl::Notification posted;
  std::thread::id handler, first, second, from_there, on_disconnect;
  auto routes = TestRoutes();
  routes.push_back({"GET", "/quick", [&](Request, Writer w) {
                      handler = std::this_thread::get_id();
                      w->MakeQuick();
                      w->Post([&, w] {
                        first = std::this_thread::get_id();
                        w->StartStream({.body = "one"});
                        w->Post([&] { from_there = std::this_thread::get_id(); });
                        EXPECT_EQ(from_there, first);  // At once.
                        w->OnRoom([&, w] {
                          second = std::this_thread::get_id();
                          w->Write("two");
                          w->Finish(/*close=*/true);
                          posted.Notify();
                        });
                      });
                    }});
  auto server = StartServer({}, std::move(routes));
  absl::Notification own;
  std::thread::id io;
  EXPECT_TRUE(server->Post([&] {
    io = std::this_thread::get_id();
    own.Notify();
  }));
  own.WaitForNotification();
  TestClient client(server->port());
  client.Send("GET /quick HTTP/1.1\r\nHost: t\r\n\r\n");
  std::string wire;
  for (std::string more = client.ReadSome(); !more.empty(); more = client.ReadSome()) wire += more;
  EXPECT_THAT(wire, ::testing::EndsWith("3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"));
  posted.WaitForNotification();
  EXPECT_EQ(first, io);
  EXPECT_EQ(second, io);
  EXPECT_NE(handler, io);
  server->Stop(milliseconds(100));
  EXPECT_FALSE(server->Post([] { ADD_FAILURE(); }));
}

TEST(HttpAnswerTest, AnExceptionOfAQuickAnswersTaskEndsThatTaskAlone) {
  auto routes = TestRoutes();
  Writer held;
  routes.push_back({"GET", "/quick", [&](Request, Writer w) {
                      w->MakeQuick();
                      held = std::move(w);
                    }});
  // One handler thread: behind /echo the other's handler has ended.
  auto server = StartServer({.num_handler_threads = 1}, std::move(routes));
  TestClient client(server->port());
  client.Send("GET /quick HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(TestClient(server->port()).Post("/echo", "x").body, "x");
  ASSERT_TRUE(server->Post([&] {
    held->Post([] { throw std::runtime_error("a library's"); });
    held->Respond({.body = "answered"});
  }));
  EXPECT_EQ(client.Read().body, "answered");
  held.reset();
}

TEST(HttpAnswerTest, ClosesAStreamWhoseReaderStalls) {
  absl::Notification gone;
  auto routes = TestRoutes();
  routes.push_back({"GET", "/big", [&](Request, Writer w) {
                      w->OnDisconnect([&] { gone.Notify(); });
                      w->StartStream({.body = std::string(32 << 20, 'x')});
                    }});
  // Not the last reference's end, but the stall must close it.
  Writer held;
  routes.back().handler = [&, handler = routes.back().handler](Request r, Writer w) {
    held = w;
    handler(std::move(r), std::move(w));
  };
  auto server = StartServer({.write_timeout = milliseconds(100)}, std::move(routes));
  TestClient client(server->port(), /*receive_buffer_bytes=*/4096);
  client.Send("GET /big HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(absl::Seconds(20)));
  held.reset();
}

TEST(HttpAnswerTest, DeliversALargeAnswerToASlowButSteadyReader) {
  auto routes = TestRoutes();
  routes.push_back(
      {"GET", "/big", [](Request, Writer w) { w->Respond({.body = std::string(8 << 20, 'x')}); }});
  auto server = StartServer({}, std::move(routes));
  TestClient client(server->port(), /*receive_buffer_bytes=*/4096);
  EXPECT_EQ(client.Get("/big").body.size(), size_t{8} << 20);
}

// An answer of `bytes` that is made as the client takes it.
struct Pumped : std::enable_shared_from_this<Pumped> {
  Pumped(Writer w, size_t b) : writer(std::move(w)), bytes(b) {}

  void Pump() {
    ++turns;
    while (writer->HasRoom()) {
      const size_t piece = std::min(bytes - made, size_t{16} << 10);
      made += piece;
      writer->Write(std::string(piece, 'x'));
      if (made == bytes) return writer->Finish(/*close=*/false);
    }
    writer->OnRoom([self = shared_from_this()] { self->Pump(); });
  }

  const Writer writer;
  const size_t bytes;
  std::atomic<size_t> made = 0;
  std::atomic<int> turns = 0;
};

// GET /pumped; the last one made is `last`, its client's end `gone`.
struct PumpRoute {
  explicit PumpRoute(size_t bytes) {
    routes.push_back({"GET", "/pumped", [this, bytes](Request, Writer w) {
                        w->OnDisconnect([this] { gone.Notify(); });
                        w->StartStream({});
                        last = std::make_shared<Pumped>(std::move(w), bytes);
                        last->Pump();
                      }});
  }
  std::vector<Route> routes = TestRoutes();
  std::shared_ptr<Pumped> last;
  absl::Notification gone;
};

constexpr size_t kEndless = size_t{1} << 40;
constexpr size_t kKernelBytes = size_t{16} << 20;  // More than a socket's buffers take.

TEST(HttpAnswerTest, MakesAnAnswerAsTheClientTakesIt) {
  PumpRoute route(size_t{24} << 20);
  auto server = StartServer({}, route.routes);
  TestClient client(server->port(), /*receive_buffer_bytes=*/4096);
  EXPECT_EQ(client.Get("/pumped").body, std::string(size_t{24} << 20, 'x'));
  EXPECT_EQ(client.Get("/pumped").body.size(), size_t{24} << 20);  // On the same connection.
  TestClient old(server->port());
  old.Send("GET /pumped HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Read().body.size(), size_t{24} << 20);
}

TEST(HttpAnswerTest, MakesNoMoreForAClientThatDoesNotRead) {
  PumpRoute route(kEndless);
  auto server = StartServer({.write_timeout = milliseconds(300)}, route.routes);
  TestClient client(server->port(), /*receive_buffer_bytes=*/4096);
  client.Send("GET /pumped HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_TRUE(route.gone.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_LT(route.last->made, kKernelBytes);
  // Each time half of the room was taken, and not as often as it could ask.
  EXPECT_LT(route.last->turns, 1000);
}

TEST(HttpAnswerTest, ClosesTheConnectionOfAClientThatReadsTooSlowly) {
  constexpr size_t kBytes = size_t{128} << 20;
  auto routes = TestRoutes();
  routes.push_back(
      {"GET", "/big", [](Request, Writer w) { w->Respond({.body = std::string(kBytes, 'x')}); }});
  auto server = StartServer(
      {.write_timeout = milliseconds(100), .min_bytes_per_second = int64_t{1} << 40},
      std::move(routes));
  TestClient client(server->port(), /*receive_buffer_bytes=*/4096);
  client.Send("GET /big HTTP/1.1\r\nHost: t\r\n\r\n");
  size_t read = 0;
  for (std::string piece = "x"; !piece.empty(); read += piece.size()) piece = client.ReadSome();
  EXPECT_LT(read, kBytes);
}

TEST(HttpAnswerTest, GivesEachClientLessWhenAllTogetherHoldTooMuch) {
  PumpRoute route(kEndless);
  auto server = StartServer({.max_queued_bytes = int64_t{1} << 40,
                             .max_unsent_bytes = 64 << 20,
                             .max_total_unsent_bytes = 1 << 20,
                             .write_timeout = milliseconds(300)},
                            route.routes);
  TestClient client(server->port(), /*receive_buffer_bytes=*/4096);
  client.Send("GET /pumped HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_TRUE(route.gone.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_LT(route.last->made, kKernelBytes + (8 << 20));
}

TEST(HttpAnswerTest, AnAnswerThatWaitsForRoomGoesWithItsClientOrItsServer) {
  for (const bool client_goes : {true, false}) {
    PumpRoute route(kEndless);
    auto server = StartServer({}, route.routes);
    TestClient client(server->port(), /*receive_buffer_bytes=*/4096);
    client.Send("GET /pumped HTTP/1.1\r\nHost: t\r\n\r\n");
    EXPECT_FALSE(client.ReadSome().empty());
    if (client_goes) {
      client.Close();
      EXPECT_TRUE(route.gone.WaitForNotificationWithTimeout(absl::Seconds(20)));
    }
    server->Stop(Duration::zero());
    std::weak_ptr<Pumped> answer = std::exchange(route.last, nullptr);
    server.reset();
    EXPECT_TRUE(answer.expired());
  }
}

TEST(HttpAnswerTest, StreamsToOldClientsUntilTheConnectionEnds) {
  auto routes = TestRoutes();
  routes.push_back({"GET", "/stream", [](Request, Writer w) {
                      w->StartStream({.body = "one"});
                      w->Write("two");
                      w->Finish(/*close=*/false);
                    }});
  auto server = StartServer({}, std::move(routes));
  TestClient old(server->port());
  old.Send("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Read().body, "onetwo");
  TestClient modern(server->port());
  EXPECT_EQ(modern.Get("/stream").body, "onetwo");
  EXPECT_EQ(modern.Get("/stream").body, "onetwo");
}

TEST(HttpAnswerTest, ASilentStreamOfEventsGetsCommentsAndNoOtherDoes) {
  Writer streams[3];
  absl::Notification begun[3];
  auto routes = TestRoutes();
  routes.push_back({"GET", "/stream/*", [&](Request r, Writer w) {
                      const auto n = static_cast<size_t>(r.path.back() - '0');
                      const char* const type = n == 2 ? "text/plain" : "text/event-stream; a=b";
                      w->StartStream({.content_type = type, .body = "data: 1\n\n"});
                      streams[n] = std::move(w);
                      begun[n].Notify();
                    }});
  auto server = StartServer({.most_silence = milliseconds(20)}, std::move(routes));
  TestClient modern(server->port());
  TestClient old(server->port());
  TestClient plain(server->port());
  modern.Send("GET /stream/0 HTTP/1.1\r\nHost: t\r\n\r\n");
  old.Send("GET /stream/1 HTTP/1.0\r\n\r\n");
  plain.Send("GET /stream/2 HTTP/1.1\r\nHost: t\r\n\r\n");
  for (absl::Notification& one : begun) one.WaitForNotification();
  // The second of two silences has passed when its comment is here.
  for (TestClient* client : {&modern, &old}) {
    std::string seen;
    for (std::string some = "?"; !some.empty() && seen.find(":\n\n") == seen.rfind(":\n\n");) {
      seen += some = client->ReadSome();
    }
    EXPECT_NE(seen.find(":\n\n"), seen.rfind(":\n\n")) << seen;
  }
  for (const Writer& stream : streams) stream->Finish(/*close=*/true);
  EXPECT_EQ(plain.Read().body, "data: 1\n\n");
  // What is behind the comments is framed as before.
  while (!modern.ReadSome().empty()) {
  }
  EXPECT_TRUE(EmptiesWithin(*server, absl::Seconds(20)));
}

TEST(HttpAnswerTest, AnEndWithoutBytesIsSeenAfterAllWasWritten) {
  Writer stream;
  absl::Notification begun[2];
  auto routes = TestRoutes();
  routes.push_back({"GET", "/stream", [&, n = 0](Request, Writer w) mutable {
                      w->StartStream({.body = "one"});
                      stream = std::move(w);
                      begun[n++].Notify();
                    }});
  auto server = StartServer({}, std::move(routes));
  // Whoever is answered on the one thread after the client saw bytes knows that they are written.
  const auto end = [&](TestClient& client, absl::Notification& is_begun) {
    EXPECT_NE(client.ReadSome(), "");
    is_begun.WaitForNotification();
    EXPECT_EQ(TestClient(server->port()).Get("/health").body, "ok");
    std::exchange(stream, nullptr)->Finish(/*close=*/false);
  };
  TestClient head(server->port());
  head.Send("HEAD /stream HTTP/1.1\r\nHost: t\r\n\r\n");
  end(head, begun[0]);
  EXPECT_EQ(head.Get("/health").body, "ok");
  TestClient old(server->port());
  old.Send("GET /stream HTTP/1.0\r\n\r\n");
  end(old, begun[1]);
  while (!old.ReadSome().empty()) {
  }
}

TEST(HttpAnswerTest, AStreamIsFramedChunkByChunkAndEndsWithAnEmptyOne) {
  auto routes = TestRoutes();
  routes.push_back({"GET", "/stream", [](Request, Writer w) {
                      w->StartStream({.body = "one"});
                      w->Write(std::string(17, 'x'));
                      w->Finish(/*close=*/true);
                    }});
  auto server = StartServer({}, std::move(routes));
  TestClient client(server->port());
  client.Send("GET /stream HTTP/1.1\r\nHost: t\r\n\r\n");
  std::string wire;
  for (std::string more = client.ReadSome(); !more.empty(); more = client.ReadSome()) wire += more;
  const size_t body = wire.find("\r\n\r\n");
  ASSERT_NE(body, std::string::npos);
  EXPECT_EQ(wire.substr(body + 4), "3\r\none\r\n11\r\nxxxxxxxxxxxxxxxxx\r\n0\r\n\r\n");
}

TEST(HttpAnswerTest, AStreamsHeadIsAnsweredWithoutAByteOfItsBody) {
  auto routes = TestRoutes();
  routes.push_back({"GET", "/stream", [](Request, Writer w) {
                      w->StartStream({.body = "one"});
                      w->Write("two");
                      w->Finish(/*close=*/false);
                    }});
  auto server = StartServer({}, std::move(routes));
  TestClient client(server->port());
  client.Send("HEAD /stream HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.Read(/*head_only=*/true).Header("Transfer-Encoding"), "chunked");
  EXPECT_EQ(client.Get("/health").head.substr(0, 15), "HTTP/1.1 200 OK");
}

// A client that took its answer owes nothing while it is silent.
TEST(HttpAnswerTest, NoWatchdogOfAnAnswerOutlivesIt) {
  PumpRoute route(2 * kKernelBytes);  // It waits for the client, so the watchdog is armed.
  auto server = StartServer({.write_timeout = milliseconds(3000)}, route.routes);
  TestClient client(server->port(), /*receive_buffer_bytes=*/4096);
  EXPECT_EQ(client.Get("/pumped").body.size(), 2 * kKernelBytes);
  absl::SleepFor(absl::Milliseconds(4000));
  EXPECT_EQ(client.Get("/health").body, "ok");
}

TEST(HttpAnswerTest, WhatALostClientDidNotTakeIsCountedNoMore) {
  constexpr int64_t kTotal = int64_t{32} << 20;
  std::shared_ptr<Pumped> last;
  auto routes = TestRoutes();
  routes.push_back({"GET", "/pumped", [&](Request, Writer w) {
                      w->StartStream({});
                      last = std::make_shared<Pumped>(std::move(w), kEndless);
                      last->Pump();
                    }});
  auto server = StartServer({.num_handler_threads = 1,
                             .max_queued_bytes = int64_t{1} << 40,
                             .max_unsent_bytes = int64_t{64} << 20,
                             .max_total_unsent_bytes = kTotal},
                            std::move(routes));
  for (int i = 0; i < 2; ++i) {
    TestClient client(server->port(), /*receive_buffer_bytes=*/4096);
    client.Send("GET /pumped HTTP/1.1\r\nHost: t\r\n\r\n");
    EXPECT_FALSE(client.ReadSome().empty());
    // The one handler thread is free again once the answer waits for room.
    EXPECT_EQ(TestClient(server->port()).Post("/echo", "x").body, "x");
    // The frames of the pieces count too.
    EXPECT_GE(last->made, static_cast<size_t>(kTotal / 8 * 7)) << i;
    client.Close();
    ASSERT_TRUE(EmptiesWithin(*server, absl::Seconds(20)));
    last.reset();
  }
}

TEST(HttpAnswerTest, AHeadersValueNeverBeginsAnotherHeader) {
  auto routes = TestRoutes();
  routes.push_back({"GET", "/split", [](Request, Writer w) {
                      w->Respond({.headers = {{"X-Id", "a\r\nX-Evil: b\nc"}}, .body = "ok"});
                    }});
  auto server = StartServer({}, std::move(routes));
  TestClient client(server->port());
  const WireResponse response = client.Get("/split");
  EXPECT_EQ(response.Header("X-Evil"), "");
  EXPECT_EQ(response.Header("X-Id"), "a  X-Evil: b c");
}

}  // namespace
}  // namespace baton::http
