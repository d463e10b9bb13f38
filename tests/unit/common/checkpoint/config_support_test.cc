#include "common/checkpoint/config_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Error(const json& object) {
  JsonFields fields("config.json", object);
  RefuseUnsupportedFields(fields);
  return std::string(fields.status().message());
}

TEST(ConfigSupportTest, NullAndHarmlessFieldsLoad) {
  EXPECT_EQ(Error({{"quantization_config", nullptr},
                   {"never_heard_of", nullptr},
                   {"transformers_version", "4.40.0"},
                   {"_name_or_path", "x"},
                   {"attention_dropout", 0.1},
                   {"use_cache", true},
                   {"pad_token_id", -1}}),
            "");
}

TEST(ConfigSupportTest, NeutralValuesOfOtherFamiliesLoadAndOthersAreRefused) {
  EXPECT_EQ(Error({{"logit_scale", 1.0},
                   {"is_encoder_decoder", false},
                   {"attn_logit_softcapping", 0.0},
                   {"num_local_experts", 0}}),
            "");
  EXPECT_THAT(Error({{"logit_scale", 0.5}}),
              AllOf(HasSubstr("\"logit_scale\" is 0.5"), HasSubstr("allowed: null, 1")));
  EXPECT_THAT(Error({{"num_local_experts", 8}}), HasSubstr("\"num_local_experts\" is 8"));
  EXPECT_THAT(Error({{"quantization_config", {{"quant_method", "gptq"}}}}),
              AllOf(HasSubstr("quantization_config"), HasSubstr("gptq")));
}

// transformers then sums o and down part by part, and leaves out their biases.
TEST(ConfigSupportTest, BloomsExactSumsOfSeveralPartsAreRefused) {
  EXPECT_EQ(Error({{"slow_but_exact", false}, {"pretraining_tp", 4}}), "");
  EXPECT_EQ(Error({{"slow_but_exact", true}}), "");
  EXPECT_EQ(Error({{"slow_but_exact", true}, {"pretraining_tp", 1}}), "");
  EXPECT_THAT(Error({{"slow_but_exact", true}, {"pretraining_tp", 2}}),
              HasSubstr("\"slow_but_exact\" is true"));
}

TEST(ConfigSupportTest, UnknownFieldsLoadOnlyWhenOff) {
  EXPECT_EQ(Error({{"new_feature", false}, {"other", json::array()}}), "");
  EXPECT_THAT(Error({{"new_feature", true}}),
              AllOf(HasSubstr("\"new_feature\" is true"), HasSubstr("remove it")));
}

}  // namespace
}  // namespace baton
