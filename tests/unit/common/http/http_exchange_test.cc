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
                      while (w->Write(std::string(1000, 'x'))) {
                        accepted += 1000;
                      }
                    }});
  auto server = StartServer({.max_queued_bytes = kQueue}, std::move(routes));
  TestClient client(server->port(), /*receive_buffer_bytes=*/4096);
  client.Send("GET /flood HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(absl::Seconds(20)));
  // The queue, what was being written, and the kernel's buffers.
  EXPECT_LT(accepted, 2 * kQueue + (int64_t{8} << 20));
  EXPECT_EQ(TestClient(server->port()).Get("/health").status, 200);
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
