#include "router/generation/sampling_defaults.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(SamplingDefaultsTest, ShowsTheModelsValuesAndOpenAisForTheRest) {
  EXPECT_EQ(EffectiveDefaults({}), "temperature=1 top_p=1 top_k=0 min_p=0 repetition_penalty=1");
  GenerationConfig config;
  config.temperature = 0.5f;
  config.top_k = 40;
  EXPECT_EQ(EffectiveDefaults(config),
            "temperature=0.5 top_p=1 top_k=40 min_p=0 repetition_penalty=1");
}

}  // namespace
}  // namespace baton
