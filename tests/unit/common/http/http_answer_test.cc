#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
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
  EXPECT_EQ(client.Get("/health").body, "ok");
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
      {"GET", "/big", [](Request, Writer w) { w->Send({.body = std::string(8 << 20, 'x')}); }});
  auto server = StartServer({}, std::move(routes));
  TestClient client(server->port(), /*receive_buffer_bytes=*/4096);
  EXPECT_EQ(client.Get("/big").body.size(), size_t{8} << 20);
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

}  // namespace
}  // namespace baton::http
