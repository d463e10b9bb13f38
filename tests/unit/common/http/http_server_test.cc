#include "common/http/http_server.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/unit/common/http/server_fixture.h"
#include "tests/unit/common/http/test_client.h"

namespace baton::http {
namespace {

TEST(HttpServerTest, KeepsAConnectionForSeveralRequests) {
  auto server = StartServer();
  TestClient client(server->port());
  EXPECT_EQ(client.Get("/health").body, "ok");
  const WireResponse echo = client.Post("/echo", "hello");
  EXPECT_EQ(echo.body, "hello");
  EXPECT_EQ(echo.Header("Content-Type"), "text/plain");
  EXPECT_EQ(echo.Header("Connection"), "keep-alive");
  EXPECT_EQ(client.Get("/files/a%20b?q=1").body, "/files/a b|q=1");
}

TEST(HttpServerTest, AnExecutorRunsTheHandlersOfBodiesFromItsSizeOn) {
  std::atomic<int> taken{0};
  std::vector<Route> routes = TestRoutes();
  routes[1].executor = [&taken](const std::string& client, std::function<void()> task) {
    EXPECT_EQ(client, "127.0.0.1");
    ++taken;
    task();
  };
  routes[1].executor_min_body_bytes = 3;
  auto server = StartServer({.io_thread_name = "io-of-test"}, routes);
  TestClient client(server->port());
  EXPECT_EQ(client.Post("/echo", "ab").body, "ab");
  EXPECT_EQ(taken, 0);
  EXPECT_EQ(client.Post("/echo", "abc").body, "abc");
  EXPECT_EQ(taken, 1);
  // What is dropped is answered.
  routes[1].executor = [](const std::string&, const std::function<void()>&) {};
  auto dropping = StartServer({}, routes);
  EXPECT_EQ(TestClient(dropping->port()).Post("/echo", "abc").status, 500);
}

TEST(HttpServerTest, HandlersOfSmallBodiesRunOnTheIoThreadForSoLongInATurn) {
  std::vector<Route> routes = TestRoutes();
  std::atomic<int> num_here{0}, num_elsewhere{0};
  std::thread::id io_thread;
  routes.push_back({"POST", "/small", [&](Request r, Writer w) {
                      ++(std::this_thread::get_id() == io_thread ? num_here : num_elsewhere);
                      w->Respond({.body = r.body});
                    }});
  routes.back().quick_body_bytes = 3;
  auto server = StartServer({.max_quick_time = Duration(1)}, routes);
  absl::Notification known;
  ASSERT_TRUE(server->Post([&] {
    io_thread = std::this_thread::get_id();
    known.Notify();
  }));
  known.WaitForNotification();
  TestClient client(server->port());
  EXPECT_EQ(client.Post("/small", "abc").body, "abc");
  EXPECT_EQ(num_elsewhere, 1) << "too large";
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.Post("/small", "ab").body, "ab");
  EXPECT_EQ(num_here, 20) << "one at a time";

  // What comes while the thread is held comes in one turn: the first takes all of its time.
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<TestClient>(server->port()));
    EXPECT_EQ(clients.back()->Get("/health").body, "ok");
  }
  absl::Notification held, release;
  ASSERT_TRUE(server->Post([&] {
    held.Notify();
    release.WaitForNotification();
  }));
  held.WaitForNotification();
  for (const auto& one : clients) {
    EXPECT_TRUE(one->Send("POST /small HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nab"));
  }
  release.Notify();
  for (const auto& one : clients) EXPECT_EQ(one->Read().body, "ab");
  EXPECT_GT(num_here, 20);
  EXPECT_GT(num_elsewhere, 1);
  EXPECT_EQ(num_here + num_elsewhere, 29);
}

TEST(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  auto server = StartServer();
  TestClient client(server->port());
  std::string wire;
  for (int i = 0; i < 50; ++i) {
    const std::string body = std::to_string(i);
    wire += "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: " + std::to_string(body.size()) +
            "\r\n\r\n" + body;
  }
  client.Send(wire);
  client.ShutdownSend();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.Read().body, std::to_string(i));
  EXPECT_TRUE(client.AtEnd());  // It sends no more.
}

