#include "common/worker/ops_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/unit/common/http/test_client.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

OpsServerOptions On(const std::string& host) {
  return {.host = host,
          .metrics = [] { return std::string("baton_x 1\n"); },
          .why_dead = [] { return std::string(); }};
}

TEST(OpsServerTest, HealthSaysWhyItIsNotAlive) {
  OpsServerOptions options = On("127.0.0.1");
  std::atomic<bool> dead = false;
  options.why_dead = [&] { return std::string(dead ? "stands still" : ""); };
  const auto server = MakeOpsServer(options);
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->Start();
  http::TestClient client((*server)->port());
  EXPECT_EQ(client.Get("/health").status, 200);
  EXPECT_EQ(client.Get("/metrics").body, "baton_x 1\n");
  dead = true;
  const http::WireResponse answer = client.Get("/health");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.body, "{\"status\":\"stands still\"}\n");
}

TEST(OpsServerTest, APortThatIsTakenIsNamedByItsOption) {
  const auto first = MakeOpsServer(On("127.0.0.1"));
  ASSERT_TRUE(first.ok()) << first.status();
  OpsServerOptions second = On("127.0.0.1");
  second.port = (*first)->port();
  EXPECT_THAT(std::string(MakeOpsServer(second).status().message()),
              HasSubstr("--metrics-port " + std::to_string(second.port)));
}

}  // namespace
}  // namespace baton
