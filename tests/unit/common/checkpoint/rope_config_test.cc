#include "common/checkpoint/rope_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<RopeForm> ParseRope(const std::string& text, int32_t rotary_dim = 64) {
  const nlohmann::json object = nlohmann::json::parse(text);
  JsonFields fields("config.json", object);
  return ParseRopeForm(fields, {.max_position_embeddings = 1000, .rotary_dim = rotary_dim});
}

std::string RopeError(const std::string& text, int32_t rotary_dim = 64) {
  return std::string(ParseRope(text, rotary_dim).status().message());
}

TEST(RopeConfigTest, NothingMeansTheDefaultFormAtTheta10000) {
  for (const char* text : {"{}", R"({"rope_scaling": null})", R"({"rope_parameters": {}})",
                           R"({"rope_scaling": {"type": "default"}})"}) {
    EXPECT_EQ(*ParseRope(text), (RopeForm{.theta = 10000, .scaling = RopeDefault{}})) << text;
  }
}

TEST(RopeConfigTest, OldAndNewNamesMeanTheSame) {
  const RopeForm want{.theta = 5, .scaling = RopeLinear{2}};
  EXPECT_EQ(*ParseRope(R"({"rope_theta": 5, "rope_scaling": {"type": "linear", "factor": 2}})"),
            want);
  EXPECT_EQ(
      *ParseRope(R"({"rope_theta": 5, "rope_scaling": {"rope_type": "linear", "factor": 2}})"),
      want);
  EXPECT_EQ(*ParseRope(R"({"rope_parameters":
                       {"rope_theta": 5, "rope_type": "linear", "factor": 2.0}})"),
            want);
}

TEST(RopeConfigTest, OldDictionaryWinsOverNewAndInnerThetaOverOuter) {
  EXPECT_EQ(*ParseRope(R"({"rope_theta": 5,
                       "rope_scaling": {"type": "linear", "factor": 2, "rope_theta": 6},
                       "rope_parameters": {"rope_type": "yarn", "factor": 3}})"),
            (RopeForm{.theta = 6, .scaling = RopeLinear{2}}));
}

TEST(RopeConfigTest, OriginalLengthBesideTheDictionaryWins) {
  const RopeForm form = *ParseRope(R"({"original_max_position_embeddings": 77, "rope_scaling":
      {"type": "yarn", "factor": 2, "original_max_position_embeddings": 88}})");
  EXPECT_EQ(std::get<RopeYarn>(form.scaling).original_max_positions, 77);
}

TEST(RopeConfigTest, UnknownFormsAndFieldsAreRefusedByName) {
  EXPECT_THAT(RopeError(R"({"rope_scaling": {"type": "mrope", "factor": 2}})"),
              AllOf(HasSubstr("config.json: rope_scaling"), HasSubstr("mrope"),
                    HasSubstr("linear, dynamic, yarn, llama3 and longrope")));
  EXPECT_THAT(
      RopeError(R"({"rope_scaling": {"type": "linear", "factor": 2, "short_mscale": 1.1}})"),
      HasSubstr("\"short_mscale\" is 1.1"));
}

TEST(RopeConfigTest, AShareOfEachHeadIsRotated) {
  const auto dim = [](const std::string& text, const RotaryShare& share) {
    const nlohmann::json object = nlohmann::json::parse(text);
    JsonFields fields("config.json", object);
    return ParseRotaryDim(fields, 24, share);
  };
  EXPECT_EQ(*dim("{}", {}), 24);
  EXPECT_EQ(*dim("{}", {.factor = 0.25}), 6);
  EXPECT_EQ(*dim(R"({"partial_rotary_factor": 0.6})", {}), 14);
  EXPECT_EQ(*dim(R"({"partial_rotary_factor": 0.6, "rope_parameters":
      {"partial_rotary_factor": 0.5}})", {}), 12);
  EXPECT_EQ(*dim(R"({"partial_rotary_factor": 1.0})", {.fixed = true}), 24);
  const auto error = [&](const std::string& text, const RotaryShare& share) {
    return std::string(dim(text, share).status().message());
  };
  EXPECT_THAT(error(R"({"partial_rotary_factor": 0.5})", {.fixed = true}),
              HasSubstr("\"partial_rotary_factor\" is 0.5; only 1 is supported"));
  EXPECT_THAT(error(R"({"rope_scaling": {"partial_rotary_factor": 0.25}})", {.fixed = true}),
              AllOf(HasSubstr("rope_scaling: field"), HasSubstr("only 1 is supported")));
  EXPECT_EQ(*dim(R"({"partial_rotary_factor": 0.3})", {}), 7);  // Of which a pair is filled up.
  for (const char* none : {"0.01", "0"}) {
    EXPECT_THAT(error(absl::StrCat(R"({"partial_rotary_factor": )", none, "}"), {}),
                HasSubstr("it must leave 1 to 24 elements"));
  }
  const nlohmann::json object = {{"partial_rotary_factor", 0.9}};
  JsonFields fields("config.json", object);
  EXPECT_EQ(*ParseRotaryDim(fields, 7, {}), 6);
  EXPECT_THAT(std::string(ParseRotaryDim(fields, 1, {.factor = 1}).status().message()),
              HasSubstr("it must leave 1 to 0 elements"));
}

