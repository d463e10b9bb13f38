#include "prefill_worker/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton {
namespace {

using ::testing::HasSubstr;

std::optional<int> Parse(std::vector<std::string> words, PrefillConfig* config) {
  words.insert(words.begin(), "baton-prefill");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return ParsePrefillCommandLine(static_cast<int>(argv.size()), argv.data(), config);
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
