#include "prefill_worker/program.h"

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

PrefillConfig SmallConfig() {
  PrefillConfig config;
  config.worker.model = BATON_SOURCE_DIR "/deploy/models/tiny-kjv";
  config.worker.threads = 1;
  config.worker.num_blocks = 64;
  config.worker.ready_file = ::testing::TempDir() + "/baton-prefill-program-test.json";
  return config;
}

TEST(PrefillProgramTest, StartsListensAndDrainsWhenIdle) {
  const PrefillConfig config = SmallConfig();
  auto service = WorkerProcess<PrefillProgram>::Start(config);
  ASSERT_TRUE(service.ok()) << service.status();
  std::ifstream in(config.worker.ready_file);
  const nlohmann::json ready = nlohmann::json::parse(in);
  EXPECT_EQ(ready["role"], "prefill");
  EXPECT_THAT(ready["address"].get<std::string>(), HasSubstr("127.0.0.1:"));
  bool hurried = false;
  (*service)->Drain([&hurried] { return hurried; });
}

// Cores that workers share are what it is for.
TEST(PrefillProgramTest, PromptsFinishTogetherByDefaultWhereTheCpuComputes) {
  PrefillConfig config = SmallConfig();
  const auto waits = [&config] {
    auto runtime = WorkerRuntime::Create(config.worker, Role::kPrefill);
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    EXPECT_TRUE((*runtime)->on_cpu());
    return PrefillProgram::PartsOf(config, **runtime).engine.finish_together;
  };
  EXPECT_EQ(waits(), 8);
  config.finish_together = 3;
  EXPECT_EQ(waits(), 3);
  config.finish_together = 0;
  EXPECT_EQ(waits(), 0);
}

TEST(PrefillProgramTest, APortInUseIsRefusedByNameOfTheOption) {
  PrefillConfig config = SmallConfig();
  auto first = WorkerProcess<PrefillProgram>::Start(config);
  ASSERT_TRUE(first.ok()) << first.status();
  std::ifstream in(config.worker.ready_file);
  const std::string address = nlohmann::json::parse(in)["address"];
  config.worker.port = std::stoi(address.substr(address.find(':') + 1));
  const auto second = WorkerProcess<PrefillProgram>::Start(config);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--port"));
}

std::optional<int> Parse(std::vector<std::string> words, PrefillConfig* config) {
  words.insert(words.begin(), "baton-prefill");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  CLI::App app;
  config->AddOptions(app);
  return ParseCommandLine(app, static_cast<int>(argv.size()), argv.data());
}

TEST(PrefillConfigTest, ReadsFlagsOverDefaultsThatAreValid) {
  PrefillConfig config;
  EXPECT_EQ(Parse({"--model", "m", "--block-size", "32"}, &config), std::nullopt);
  EXPECT_EQ(config.worker.model, "m");
  EXPECT_EQ(config.worker.block_size, 32);
  EXPECT_TRUE(config.Validate().ok()) << config.Validate();
}

TEST(PrefillConfigTest, RefusesAWrongValueByNameOfTheOption) {
  PrefillConfig config;
  config.worker.model = "m";
  config.worker.chunk_tokens = 0;
  EXPECT_THAT(std::string(config.Validate().message()), HasSubstr("--chunk-tokens 0"));
  config.worker.chunk_tokens = 1;
  config.max_waiting = 0;
  EXPECT_THAT(std::string(config.Validate().message()), HasSubstr("--max-waiting 0"));
  config.max_waiting = 1;
  config.finish_together = -1;
  EXPECT_THAT(std::string(config.Validate().message()), HasSubstr("--finish-together -1"));
}

}  // namespace
}  // namespace baton
