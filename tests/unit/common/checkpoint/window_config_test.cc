#include "common/checkpoint/window_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Of a model of seven layers with 100 positions.
struct Windows {
  std::vector<int32_t> sizes;
  std::vector<bool> layers;
  std::string error;
};

Windows Read(const char* architecture, const std::string& text) {
  const nlohmann::json object = nlohmann::json::parse(text);
  nlohmann::json name{{"architectures", {architecture}}};
  JsonFields named("config.json", name);
  const Family& family = **FindFamily(named);
  JsonFields fields("config.json", object);
  ModelConfig config{.num_layers = 7, .max_model_len = 100};
  std::vector<bool> layers =
      ReadWindows(fields, family, !object.contains("sliding_window"), config);
  return {config.windows, std::move(layers), std::string(fields.status().message())};
}

TEST(WindowConfigTest, GemmasPatternsSpareEachSecondOrEachSixthLayer) {
  EXPECT_THAT(Read("Gemma2ForCausalLM", R"({"sliding_window": 9})").sizes,
              ElementsAre(9, 0, 9, 0, 9, 0, 9));
  EXPECT_THAT(Read("Gemma3ForCausalLM", R"({"sliding_window": 9})").sizes,
              ElementsAre(9, 9, 9, 9, 9, 0, 9));
  EXPECT_THAT(Read("Gemma3ForCausalLM", R"({"sliding_window": 9, "sliding_window_pattern": 3})")
                  .sizes,
              ElementsAre(9, 9, 0, 9, 9, 0, 9));
}

TEST(WindowConfigTest, LayersAreOfAKindThoughTheirWindowHidesNothing) {
  const Windows windows = Read("Gemma3ForCausalLM", R"({"sliding_window": 100})");
  EXPECT_THAT(windows.sizes, ElementsAre(0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(windows.layers, ElementsAre(true, true, true, true, true, false, true));
}

TEST(WindowConfigTest, Qwen2MoeHasWindowsInEachSecondOfTheFirstLayers) {
  const std::string on = R"({"use_sliding_window": true, "sliding_window": 9)";
  EXPECT_THAT(Read("Qwen2MoeForCausalLM", on + R"(, "max_window_layers": 4})").sizes,
              ElementsAre(9, 0, 9, 0, 0, 0, 0));
  EXPECT_THAT(Read("Qwen2MoeForCausalLM", R"({"sliding_window": 0})").sizes,
              ElementsAre(0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(Read("Qwen2MoeForCausalLM", R"({"sliding_window": 0})").error, IsEmpty());
  EXPECT_THAT(Read("Qwen2MoeForCausalLM", R"({"use_sliding_window": true, "sliding_window": 0})")
                  .error,
              HasSubstr("\"sliding_window\" is 0"));
}

TEST(WindowConfigTest, SomeFamiliesHaveOneWindowForAllLayersWhateverTheirTypesSay) {
  for (const char* family : {"Phi3ForCausalLM", "MixtralForCausalLM"}) {
    EXPECT_THAT(Read(family, R"({"sliding_window": 9})").sizes, ElementsAre(9, 9, 9, 9, 9, 9, 9));
    EXPECT_THAT(Read(family, "{}").sizes, ElementsAre(0, 0, 0, 0, 0, 0, 0));
  }
  EXPECT_THAT(Read("Qwen3MoeForCausalLM",
                   R"({"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 3})")
                  .sizes,
              ElementsAre(9, 9, 9, 9, 9, 9, 9));
  EXPECT_THAT(Read("Qwen3MoeForCausalLM", R"({"use_sliding_window": true, "sliding_window": 9,
      "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention",
                      "full_attention", "full_attention", "full_attention"]})")
                  .error,
              AllOf(HasSubstr("\"layer_types\" has \"full_attention\""),
                    HasSubstr("holds for every layer")));
}

}  // namespace
}  // namespace baton
