// Texts are tokenized in parts (rust/src/parts.rs): the tokens are those of the whole text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "router/text/text_codec.h"
#include "tests/unit/router/text/text_goldens.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

// tiny-kjv's, with merges of all that a wrong cut would keep apart.
Json MakeMergingTokenizer() {
  Json tokenizer = Json::parse(ReadWholeFile(std::string(kTinyKjv) + "/tokenizer.json"));
  Json& model = tokenizer["model"];
  int32_t id = 5000;
  const std::vector<std::string> symbols = {"(", ",", ".", "!", "?", ";", ":", "-", "\u0120",
                                            "\u010a", "\u010d", "'", "1", "e", "D", "\u0120LORD"};
  for (const std::string& left : symbols) {
    for (const std::string& right : symbols) {
      if (model["vocab"].contains(left + right)) continue;
      model["vocab"][left + right] = id++;
      model["merges"].push_back({left, right});
    }
  }
  return tokenizer;
}

Json MergingTokenizer() {
  static const Json tokenizer = MakeMergingTokenizer();
  return tokenizer;
}

std::unique_ptr<TextCodec> LoadJson(const Json& tokenizer) {
  TempModelDir dir;
  dir.Write("tokenizer.json", tokenizer.dump());
  dir.Write("tokenizer_config.json", "{}");
  return LoadOrFail(dir.path());
}

Json WithAddedToken(Json tokenizer, const std::string& content, bool normalized = false) {
  tokenizer["added_tokens"].push_back({{"id", 9000},
                                       {"content", content},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", normalized},
                                       {"special", false}});
  return tokenizer;
}

// The same tokenizer, which has to take each text as a whole: for all that it can know, this token
// lies across any space. No text of the tests has it.
std::unique_ptr<TextCodec> LoadWhole(const Json& tokenizer) {
  auto codec = LoadJson(WithAddedToken(tokenizer, "\x01 a \x01"));
  EXPECT_FALSE(codec->has_parts());
  return codec;
}

struct Kind {
  const char* name;
  std::function<void(Json& tokenizer)> change;
};

Json ByteLevel(bool add_prefix_space) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", true}};
}

const char kQwenPattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

const char kNemoPattern[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      {"Llama 3", [](Json&) {}},
      {"Qwen 2",
       [](Json& tokenizer) {
         tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = kQwenPattern;
         tokenizer["normalizer"] = {{"type", "NFC"}};
         tokenizer["post_processor"] = nullptr;
       }},
      {"Mistral Nemo",
       [](Json& tokenizer) {
         tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = kNemoPattern;
       }},
      {"GPT-2", [](Json& tokenizer) { tokenizer["pre_tokenizer"] = ByteLevel(false); }},
  };
  return kinds;
}

// Of these it is not known where a text can be cut.
const std::vector<Kind>& UncutKinds() {
  static const std::vector<Kind> kinds = {
      {"GPT-2 with a space before the text",
       [](Json& tokenizer) { tokenizer["pre_tokenizer"] = ByteLevel(true); }},
      {"lower case",
       [](Json& tokenizer) { tokenizer["normalizer"] = {{"type", "Lowercase"}}; }},
      {"spaces at the end go",
       [](Json& tokenizer) {
         tokenizer["normalizer"] = {
             {"type", "Strip"}, {"strip_left", false}, {"strip_right", true}};
       }},
      {"words across spaces",
       [](Json& tokenizer) {
         tokenizer["pre_tokenizer"]["pretokenizers"].erase(0);
         tokenizer["model"]["merges"].push_back({"e", "\u0120LORD"});
       }},
  };
  return kinds;
}