TEST(RopeConfigTest, FormsThatCutFrequenciesAtHalfTheElementsNeedAnEvenNumber) {
  EXPECT_THAT(RopeError(R"({"rope_scaling": {"type": "yarn", "factor": 2}})", 7),
              AllOf(HasSubstr("\"yarn\""), HasSubstr("an even number of rotated elements")));
  EXPECT_TRUE(ParseRope(R"({"rope_scaling": {"type": "linear", "factor": 2}})", 7).ok());
}

TEST(RopeConfigTest, TheScalingOfATypeOfLayersChangesWhatItsParametersSay) {
  const nlohmann::json object = nlohmann::json::parse(R"({
      "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 3000}},
      "rope_scaling": {"rope_type": "linear", "factor": 8}})");
  JsonFields fields("config.json", object);
  const auto form = ParseRopeForm(fields, {.max_position_embeddings = 64,
                                           .rotary_dim = 8,
                                           .theta = 7,
                                           .layer_type = "full_attention"});
  ASSERT_TRUE(form.ok()) << form.status();
  EXPECT_EQ(form->theta, 3000);
  EXPECT_EQ(std::get<RopeLinear>(form->scaling).factor, 8);
}

TEST(RopeConfigTest, AFamilysOriginalLengthComesBeforeWhatIsInside) {
  const auto original = [](const std::string& text) {
    const nlohmann::json object = nlohmann::json::parse(text);
    JsonFields fields("config.json", object);
    const auto form = ParseRopeForm(fields, {.max_position_embeddings = 1000,
                                             .rotary_dim = 2,
                                             .original_positions = 4096});
    return std::get<RopeLongrope>(form->scaling).original_max_positions;
  };
  const std::string inside = R"("rope_scaling": {"type": "longrope", "short_factor": [1],
      "long_factor": [2], "original_max_position_embeddings": 10}})";
  EXPECT_EQ(original("{" + inside), 4096);
  EXPECT_EQ(original(R"({"original_max_position_embeddings": 20, )" + inside), 20);
}

TEST(RopeConfigTest, MissingAndIllTypedFieldsAreRefusedByName) {
  EXPECT_THAT(RopeError(R"({"rope_scaling": {"type": "linear"}})"),
              HasSubstr("\"factor\" is missing"));
  EXPECT_THAT(RopeError(R"({"rope_scaling": {"type": "linear", "factor": "4"}})"),
              HasSubstr("\"factor\" is \"4\"; a number"));
  EXPECT_THAT(RopeError(R"({"rope_scaling": {"type": "linear", "factor": 0}})"),
              HasSubstr("factor"));
  EXPECT_THAT(
      RopeError(R"({"rope_scaling": {"type": "llama3", "factor": 8, "high_freq_factor": 4}})"),
      HasSubstr("\"low_freq_factor\" is missing"));
  EXPECT_THAT(RopeError(R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
                        "high_freq_factor": 4}})"),
              HasSubstr("greater than low_freq_factor"));
  EXPECT_THAT(RopeError(R"({"rope_scaling": "linear"})"), HasSubstr("an object"));
  EXPECT_THAT(RopeError(R"({"rope_theta": 0.5})"), HasSubstr("from 1 to"));
  EXPECT_THAT(RopeError(R"({"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2}})"),
              HasSubstr("rope_theta"));
  EXPECT_THAT(RopeError(R"({"rope_scaling": {"type": "dynamic", "factor": 2}})", 2),
              HasSubstr("head_dim of at least 4"));
}

