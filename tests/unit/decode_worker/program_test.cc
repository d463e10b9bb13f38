#include "decode_worker/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "common/process/command_line.h"
#include "common/worker/worker_process.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using ::testing::HasSubstr;

DecodeConfig SmallConfig() {
  DecodeConfig config;
  config.worker.model = BATON_SOURCE_DIR "/deploy/models/tiny-kjv";
  config.worker.threads = 1;
  config.worker.num_blocks = 64;
  config.worker.ready_file = ::testing::TempDir() + "/baton-decode-program-test.json";
  return config;
}

TEST(DecodeProgramTest, StartsListensAndDrainsWhenIdle) {
  const DecodeConfig config = SmallConfig();
  auto service = WorkerProcess<DecodeProgram>::Start(config);
  ASSERT_TRUE(service.ok()) << service.status();
  std::ifstream in(config.worker.ready_file);
  const nlohmann::json ready = nlohmann::json::parse(in);
  EXPECT_EQ(ready["role"], "decode");
  EXPECT_THAT(ready["address"].get<std::string>(), HasSubstr("127.0.0.1:"));
  bool hurried = false;
  (*service)->Drain([&hurried] { return hurried; });
}

TEST(DecodeProgramTest, APortInUseIsRefusedByNameOfTheOption) {
  DecodeConfig config = SmallConfig();
  auto first = WorkerProcess<DecodeProgram>::Start(config);
  ASSERT_TRUE(first.ok()) << first.status();
  std::ifstream in(config.worker.ready_file);
  const std::string address = nlohmann::json::parse(in)["address"];
  config.worker.port = std::stoi(address.substr(address.find(':') + 1));
  const auto second = WorkerProcess<DecodeProgram>::Start(config);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--port"));
}

std::optional<int> Parse(std::vector<std::string> words, DecodeConfig* config) {
  words.insert(words.begin(), "baton-decode");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  CLI::App app;
  config->AddOptions(app);
  return ParseCommandLine(app, static_cast<int>(argv.size()), argv.data());
}

TEST(DecodeConfigTest, ReadsFlagsOverDefaultsThatAreValid) {
  DecodeConfig config;
  EXPECT_EQ(Parse({"--model", "m", "--block-size", "32"}, &config), std::nullopt);
  EXPECT_EQ(config.worker.model, "m");
  EXPECT_EQ(config.worker.block_size, 32);
  EXPECT_TRUE(config.Validate().ok()) << config.Validate();
}

TEST(DecodeConfigTest, RefusesAWrongValueByNameOfTheOption) {
  DecodeConfig config;
  config.worker.model = "m";
  config.worker.chunk_tokens = 0;
  EXPECT_THAT(std::string(config.Validate().message()), HasSubstr("--chunk-tokens 0"));
}

}  // namespace
}  // namespace baton