TEST(HttpServerTest, AnswersARequestThatCameWhileTheOneBeforeWasHandled) {
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
  client.Send("GET /health HTTP/1.1\r\nHost: t\r\n\r\nGET /health HTTP/1.1\r\nHo");
  // Another connection's answer: by then the bytes above have been read, most likely.
  EXPECT_EQ(TestClient(server->port()).Get("/health").body, "ok");
  go_on.Notify();
  EXPECT_EQ(client.Read().body, "first");
  EXPECT_EQ(client.Read().body, "ok");
  client.Send("st: t\r\n\r\n");
  EXPECT_EQ(client.Read().body, "ok");
}

TEST(HttpServerTest, AnswersManyRequestsOnOneConnection) {
  auto server = StartServer();
  TestClient client(server->port());
  for (int i = 0; i < 3000; ++i) {
    const std::string body = std::to_string(i);
    ASSERT_EQ(client.Post("/echo", body).body, body);
  }
}

TEST(HttpServerTest, ReadsChunkedBodiesAndAnswersExpectations) {
  auto server = StartServer();
  TestClient client(server->port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: 1\r\n\r\n");
  EXPECT_EQ(client.Read().body, "abcde");
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.Read().status, 100);
  client.Send("hi");
  EXPECT_EQ(client.Read().body, "hi");
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nExpect: tea\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.Read().status, 417);
}

TEST(HttpServerTest, RefusesUnknownPathsAndMethodsAsJson) {
  auto server = StartServer();
  TestClient client(server->port());
  const WireResponse missing = client.Get("/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_NE(missing.body.find("\"error\""), std::string::npos);
  client.Send("DELETE /echo HTTP/1.1\r\nHost: t\r\n\r\n");
  const WireResponse wrong = client.Read();
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.Header("Allow"), "OPTIONS, POST");
}

