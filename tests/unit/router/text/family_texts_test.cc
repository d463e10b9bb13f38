// Tokenizers of each family's kind, tests/golden/make_family_text_goldens.py: transformers' tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "router/text/text_codec.h"
#include "tests/unit/router/text/text_goldens.h"

namespace baton {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::ordered_json;

const Json& Families() {
  static const Json goldens = Json::parse(
      ReadWholeFile(BATON_SOURCE_DIR "/tests/golden/family_texts.json"));
  return goldens["families"];
}

class FamilyTextsTest : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    dir_.Write("tokenizer.json", family()["tokenizer"].dump());
    dir_.Write("tokenizer_config.json", family()["config"].dump());
    dir_.Write("config.json", family()["model"].dump());
    codec_ = LoadOrFail(dir_.path());
    ASSERT_NE(codec_, nullptr);
  }

  const Json& family() const { return Families()[GetParam()]; }

  TempModelDir dir_;
  std::unique_ptr<TextCodec> codec_;
};

TEST_P(FamilyTextsTest, TextsHaveTheTokensOfTransformers) {
  for (const Json& c : family()["texts"]) {
    SCOPED_TRACE(family()["name"].get<std::string>() + ": " + c["text"].dump());
    EXPECT_EQ(codec_->Encode(c["text"].get<std::string>(), false).value(), c["ids"].get<Ids>());
    EXPECT_EQ(codec_->Encode(c["text"].get<std::string>(), true).value(),
              c["ids_special"].get<Ids>());
    EXPECT_EQ(codec_->Decode(c["ids"].get<Ids>(), false).value(), c["decoded"]);
    EXPECT_EQ(codec_->Decode(c["ids"].get<Ids>(), true).value(), c["decoded_skip"]);
  }
}

TEST_P(FamilyTextsTest, TokensHaveTheTextOfTransformers) {
  for (const Json& c : family()["decode"]) {
    SCOPED_TRACE(family()["name"].get<std::string>() + ": " + c["ids"].dump());
    EXPECT_EQ(codec_->Decode(c["ids"].get<Ids>(), false).value(), c["text"]);
    EXPECT_EQ(codec_->Decode(c["ids"].get<Ids>(), true).value(), c["text_skip"]);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyTextsTest,
                         ::testing::Range<size_t>(0, Families().size()));

}  // namespace
}  // namespace baton