constexpr char kLongrope[] = R"({"original_max_position_embeddings": 100, "rope_scaling":
    {"type": "longrope", "short_factor": [1, 1.5], "long_factor": [2, 30]}})";

TEST(RopeConfigTest, LongropeHasBothListsAndTheLengthBetweenThem) {
  const auto longrope = std::get<RopeLongrope>(ParseRope(kLongrope, 4)->scaling);
  EXPECT_EQ(longrope.short_factors, (std::vector<double>{1, 1.5}));
  EXPECT_EQ(longrope.long_factors, (std::vector<double>{2, 30}));
  EXPECT_EQ(longrope.original_max_positions, 100);
  EXPECT_DOUBLE_EQ(longrope.attention_factor, std::sqrt(1 + std::log(10.0) / std::log(100.0)));
  EXPECT_EQ(OriginalLen(*ParseRope(kLongrope, 4)), 100);
  EXPECT_EQ(OriginalLen(*ParseRope("{}", 4)), 0);
}

TEST(RopeConfigTest, TheLengthOfASequenceChoosesLongropesList) {
  const RopeForm form = *ParseRope(kLongrope, 4);
  const auto first = [&](int32_t sequence_len) {
    return ComputeRopeFrequencies(form, 4, sequence_len).inv_freq[0];
  };
  EXPECT_EQ(ComputeRopeFrequencies(form, 4).inv_freq[0], 1.0f);
  EXPECT_EQ(first(1), 1.0f);
  EXPECT_EQ(first(100), 1.0f);
  EXPECT_EQ(first(101), 0.5f);
}

TEST(RopeConfigTest, ListsOfTheWrongLengthOrWithoutAFrequencyAreRefusedByName) {
  const auto error = [](const std::string& fields) {
    return RopeError(R"({"rope_scaling": {"type": "longrope", )" + fields + "}}", 4);
  };
  EXPECT_THAT(error(R"("long_factor": [1, 2])"), HasSubstr("\"short_factor\" is missing"));
  EXPECT_THAT(error(R"("short_factor": [1, 2])"), HasSubstr("\"long_factor\" is missing"));
  EXPECT_THAT(error(R"("short_factor": [1, 2, 3], "long_factor": [1, 2])"),
              HasSubstr("\"short_factor\" is [1,2,3]; a list of 2 numbers"));
  EXPECT_THAT(error(R"("short_factor": [1, 2], "long_factor": [])"),
              HasSubstr("\"long_factor\" is []; a list of 2 numbers"));
  EXPECT_THAT(error(R"("short_factor": 1, "long_factor": [1, 2])"),
              HasSubstr("\"short_factor\" is 1; a list of 2 numbers"));
  for (const char* bad : {"0", "-1", "1e9", "null", "\"2\"", "1e-9"}) {
    EXPECT_THAT(error(R"("short_factor": [1, 2], "long_factor": [1, )" + std::string(bad) + "]"),
                AllOf(HasSubstr("\"long_factor[1]\" is "), HasSubstr("from 0.001 to")));
  }
  EXPECT_THAT(error(R"("short_factor": [1, 2], "long_factor": [1, 2], "long_mscale": 2)"),
              HasSubstr("long_mscale"));
  EXPECT_THAT(error(R"("short_factor": [1, 2], "long_factor": [1, 2],
                       "original_max_position_embeddings": 1)"),
              HasSubstr("original_max_position_embeddings"));
}

TEST(RopeConfigTest, OnlyYarnReachesBeyondMaxPositions) {
  EXPECT_EQ(MaxModelLen({.scaling = RopeLinear{4}}, 100), 100);
  EXPECT_EQ(MaxModelLen({.scaling = RopeDynamic{4, 100}}, 100), 100);
  EXPECT_EQ(MaxModelLen({.scaling = RopeYarn{.factor = 4, .original_max_positions = 100}}, 100),
            400);
  EXPECT_EQ(MaxModelLen({.scaling = RopeYarn{.factor = 4, .original_max_positions = 100}}, 500),
            500);
  EXPECT_EQ(
      MaxModelLen({.scaling = RopeYarn{.factor = 1e6, .original_max_positions = 1 << 27}}, 100),
      1 << 20);
  EXPECT_EQ(MaxModelLen({.scaling = RopeDefault{}}, 1 << 27), 1 << 20);
  EXPECT_EQ(MaxModelLen({.scaling = RopeLongrope{{1, 1}, {4, 1}}}, 1 << 27), 1 << 20);
  EXPECT_EQ(MaxModelLen({.scaling = RopeLongrope{{1, 1}, {4, 0.5}}}, 1 << 27), 1 << 19);
  EXPECT_EQ(MaxModelLen({.scaling = RopeLongrope{{0.5, 1}, {4, 1}}}, 1 << 27), 1 << 19);
  EXPECT_EQ(MaxModelLen({.scaling = RopeLongrope{{1, 1}, {4, 0.5}}}, 100), 100);
}

