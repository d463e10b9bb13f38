#include "decode_worker/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "nlohmann/json.hpp"

namespace baton {
namespace {

using ::testing::HasSubstr;

DecodeConfig SmallConfig() {
  DecodeConfig config;
  config.worker.model = BATON_SOURCE_DIR "/deploy/models/tiny-kjv";
  config.worker.threads = 1;
  config.worker.num_blocks = 64;
  config.worker.ready_file = ::testing::TempDir() + "/baton-decode-service-test.json";
  return config;
}

TEST(DecodeServiceTest, StartsListensAndDrainsWhenIdle) {
  const DecodeConfig config = SmallConfig();
  auto service = DecodeService::Start(config);
  ASSERT_TRUE(service.ok()) << service.status();
  std::ifstream in(config.worker.ready_file);
  const nlohmann::json ready = nlohmann::json::parse(in);
  EXPECT_EQ(ready["role"], "decode");
  EXPECT_THAT(ready["address"].get<std::string>(), HasSubstr("127.0.0.1:"));
  bool hurried = false;
  (*service)->Drain([&hurried] { return hurried; });
}

TEST(DecodeServiceTest, APortInUseIsRefusedByNameOfTheOption) {
  DecodeConfig config = SmallConfig();
  auto first = DecodeService::Start(config);
  ASSERT_TRUE(first.ok()) << first.status();
  std::ifstream in(config.worker.ready_file);
  const std::string address = nlohmann::json::parse(in)["address"];
  config.worker.port = std::stoi(address.substr(address.find(':') + 1));
  const auto second = DecodeService::Start(config);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--port"));
}

}  // namespace
}  // namespace baton
