#include "common/checkpoint/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/checkpoint/model_config.h"
#include "tests/golden/golden_file.h"

namespace baton {
namespace {

// Two units in the last place: the C library's powf against torch's.
constexpr float kRelative = 2.4e-7f;

TEST(RopeTest, FrequenciesAreThoseOfTransformers) {
  const nlohmann::json golden = ReadGoldenJson("rope.json");
  ASSERT_EQ(golden.at("cases").size(), 20u);
  for (const auto& c : golden.at("cases")) {
    SCOPED_TRACE(c.at("config").at("rope_parameters").dump());
    const auto config = ParseModelConfig(c.at("config").dump());
    ASSERT_TRUE(config.ok()) << config.status();
    const RopeFrequencies got =
        ComputeRopeFrequencies(config->rope, config->rotary_dim, c.value("sequence_len", 1));
    const std::vector<float> want = c.at("inv_freq");
    ASSERT_EQ(got.inv_freq.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got.inv_freq[i], want[i], std::abs(want[i]) * kRelative) << i;
    }
    EXPECT_FLOAT_EQ(got.attention_scaling, c.at("attention_scaling").get<float>());
  }
}

TEST(RopeTest, LinearDividesEveryFrequency) {
  const auto plain = ComputeRopeFrequencies({.theta = 1e4, .scaling = RopeDefault{}}, 16);
  const auto linear = ComputeRopeFrequencies({.theta = 1e4, .scaling = RopeLinear{4}}, 16);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(linear.inv_freq[i], plain.inv_freq[i] / 4) << i;
}

TEST(RopeTest, DynamicEqualsDefaultUpToItsOriginalLength) {
  const auto plain = ComputeRopeFrequencies({.theta = 1e4, .scaling = RopeDefault{}}, 16);
  const auto dynamic = ComputeRopeFrequencies(
      {.theta = 1e4, .scaling = RopeDynamic{.factor = 2, .original_max_positions = 256}}, 16);
  EXPECT_EQ(dynamic.inv_freq, plain.inv_freq);
}

}  // namespace
}  // namespace baton
