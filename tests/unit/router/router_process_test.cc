#include "router/router_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/unit/common/http/test_client.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// The workers of its list do not exist.
RouterConfig LonelyConfig() {
  RouterConfig config;
  config.model = BATON_SOURCE_DIR "/deploy/models/tiny-kjv";
  config.prefill = {"127.0.0.1:1"};
  config.decode = {"127.0.0.1:2"};
  config.http_port = 0;
  config.grpc_port = 0;
  config.ready_file = ::testing::TempDir() + "/baton-router-process-test.json";
  return config;
}

uint16_t HttpPort(const RouterConfig& config) {
  std::ifstream in(config.ready_file);
  const std::string url = nlohmann::json::parse(in)["http_url"];
  return static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
}

int Get(uint16_t port, const std::string& path, const std::string& header = "") {
  http::TestClient client(port);
  client.Send("GET " + path + " HTTP/1.1\r\nHost: test\r\n" + header + "\r\n");
  return client.Read().status;
}

TEST(RouterProcessTest, IsAliveButNotReadyWithoutWorkersAndDrainsAtOnce) {
  const RouterConfig config = LonelyConfig();
  auto process = RouterProcess::Start(config);
  ASSERT_TRUE(process.ok()) << process.status();
  const uint16_t port = HttpPort(config);
  EXPECT_EQ(Get(port, "/health"), 200);
  EXPECT_EQ(Get(port, "/ready"), 503);
  EXPECT_EQ(Get(port, "/metrics"), 200);
  EXPECT_EQ(Get(port, "/status"), 200);
  EXPECT_EQ(Get(port, "/v1/models"), 200);
  (*process)->Drain([] { return false; });
}

TEST(RouterProcessTest, AsksForAKeyWhereTheApiIsAndNowhereElse) {
  RouterConfig config = LonelyConfig();
  config.api_keys_file = ::testing::TempDir() + "/baton-router-process-test-keys";
  std::ofstream(config.api_keys_file)
      << "alice ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n";
  auto process = RouterProcess::Start(config);
  ASSERT_TRUE(process.ok()) << process.status();
  const uint16_t port = HttpPort(config);
  EXPECT_EQ(Get(port, "/v1/models"), 401);
  EXPECT_EQ(Get(port, "/v1/models", "Authorization: Bearer wrong\r\n"), 401);
  EXPECT_EQ(Get(port, "/v1/models", "Authorization: Bearer abc\r\n"), 200);
  EXPECT_EQ(Get(port, "/health"), 200);
}

TEST(RouterProcessTest, RefusesToStartByNameOfTheOption) {
  RouterConfig no_model = LonelyConfig();
  no_model.model = "/nonexistent";
  EXPECT_THAT(std::string(RouterProcess::Start(no_model).status().message()),
              HasSubstr("--model /nonexistent"));
  RouterConfig too_long = LonelyConfig();
  too_long.max_model_len = 1 << 20;
  EXPECT_THAT(std::string(RouterProcess::Start(too_long).status().message()),
              HasSubstr("--max-model-len 1048576"));
  RouterConfig first = LonelyConfig();
  auto process = RouterProcess::Start(first);
  ASSERT_TRUE(process.ok()) << process.status();
  RouterConfig second = LonelyConfig();
  second.http_port = HttpPort(first);
  EXPECT_THAT(std::string(RouterProcess::Start(second).status().message()),
              HasSubstr("--http-port"));
}

}  // namespace
}  // namespace baton