TEST(HttpServerTest, RefusesBodiesAndHeadersBeyondTheLimits) {
  auto server = StartServer({.max_body_bytes = 1000});
  TestClient client(server->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_EQ(client.Read().status, 413);
  EXPECT_TRUE(client.AtEnd());
  TestClient chunked(server->port());
  chunked.Send("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" +
               std::string(1001, 'x') + "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.Read().status, 413);
  EXPECT_EQ(TestClient(server->port()).Post("/echo", std::string(1000, 'x')).status, 200);
  TestClient headers(server->port());
  headers.Send("GET /health HTTP/1.1\r\nHost: t\r\nX: " + std::string(20000, 'x') + "\r\n\r\n");
  EXPECT_EQ(headers.Read().status, 431);
}

TEST(HttpServerTest, AuthorizesBeforeItReadsTheBody) {
  ServerOptions options;
  options.authorize = [](const Request& head) {
    Decision decision;
    if (head.Find("authorization") == "Bearer good") {
      decision.principal = "tenant";
    } else {
      decision.refusal = ErrorResponse(401, "authentication_error", "No valid key.");
    }
    return decision;
  };
  auto server = StartServer(std::move(options));
  TestClient client(server->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(client.Read().status, 401);
  TestClient good(server->port());
  good.Send("GET /who HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer good\r\n\r\n");
  EXPECT_EQ(good.Read().body, "tenant");
}

TEST(HttpServerTest, AtTheLimitTheConnectionThatWasQuietLongestGoes) {
  // One thread, so that they are quiet in the order of their answers.
  auto server = StartServer({.max_connections = 3});
  TestClient oldest(server->port());
  TestClient busy(server->port());
  TestClient half_sent(server->port());
  EXPECT_EQ(oldest.Get("/health").status, 200);
  EXPECT_EQ(busy.Get("/health").status, 200);
  EXPECT_EQ(half_sent.Get("/health").status, 200);
  half_sent.Send("GET /hea");
  busy.Send("GET /silent-not HTTP/1.1\r\nHost: t\r\n\r\n");  // It says something again.
  EXPECT_EQ(busy.Read().status, 404);
  TestClient fourth(server->port());
  EXPECT_EQ(fourth.Post("/echo", "x").body, "x");
  EXPECT_TRUE(oldest.AtEnd());
  TestClient fifth(server->port());
  EXPECT_EQ(fifth.Post("/echo", "x").body, "x");
  EXPECT_TRUE(half_sent.AtEnd());
  EXPECT_EQ(busy.Get("/health").status, 200);
  EXPECT_EQ(fourth.Get("/health").status, 200);
}

// Holds what it is asked, until the end of the test.
class HeldRequests {
 public:
  std::vector<Route> Routes() {
    auto routes = TestRoutes();
    routes.push_back({"GET", "/held", [this](Request, Writer w) {
                        absl::MutexLock lock(&mutex_);
                        held_.push_back(std::move(w));
                      }});
    return routes;
  }
  // A request that is under way.
  std::unique_ptr<TestClient> Ask(uint16_t port) {
    auto client = std::make_unique<TestClient>(port);
    absl::MutexLock lock(&mutex_);
    const size_t before = held_.size();
    client->Send("GET /held HTTP/1.1\r\nHost: t\r\n\r\n");
    const auto is_held = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return held_.size() > before; };
    mutex_.Await(absl::Condition(&is_held));
    return client;
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    held_.clear();
  }

 private:
  absl::Mutex mutex_;
  std::vector<Writer> held_;
};

TEST(HttpServerTest, WhatIsQuickIsAnsweredHoweverFullTheServerIs) {
  HeldRequests held;
  auto server = StartServer({.max_connections = 2}, held.Routes());
  const auto first = held.Ask(server->port());
  const auto second = held.Ask(server->port());
  for (int i = 0; i < 100; ++i) {
    TestClient probe(server->port());
    const WireResponse health = probe.Get("/health");
    ASSERT_EQ(health.body, "ok");
    ASSERT_EQ(health.Header("Connection"), "close");
    TestClient other(server->port());
    const WireResponse busy = other.Post("/echo", "x");
    ASSERT_EQ(busy.status, 503);
    ASSERT_EQ(busy.Header("Retry-After"), "1");
  }
  held.End();
  EXPECT_EQ(first->Read().status, 500);
  EXPECT_EQ(second->Read().status, 500);
  EXPECT_EQ(first->Get("/health").Header("Connection"), "keep-alive");
}

TEST(HttpServerTest, ConnectionsBeyondTheSpareOnesAreRefused) {
  HeldRequests held;
  auto server = StartServer({.max_connections = 1}, held.Routes());
  const auto busy = held.Ask(server->port());
  std::vector<std::unique_ptr<TestClient>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<TestClient>(server->port()));
  TestClient last(server->port());
  EXPECT_EQ(last.Get("/health").body, "ok") << "the silent ones went for it";
  EXPECT_LE(server->num_connections(), 1 + 2 * 64);
  held.End();
  EXPECT_EQ(busy->Read().status, 500);
}

TEST(HttpServerTest, ClosesConnectionsThatTakeTooLong) {
  auto server = StartServer({.idle_timeout = milliseconds(50),
                             .header_timeout = milliseconds(50),
                             .body_timeout = milliseconds(50)});
  TestClient idle(server->port());
  TestClient header(server->port());
  TestClient body(server->port());
  header.Send("GET /health HT");
  body.Send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_TRUE(idle.AtEnd());
  EXPECT_TRUE(header.AtEnd());
  EXPECT_TRUE(body.AtEnd());
  while (server->num_connections() > 0) {
  }
  EXPECT_EQ(server->num_connections(), 0);
}

TEST(HttpServerTest, TheTimeOfARequestIsItsOwnAndNotItsHandlers) {
  auto routes = TestRoutes();
  routes.push_back({"POST", "/slow", [](Request, Writer w) {
                      absl::SleepFor(absl::Seconds(3));
                      w->Respond({.body = "ok"});
                    }});
  auto server = StartServer({.idle_timeout = milliseconds(2000),
                             .header_timeout = milliseconds(2000),
                             .body_timeout = milliseconds(2000)},
                            std::move(routes));
  EXPECT_EQ(TestClient(server->port()).Post("/slow", "x").body, "ok");
}

// Handlers may wait as long as they like: what is quick is answered meanwhile, what waits behind
// them is not begun any more once the server stops.
TEST(HttpServerTest, QuickRoutesNeedNoHandlersThreadAndAStopBeginsNothing) {
  absl::Notification started;
  absl::Notification go_on;
  std::atomic<int> num_waiting = 0;
  auto routes = TestRoutes();
  routes.push_back({"GET", "/wait", [&](Request, Writer) {
                      if (num_waiting++ > 0) return;
                      started.Notify();
                      go_on.WaitForNotification();
                    }});
  auto server = StartServer({.num_handler_threads = 1}, std::move(routes));
  TestClient first(server->port());
  first.Send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n");
  started.WaitForNotification();
  TestClient second(server->port());
  second.Send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(TestClient(server->port()).Get("/health").body, "ok");
  std::jthread stopping([&] { server->Stop(Duration::zero()); });
  EXPECT_TRUE(EmptiesWithin(*server, absl::Seconds(20)));
  go_on.Notify();
  stopping.join();
  EXPECT_EQ(num_waiting, 1);
}

TEST(HttpServerTest, StopWaitsForTheAnswersUnderWay) {
  absl::Notification started;
  Writer held;
  auto routes = TestRoutes();
  routes.push_back({"GET", "/stream", [&](Request, Writer w) {
                      held = w;
                      started.Notify();
                    }});
  auto server = StartServer({}, std::move(routes));
  TestClient idle(server->port());
  EXPECT_EQ(idle.Get("/health").status, 200);
  TestClient busy(server->port());
  busy.Send("GET /stream HTTP/1.1\r\nHost: t\r\n\r\n");
  started.WaitForNotification();
  std::jthread stopping([&] { server->Stop(std::chrono::seconds(60)); });
  EXPECT_TRUE(idle.AtEnd());
  absl::SleepFor(absl::Seconds(1));
  held->StartStream({.body = "late"});
  held->Finish(/*close=*/false);
  held.reset();
  const WireResponse late = busy.Read();
  EXPECT_EQ(late.body, "late");
  EXPECT_EQ(late.Header("Connection"), "close");
  EXPECT_TRUE(busy.AtEnd());
}

TEST(HttpServerTest, AcceptsAgainWhenThereAreFileDescriptorsAgain) {
  auto server = StartServer();
  EXPECT_EQ(TestClient(server->port()).Get("/health").body, "ok");
  ASSERT_TRUE(EmptiesWithin(*server, absl::Seconds(20)));
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(0);
  close(next);
  // One more: the client's own.
  const rlimit tight{.rlim_cur = static_cast<rlim_t>(next) + 1, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  TestClient client(server->port());
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_EQ(server->num_connections(), 0);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(client.Get("/health").body, "ok");
}

TEST(HttpServerTest, WithoutFileDescriptorsAQuietConnectionGoesForANewOne) {
  auto server = StartServer();
  TestClient quiet(server->port());
  EXPECT_EQ(quiet.Get("/health").body, "ok");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(0);
  close(next);
  // One more: the client's own.
  const rlimit tight{.rlim_cur = static_cast<rlim_t>(next) + 1, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  TestClient client(server->port());
  EXPECT_EQ(client.Get("/health").body, "ok");
  EXPECT_TRUE(quiet.AtEnd());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(HttpServerTest, DrainsWithoutCuttingAnAnswer) {
  absl::Notification started;
  Writer held;
  auto routes = TestRoutes();
  routes.push_back({"GET", "/wait", [&](Request, Writer w) {
                      held = std::move(w);
                      started.Notify();
                    }});
  auto server = StartServer({}, std::move(routes));
  TestClient idle(server->port());
  EXPECT_EQ(idle.Get("/health").status, 200);
  TestClient busy(server->port());
  busy.Send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n");
  started.WaitForNotification();
  server->BeginDrain();
  EXPECT_TRUE(idle.AtEnd());
  held->Respond({.body = "late"});
  held.reset();
  const WireResponse late = busy.Read();
  EXPECT_EQ(late.body, "late");
  EXPECT_EQ(late.Header("Connection"), "close");
  server->Stop(std::chrono::seconds(20));
  EXPECT_EQ(server->num_connections(), 0);
}

TEST(HttpServerTest, SaysWhichPortItCannotHave) {
  auto server = StartServer();
  const auto second = HttpServer::Create({.port = server->port()}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(std::to_string(server->port())), std::string::npos);
  EXPECT_FALSE(HttpServer::Create({.host = "nowhere"}, {}).ok());
}

}  // namespace
}  // namespace baton::http