absl::StatusOr<RopeForm> ParseOf(const char* layers, const std::string& text) {
  const nlohmann::json object = nlohmann::json::parse(text);
  JsonFields fields("config.json", object);
  RopeContext context{.max_position_embeddings = 1000, .rotary_dim = 4, .theta = 1e6};
  context.layer_type = layers;
  if (layers == std::string("sliding_attention")) {
    context.theta = 1e4;
    context.theta_field = "rope_local_base_freq";
    context.scaled = false;
  }
  return ParseRopeForm(fields, context);
}

TEST(RopeConfigTest, EachTypeOfLayerHasItsOwnInOldAndNewNames) {
  const char* old_form = R"({"rope_theta": 5, "rope_local_base_freq": 7,
                             "rope_scaling": {"type": "linear", "factor": 8}})";
  const char* new_form = R"({"rope_parameters": {
      "full_attention": {"rope_type": "linear", "rope_theta": 5, "factor": 8},
      "sliding_attention": {"rope_type": "default", "rope_theta": 7}}})";
  for (const char* form : {old_form, new_form}) {
    EXPECT_EQ(*ParseOf("full_attention", form), (RopeForm{.theta = 5, .scaling = RopeLinear{8}}));
    EXPECT_EQ(*ParseOf("sliding_attention", form),
              (RopeForm{.theta = 7, .scaling = RopeDefault{}}));
  }
  EXPECT_EQ(ParseOf("full_attention", "{}")->theta, 1e6);
  EXPECT_EQ(ParseOf("sliding_attention", "{}")->theta, 1e4);
  EXPECT_EQ(ParseOf("sliding_attention", R"({"rope_parameters": {"sliding_attention": null}})")
                ->theta,
            1e4);
  const auto error = ParseOf("full_attention", R"({"rope_parameters": {"rope_theta": 5}})");
  EXPECT_THAT(std::string(error.status().message()),
              HasSubstr("only full_attention and sliding_attention are allowed"));
  const auto partial = ParseOf("full_attention", R"({"rope_parameters": {"full_attention":
      {"partial_rotary_factor": 0.5}}})");
  EXPECT_THAT(std::string(partial.status().message()), HasSubstr("partial_rotary_factor"));
}

TEST(RopeConfigTest, AFamilyMayHaveLongropeAlone) {
  const auto parse = [](const std::string& text) {
    const nlohmann::json object = nlohmann::json::parse(text);
    JsonFields fields("config.json", object);
    return ParseRopeForm(fields, {.max_position_embeddings = 64,
                                  .rotary_dim = 4,
                                  .original_positions = 16,
                                  .only_longrope = true});
  };
  const auto su = parse(R"({"rope_scaling": {"type": "su", "short_factor": [1, 2],
                                             "long_factor": [3, 4]}})");
  ASSERT_TRUE(su.ok()) << su.status();
  const auto& longrope = std::get<RopeLongrope>(su->scaling);
  EXPECT_EQ(longrope.long_factors, (std::vector<double>{3, 4}));
  EXPECT_EQ(longrope.original_max_positions, 16);
  EXPECT_DOUBLE_EQ(longrope.attention_factor, std::sqrt(1 + std::log(4) / std::log(16)));
  EXPECT_TRUE(parse("{}").ok());
  EXPECT_THAT(std::string(parse(R"({"rope_scaling": {"type": "yarn", "factor": 2}})")
                              .status().message()),
              AllOf(HasSubstr("\"rope_type\" is \"yarn\""), HasSubstr("default and longrope")));
}

}  // namespace
}  // namespace baton
