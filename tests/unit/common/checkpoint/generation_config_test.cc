#include "common/checkpoint/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/common/checkpoint/model_dir.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string GenerationError(const std::string& text) {
  return std::string(ParseGenerationConfig(text).status().message());
}

TEST(GenerationConfigTest, ReadsEndTokensAndSamplingDefaults) {
  const auto config = ParseGenerationConfig(
      R"({"eos_token_id": [5, 1], "bos_token_id": 0, "do_sample": true, "temperature": 0.6,
          "top_k": 20, "top_p": 0.95, "min_p": 0, "repetition_penalty": 1.05, "max_length": 9})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(1, 5));
  EXPECT_EQ(config->bos_token_id, 0);
  EXPECT_EQ(config->do_sample, true);
  EXPECT_EQ(config->temperature, 0.6f);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_EQ(config->top_p, 0.95f);
  EXPECT_EQ(config->min_p, 0.0f);
  EXPECT_EQ(config->repetition_penalty, 1.05f);
}

TEST(GenerationConfigTest, SilentFieldsStayEmpty) {
  const auto config = ParseGenerationConfig(R"({"temperature": null})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->eos_token_ids.empty());
  EXPECT_FALSE(config->temperature.has_value());
  EXPECT_FALSE(config->do_sample.has_value());
}

TEST(GenerationConfigTest, RefusesIllTypedAndOutOfRangeValuesByName) {
  EXPECT_THAT(GenerationError(R"({"temperature": "hot"})"),
              AllOf(HasSubstr("temperature"), HasSubstr("hot")));
  EXPECT_THAT(GenerationError(R"({"temperature": -1})"), HasSubstr("temperature"));
  EXPECT_THAT(GenerationError(R"({"top_p": 0})"), HasSubstr("top_p"));
  EXPECT_THAT(GenerationError(R"({"top_k": 1.5})"), HasSubstr("top_k"));
  EXPECT_THAT(GenerationError(R"({"eos_token_id": [1, "x"]})"), HasSubstr("eos_token_id"));
  EXPECT_THAT(GenerationError("[]"), HasSubstr("an object"));
}

TEST(GenerationConfigTest, AFolderWithoutTheFileHasNoDefaults) {
  const ModelDir dir;
  const auto none = LoadGenerationConfig(dir.path());
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->eos_token_ids.empty());
  dir.Write("generation_config.json", "{");
  EXPECT_THAT(std::string(LoadGenerationConfig(dir.path()).status().message()),
              HasSubstr("generation_config.json"));
}

}  // namespace
}  // namespace baton