// What may stand at a cut, or look as if it could, and words of the vocabulary.
const std::vector<std::string>& Atoms() {
  static const std::vector<std::string> atoms = {
      " the", " LORD", " shepherd", " and", " of", " in", " unto", " David", " a", " I", "In",
      " beginning", "x", "zq", "'s", "'S", "'ll", "n't", "'", " '", ".", ",", ";", ":", "!", "?",
      "...", " .", " ,", "\"", "(", " (", ")", "-", "--", "_", "/", "\\", "<", ">", "|", "{", "@",
      " ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\v", "\x7f", "\x01", "1", "12",
      "1234", " 7", "<|user|>", "<|end|>", "<|end", "|>", "\u00e9", "e\u0301", "\u0301", " \u0301",
      "\u00a0", "\u2003", "\u2028", "\u3000", "\u200b", "\u017f", "\u212a", "\u037e", "\u1fef",
      "\u4e2d\u6587", "\U0001f600", "\u0627\u0644", "\ufb01", "\ufeff", "\u0130"};
  return atoms;
}

std::string RandomText(Random& random, size_t num_atoms) {
  std::string text;
  // Some texts are mostly words, so that runs of known ones come.
  const size_t words = random.Below(2) == 0 ? Atoms().size() : 14;
  for (size_t i = 0; i < num_atoms; ++i) {
    const size_t of = random.Below(8) == 0 ? Atoms().size() : words;
    text += Atoms()[random.Below(of)];
  }
  return text;
}

class TextPartsTest : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    Json tokenizer = MergingTokenizer();
    Kinds()[GetParam()].change(tokenizer);
    codec_ = LoadJson(tokenizer);
    whole_ = LoadWhole(tokenizer);
    ASSERT_NE(codec_, nullptr);
    ASSERT_NE(whole_, nullptr);
    ASSERT_TRUE(codec_->has_parts()) << Kinds()[GetParam()].name;
  }

  void ExpectSame(const std::string& text) {
    const bool special = text.size() % 2 == 0;
    ASSERT_EQ(codec_->Encode(text, special).value(), whole_->Encode(text, special).value())
        << Kinds()[GetParam()].name << ": " << Json(text).dump();
  }

  std::unique_ptr<TextCodec> codec_;
  std::unique_ptr<TextCodec> whole_;
};

TEST_P(TextPartsTest, RandomTextsHaveTheTokensOfTheWhole) {
  Random random(GetParam() + 1);
  for (int i = 0; i < 600 && !HasFatalFailure(); ++i) ExpectSame(RandomText(random, i % 40));
}

// The first chunk ends in the middle of what does not let it end anywhere.
TEST_P(TextPartsTest, WhateverAChunkEndsInHasTheTokensOfTheWhole) {
  Random random(GetParam() + 55);
  std::string words;
  while (words.size() < (8 << 10) - 12) words += " the";
  for (const std::string spaces : {"      ", " \n    ", "  \n \n ", "\r\n  \t ", " ,  , "}) {
    for (size_t shift = 0; shift < 12 && !HasFatalFailure(); ++shift) {
      ExpectSame(std::string(shift, 'x') + words + spaces + spaces + "the LORD");
    }
  }
  for (int i = 0; i < 60 && !HasFatalFailure(); ++i) ExpectSame(words + RandomText(random, 12));
}

