#include "decode_worker/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton {
namespace {

using ::testing::HasSubstr;

std::optional<int> Parse(std::vector<std::string> words, DecodeConfig* config) {
  words.insert(words.begin(), "baton-decode");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return ParseDecodeCommandLine(static_cast<int>(argv.size()), argv.data(), config);
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
