#include "common/checkpoint/families.h"

#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

absl::StatusOr<const Family*> Find(const nlohmann::json& config) {
  JsonFields fields("config.json", config);
  return FindFamily(fields);
}

TEST(FamiliesTest, AFamilyIsFoundByArchitectureOrElseByModelType) {
  EXPECT_STREQ((*Find({{"architectures", {"OPTForCausalLM"}}}))->model_type, "opt");
  EXPECT_STREQ((*Find({{"model_type", "bloom"}}))->architecture, "BloomForCausalLM");
  EXPECT_EQ(Find({{"model_type", "gpt2"}}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(FamiliesTest, AnArchitectureLeadsToTheNamesOfItsTensors) {
  EXPECT_EQ(NamesOf("BloomForCausalLM").base, "transformer.");
  EXPECT_EQ(NamesOf("OPTForCausalLM").up, "fc1");
  EXPECT_EQ(NamesOf("").q, "self_attn.q_proj");
}

}  // namespace
}  // namespace baton