TEST_P(TextPartsTest, AnyTwoThatMayStandAtACutHaveTheTokensOfTheWhole) {
  for (const std::string& left : Atoms()) {
    for (const std::string& right : Atoms()) {
      ExpectSame("LORD" + left + right + " the");
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(TextPartsTest, LongTextsHaveTheTokensOfTheWhole) {
  Random random(GetParam() + 77);
  for (const size_t num_atoms : {4000, 12000}) ExpectSame(RandomText(random, num_atoms));
  std::string words;
  for (int i = 0; i < 4000; ++i) words += i % 9 == 0 ? " Zyxw" : " the LORD,";
  ExpectSame(words);
  ExpectSame(std::string(40000, 'a') + " the");
  const int64_t hits = codec_->cache_info().hits;
  ExpectSame(words);
  EXPECT_GT(codec_->cache_info().hits, hits);
}

INSTANTIATE_TEST_SUITE_P(Kinds, TextPartsTest, ::testing::Range<size_t>(0, Kinds().size()));

TEST(TextCutsTest, OnlyATokenizerThatIsKnownIsGivenParts) {
  for (const Kind& kind : UncutKinds()) {
    Json tokenizer = MergingTokenizer();
    kind.change(tokenizer);
    EXPECT_FALSE(LoadJson(tokenizer)->has_parts()) << kind.name;
  }
}

void ExpectSameAsWhole(const TextCodec& codec, const Json& tokenizer, const std::string& text) {
  EXPECT_EQ(codec.Encode(text, true).value(), LoadWhole(tokenizer)->Encode(text, true).value())
      << Json(text).dump();
}

int64_t CountOf(const TextCodec& codec, const std::string& content, const std::string& text) {
  const std::vector<int32_t> token = codec.Encode(content, false).value();
  EXPECT_EQ(token.size(), 1u) << content;
  return std::ranges::count(codec.Encode(text, false).value(), token.front());
}

TEST(TextCutsTest, AnAddedTokenIsFoundWhereverATextCouldBeCut) {
  const std::string text = " of the LORD is the LORD, the LORD. the LORD: a of the unto the the";
  for (const std::string content : {"LORD is", "D, t", "D.", " the LORD", ": a"}) {
    const Json tokenizer = WithAddedToken(MergingTokenizer(), content);
    const auto codec = LoadJson(tokenizer);
    EXPECT_GT(CountOf(*codec, content, text), 0) << content;
    ExpectSameAsWhole(*codec, tokenizer, text);
  }
}

// Between cuts, or as all of a part: it does not keep a text from being cut.
TEST(TextCutsTest, AnAddedTokenIsFoundInAPart) {
  const std::string text = " of the LORD is. the LORD, <x> the<x> the. unto the <x>, the of, of";
  for (const std::string content : {"<x>", "he", ",", "LOR"}) {
    const Json tokenizer = WithAddedToken(MergingTokenizer(), content);
    const auto codec = LoadJson(tokenizer);
    EXPECT_TRUE(codec->has_parts()) << content;
    EXPECT_GT(CountOf(*codec, content, text), 0) << content;
    ExpectSameAsWhole(*codec, tokenizer, text);
  }
}

// U+037E becomes a semicolon, so that the token is found where a text could be cut.
TEST(TextCutsTest, AnAddedTokenIsFoundInTheNormalizedText) {
  Json tokenizer = WithAddedToken(MergingTokenizer(), "D\u037e", /*normalized=*/true);
  tokenizer["normalizer"] = {{"type", "NFC"}};
  const std::string text = " of the LORD; the unto the the";
  const auto codec = LoadJson(tokenizer);
  EXPECT_EQ(CountOf(*codec, "D;", text), 1);
  ExpectSameAsWhole(*codec, tokenizer, text);
}

TEST(TextCutsTest, AnAddedTokenThatTakesSpacesTakesThem) {
  for (const char* side : {"lstrip", "rstrip", "single_word"}) {
    Json tokenizer = WithAddedToken(MergingTokenizer(), "<x>");
    tokenizer["added_tokens"].back()[side] = true;
    ExpectSameAsWhole(*LoadJson(tokenizer), tokenizer, "the LORD <x> is of the unto");
  }
}

TEST(TextCutsTest, APatternThatTakesAMarkWithAWordSeesThemTogether) {
  Json tokenizer = MergingTokenizer();
  tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] =
      " ?\\p{L}+,?|[^\\p{L} ]+| +";
  ExpectSameAsWhole(*LoadJson(tokenizer), tokenizer, "x the LORD, is of the LORD, unto");
}

TEST(TextCutsTest, ATemplateThatSaysATextTwiceSaysAllOfIt) {
  Json tokenizer = MergingTokenizer();
  Json& single = tokenizer["post_processor"]["processors"][1]["single"];
  single.push_back(Json(single[1]));
  const auto codec = LoadJson(tokenizer);
  ExpectSameAsWhole(*codec, tokenizer, "x the LORD, is of the unto");
  EXPECT_EQ(codec->Encode("a", true).value().size(), 3u);
}

// No part of it comes twice; all but the numbers is quickly tokenized.
std::string NumberedText(int from, int count) {
  std::string text;
  for (int i = from; i < from + count; ++i) {
    text += " " + std::to_string(i);
    for (int word = 0; word < 40; ++word) text += " the";
  }
  return text;
}

TEST(TextCacheTest, TextsThatBeginAlikeShareTheirFirstChunks) {
  const auto codec = LoadJson(MergingTokenizer());
  const std::string prefix = NumberedText(0, 500);
  ASSERT_TRUE(codec->Encode(prefix + NumberedText(100000, 200), false).ok());
  const TextCacheInfo first = codec->cache_info();
  EXPECT_EQ(first.hits, 0);
  ASSERT_TRUE(codec->Encode(prefix + NumberedText(200000, 200), false).ok());
  const TextCacheInfo second = codec->cache_info();
  EXPECT_GE(second.hits, static_cast<int64_t>(prefix.size() / 8300));
  EXPECT_LT(second.misses - first.misses, first.misses);
}

TEST(TextCacheTest, ShortTextsAreNotKept) {
  const auto codec = LoadJson(MergingTokenizer());
  ASSERT_TRUE(codec->Encode(NumberedText(0, 45), false).ok());
  EXPECT_EQ(codec->cache_info().misses, 0);
  EXPECT_EQ(codec->cache_info().bytes, 0);
}

// Its tokens are those of another text with fewer characters.
TEST(TextCacheTest, ATextThatItsTokensDoNotSpellIsNotKept) {
  Json tokenizer = MergingTokenizer();
  tokenizer["normalizer"] = {{"type", "NFC"}};
  const auto codec = LoadJson(tokenizer);
  ASSERT_TRUE(codec->has_parts());
  const std::string spelled = NumberedText(0, 100);
  const std::string accents = spelled + " e\u0301" + spelled;
  for (int i = 0; i < 2; ++i) ExpectSameAsWhole(*codec, tokenizer, accents);
  const TextCacheInfo info = codec->cache_info();
  EXPECT_GT(info.hits, 0);                // Of the chunks beside that one,
  EXPECT_EQ(info.misses, info.hits + 2);  // which was looked for twice.
}

TEST(TextCacheTest, ATextWithAddedTokensIsKept) {
  for (const char* content : {"<x>", "LOR", "the"}) {
    const Json tokenizer = WithAddedToken(MergingTokenizer(), content);
    const auto codec = LoadJson(tokenizer);
    const std::string text = NumberedText(0, 60) + content + NumberedText(60, 60);
    for (int i = 0; i < 2; ++i) ExpectSameAsWhole(*codec, tokenizer, text);
    EXPECT_EQ(codec->cache_info().hits, codec->cache_info().misses) << content;
  }
}

TEST(TextCacheTest, WhatIsNotAskedForAgainGoesAndWhatIsStays) {
  constexpr int64_t kMaxBytes = int64_t{12} << 20;
  const auto codec = LoadJson(MergingTokenizer());
  const std::string kept = NumberedText(0, 100);
  ASSERT_TRUE(codec->Encode(kept, false).ok());
  int64_t most = 0;
  for (int i = 1; i <= 60; ++i) {
    ASSERT_TRUE(codec->Encode(NumberedText(i * 100000, 2000), false).ok());
    const int64_t hits = codec->cache_info().hits;
    ASSERT_TRUE(codec->Encode(kept, false).ok());
    ASSERT_GT(codec->cache_info().hits, hits) << i;
    most = std::max(most, codec->cache_info().bytes);
    ASSERT_LE(most, kMaxBytes);
  }
  EXPECT_GT(most, kMaxBytes / 2);
  const int64_t hits = codec->cache_info().hits;
  ASSERT_TRUE(codec->Encode(NumberedText(100000, 2000), false).ok());
  EXPECT_EQ(codec->cache_info().hits, hits);
}

}  // namespace
}  // namespace baton
