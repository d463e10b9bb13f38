#include "common/checkpoint/expert_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Read {
  ExpertConfig experts;
  std::string error;
};

// Of four layers.
Read Experts(const char* architecture, const std::string& text) {
  const nlohmann::json object = nlohmann::json::parse(text);
  const nlohmann::json name{{"architectures", {architecture}}};
  JsonFields named("config.json", name);
  const Family& family = **FindFamily(named);
  JsonFields fields("config.json", object);
  fields.SetAliases(family.aliases);
  ModelConfig config{.num_layers = 4, .ffn_size = 96};
  ReadExperts(fields, family, config);
  return {config.experts, std::string(fields.status().message())};
}

TEST(ExpertConfigTest, DefaultsAreThoseOfTransformers) {
  EXPECT_EQ(Experts("LlamaForCausalLM", R"({"num_experts": 8})").experts.count, 0);
  EXPECT_EQ(Experts("MixtralForCausalLM", "{}").experts,
            (ExpertConfig{.count = 8,
                          .top_k = 2,
                          .ffn_size = 96,
                          .renormalize = true,
                          .layers = {true, true, true, true}}));
  EXPECT_EQ(Experts("Qwen3MoeForCausalLM", "{}").experts,
            (ExpertConfig{
                .count = 128, .top_k = 8, .ffn_size = 768, .layers = {true, true, true, true}}));
  EXPECT_EQ(Experts("Qwen2MoeForCausalLM", "{}").experts,
            (ExpertConfig{.count = 60,
                          .top_k = 4,
                          .ffn_size = 1408,
                          .shared_ffn_size = 5632,
                          .layers = {true, true, true, true}}));
}

TEST(ExpertConfigTest, BothNamesOfTheNumberAreRead) {
  for (const char* family : {"MixtralForCausalLM", "Qwen3MoeForCausalLM"}) {
    EXPECT_EQ(Experts(family, R"({"num_experts": 9})").experts.count, 9);
    EXPECT_EQ(Experts(family, R"({"num_local_experts": 9})").experts.count, 9);
  }
}

TEST(ExpertConfigTest, StepsAndListsLeaveLayersTheirMlp) {
  EXPECT_THAT(Experts("Qwen3MoeForCausalLM", R"({"decoder_sparse_step": 2})").experts.layers,
              ElementsAre(false, true, false, true));
  EXPECT_THAT(Experts("Qwen3MoeForCausalLM",
                      R"({"decoder_sparse_step": 2, "mlp_only_layers": [0, 3]})")
                  .experts.layers,
              ElementsAre(false, true, false, false));
  EXPECT_EQ(Experts("Qwen3MoeForCausalLM", R"({"mlp_only_layers": [0, 1, 2, 3]})").experts,
            ExpertConfig{});
}

TEST(ExpertConfigTest, WhatIsOutOfRangeIsRefusedByName) {
  EXPECT_THAT(Experts("MixtralForCausalLM", R"({"num_local_experts": 2000})").error,
              AllOf(HasSubstr("\"num_local_experts\" is 2000"), HasSubstr("1024")));
  EXPECT_THAT(Experts("MixtralForCausalLM", R"({"num_experts_per_tok": 9})").error,
              AllOf(HasSubstr("\"num_experts_per_tok\" is 9"), HasSubstr("8")));
  EXPECT_THAT(Experts("Qwen3MoeForCausalLM", R"({"num_experts": 4})").error,
              AllOf(HasSubstr("\"num_experts_per_tok\" is 8"), HasSubstr("num_experts = 4")));
  EXPECT_THAT(Experts("Qwen2MoeForCausalLM", R"({"mlp_only_layers": [4]})").error,
              AllOf(HasSubstr("\"mlp_only_layers\" is 4"), HasSubstr("layers from 0 to 3")));
  EXPECT_THAT(Experts("Qwen2MoeForCausalLM", R"({"mlp_only_layers": "all"})").error,
              HasSubstr("a list of layers is needed"));
}

}  // namespace
}  // namespace baton
