#include "common/http/http_exchange.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tests/unit/common/http/server_fixture.h"
#include "tests/unit/common/http/test_client.h"

namespace baton::http {
namespace {

TEST(HttpExchangeTest, AnswersForHandlersThatDoNotOrThrow) {
  auto server = StartServer();
  TestClient client(server->port());
  EXPECT_EQ(client.Get("/silent").status, 500);
  const WireResponse thrown = client.Get("/throws");
  EXPECT_EQ(thrown.status, 500);
  EXPECT_EQ(thrown.body.find("secret"), std::string::npos);
  EXPECT_EQ(client.Get("/health").status, 200);
}

TEST(HttpExchangeTest, TellsAHandlerThatItsClientHasGone) {
  absl::Notification started;
  absl::Notification gone;
  Writer held;
  auto routes = TestRoutes();
  routes.push_back({"GET", "/wait", [&](Request, Writer w) {
                      held = w;
                      w->OnDisconnect([&] { gone.Notify(); });
                      started.Notify();
                    }});
  auto server = StartServer({}, std::move(routes));
  TestClient client(server->port());
  client.Send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n");
  started.WaitForNotification();
  EXPECT_FALSE(gone.HasBeenNotified());
  client.Close();
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(absl::Seconds(20)));
  held->Abort();
  held.reset();
}

TEST(HttpExchangeTest, BoundsWhatASlowReaderMakesItKeep) {
  constexpr int64_t kQueue = 100'000;
  absl::Notification gone;
  std::atomic<int64_t> accepted{0};
  auto routes = TestRoutes();
  routes.push_back({"GET", "/flood", [&](Request, Writer w) {
                      w->OnDisconnect([&] { gone.Notify(); });
                      w->StartStream({.content_type = "text/event-stream"});
                      while (w->Write(std::string(1000, 'x'))) accepted += 1000;
                    }});
  auto server = StartServer({.max_queued_bytes = kQueue}, std::move(routes));
  TestClient client(server->port(), /*receive_buffer_bytes=*/4096);
  client.Send("GET /flood HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(absl::Seconds(20)));
  // The queue, what was being written, and the kernel's buffers.
  EXPECT_LT(accepted, 2 * kQueue + (int64_t{8} << 20));
  EXPECT_EQ(TestClient(server->port()).Get("/health").status, 200);
}

TEST(HttpExchangeTest, AfterAnAnswersEndNothingMoreIsSaid) {
  auto routes = TestRoutes();
  const auto more = [](const Writer& w) {
    w->Respond({.body = "no"});
    w->StartStream({.body = "no"});
    EXPECT_FALSE(w->Write("no"));
    EXPECT_FALSE(w->HasRoom());
    w->OnRoom([] { ADD_FAILURE(); });
    w->Finish(/*close=*/true);
    w->Abort();
  };
  routes.push_back({"GET", "/sent", [&](Request, Writer w) {
                      w->Respond({.body = "sent"});
                      more(w);
                    }});
  routes.push_back({"GET", "/streamed", [&](Request, Writer w) {
                      w->StartStream({.body = "streamed"});
                      w->Finish(/*close=*/false);
                      more(w);
                    }});
  auto server = StartServer({}, std::move(routes));
  TestClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.Get("/sent").body, "sent");
    EXPECT_EQ(client.Get("/streamed").body, "streamed");
  }
}

TEST(HttpExchangeTest, AClientThatGoesAfterItsAnswerIsNoNews) {
  std::atomic<int> num_gone = 0;
  auto routes = TestRoutes();
  routes.push_back({"GET", "/told", [&](Request, Writer w) {
                      w->OnDisconnect([&] { ++num_gone; });
                      w->Respond({.body = "ok"});
                    }});
  auto server = StartServer({}, std::move(routes));
  TestClient client(server->port());
  EXPECT_EQ(client.Get("/told").body, "ok");
  client.Close();
  ASSERT_TRUE(EmptiesWithin(*server, absl::Seconds(20)));
  server->Stop(Duration::zero());  // Runs what was posted.
  EXPECT_EQ(num_gone, 0);
}

TEST(HttpExchangeTest, WhoAsksAfterItsClientHasGoneIsToldToo) {
  absl::Notification started;
  absl::Notification gone;
  absl::Notification gone_again;
  Writer held;
  auto routes = TestRoutes();
  routes.push_back({"GET", "/wait", [&](Request, Writer w) {
                      held = w;
                      w->OnDisconnect([&] { gone.Notify(); });
                      started.Notify();
                    }});
  auto server = StartServer({}, std::move(routes));
  TestClient client(server->port());
  client.Send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n");
  started.WaitForNotification();
  client.Close();
  ASSERT_TRUE(gone.WaitForNotificationWithTimeout(absl::Seconds(20)));
  held->OnDisconnect([&] { gone_again.Notify(); });
  EXPECT_TRUE(gone_again.WaitForNotificationWithTimeout(absl::Seconds(20)));
  held->Abort();
  held.reset();
}

TEST(HttpExchangeTest, AStreamThatIsDroppedEndsItsConnectionWithoutAnEnd) {
  auto routes = TestRoutes();
  routes.push_back({"GET", "/half", [](Request, Writer w) { w->StartStream({.body = "one"}); }});
  routes.push_back({"GET", "/aborted", [](Request, Writer w) {
                      w->StartStream({.body = "one"});
                      w->Abort();
                    }});
  auto server = StartServer({}, std::move(routes));
  for (const char* path : {"/half", "/aborted"}) {
    TestClient client(server->port());
    client.Send(std::string("GET ") + path + " HTTP/1.1\r\nHost: t\r\n\r\n");
    std::string wire;
    for (std::string more = client.ReadSome(); !more.empty(); more = client.ReadSome()) {
      wire += more;
    }
    EXPECT_TRUE(client.AtEnd()) << path;
    EXPECT_EQ(wire.find("0\r\n\r\n"), std::string::npos) << path;
  }
}

TEST(HttpExchangeTest, StopsWhileStreamsAreHeldElsewhere) {
  absl::Notification started;
  Writer held;
  auto routes = TestRoutes();
  routes.push_back({"GET", "/wait", [&](Request, Writer w) {
                      w->StartStream({.body = "x"});
                      held = std::move(w);
                      started.Notify();
                    }});
  auto server = StartServer({}, std::move(routes));
  TestClient client(server->port());
  client.Send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n");
  started.WaitForNotification();
  server->Stop(Duration::zero());
  EXPECT_TRUE(client.AtEnd());
  server.reset();
  EXPECT_FALSE(held->Write("y"));
  held->Finish(false);
}

}  // namespace
}  // namespace baton::http
