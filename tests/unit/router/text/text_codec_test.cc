#include "router/text/text_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/router/text/text_goldens.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

class TextCodecTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { codec_ = LoadOrFail(kTinyKjv).release(); }
  static void TearDownTestSuite() { delete codec_; }
  void SetUp() override { ASSERT_NE(codec_, nullptr); }

  static TextCodec* codec_;
};

TextCodec* TextCodecTest::codec_ = nullptr;

TEST_F(TextCodecTest, EncodesAndDecodesAsTransformers) {
  const auto& cases = TextGoldens()["encode"];
  ASSERT_GE(cases.size(), 60u);
  for (const auto& c : cases) {
    const std::string text = c["text"];
    SCOPED_TRACE(text);
    EXPECT_EQ(codec_->Encode(text, false).value(), c["ids"].get<Ids>());
    EXPECT_EQ(codec_->Encode(text, true).value(), c["ids_special"].get<Ids>());
    const Ids ids = c["ids"];
    EXPECT_EQ(codec_->Decode(ids, false).value(), c["decoded"].get<std::string>());
    EXPECT_EQ(codec_->Decode(ids, true).value(), c["decoded_skip"].get<std::string>());
  }
}

TEST_F(TextCodecTest, EncodesLongTextsAsTransformers) {
  for (const auto& c : TextGoldens()["encode_long"]) {
    std::string text;
    for (int i = 0; i < c["times"].get<int>(); ++i) text += c["text"].get<std::string>();
    const Ids ids = codec_->Encode(text, false).value();
    uint32_t checksum = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      checksum += static_cast<uint32_t>(i + 1) * static_cast<uint32_t>(ids[i]);
    }
    EXPECT_EQ(ids.size(), c["num_ids"].get<size_t>()) << c["text"];
    EXPECT_EQ(checksum, c["checksum"].get<uint32_t>()) << c["text"];
  }
}

TEST_F(TextCodecTest, DecodesRandomIdsAsTransformers) {
  for (const auto& c : TextGoldens()["decode"]) {
    const Ids ids = c["ids"];
    EXPECT_EQ(codec_->Decode(ids, false).value(), c["text"].get<std::string>()) << c["ids"];
    EXPECT_EQ(codec_->Decode(ids, true).value(), c["text_skip"].get<std::string>()) << c["ids"];
  }
}

TEST_F(TextCodecTest, OtherKindsOfTokenizersWorkAsInTransformers) {
  for (const auto& kind : TextGoldens()["other_tokenizers"]) {
    SCOPED_TRACE(kind["name"].get<std::string>());
    TempModelDir dir;
    dir.Write("tokenizer.json", kind["tokenizer"].dump());
    dir.Write("tokenizer_config.json", kind["config"].dump());
    const auto codec = LoadOrFail(dir.path());
    ASSERT_NE(codec, nullptr);
    for (const auto& c : kind["texts"]) {
      EXPECT_EQ(codec->Encode(c["text"].get<std::string>(), false).value(), c["ids"].get<Ids>());
      EXPECT_EQ(codec->Decode(c["ids"].get<Ids>(), false).value(), c["decoded"]) << c["text"];
      EXPECT_EQ(codec->Decode(c["ids"].get<Ids>(), true).value(), c["decoded_skip"]) << c["text"];
    }
    for (const auto& c : kind["decode"]) {
      EXPECT_EQ(codec->Decode(c["ids"].get<Ids>(), false).value(), c["text"]) << c["ids"];
      EXPECT_EQ(codec->Decode(c["ids"].get<Ids>(), true).value(), c["text_skip"]) << c["ids"];
    }
  }
}

// As transformers makes the pre-tokenizers of these classes anew.
TEST_F(TextCodecTest, TheConfigurationOfSomeClassesSaysWhetherASpaceIsPutBeforeATokenizersText) {
  const std::string tokenizer = R"({"version": "1.0", "added_tokens": [], "pre_tokenizer":
      {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
      "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
      "use_regex": true}, "model": {"type": "BPE", "vocab": {"a": 0, "\u0120": 1}, "merges": []}})";
  const auto ids = [&](const std::string& config) {
    TempModelDir dir;
    dir.Write("tokenizer.json", tokenizer);
    dir.Write("tokenizer_config.json", config);
    return LoadOrFail(dir.path())->Encode("a", false).value();
  };
  EXPECT_EQ(ids(R"({"tokenizer_class": "GPT2Tokenizer"})"), (Ids{0}));
  EXPECT_EQ(ids(R"({"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": true})"),
            (Ids{1, 0}));
  EXPECT_EQ(ids(R"({"tokenizer_class": "GPTNeoXTokenizer", "add_prefix_space": false})"),
            (Ids{0}));
  EXPECT_EQ(ids(R"({"tokenizer_class": "PreTrainedTokenizerFast"})"), (Ids{1, 0}));
}

// As most of OPT's are.
TEST_F(TextCodecTest, AFolderWithVocabularyAndMergesAloneIsReadAsTransformersDoes) {
  const auto& golden = TextGoldens()["vocab_and_merges"];
  for (const auto& c : golden["cases"]) {
    SCOPED_TRACE(c["config"].dump());
    TempModelDir dir;
    dir.Write("vocab.json", golden["vocab"].dump());
    dir.Write("merges.txt", golden["merges"].get<std::string>());
    dir.Write("tokenizer_config.json", c["config"].dump());
    dir.Write("config.json", R"({"model_type": "opt"})");
    const auto codec = LoadOrFail(dir.path());
    ASSERT_NE(codec, nullptr);
    EXPECT_EQ(codec->bos_id(), 2);
    for (const auto& text : c["texts"]) {
      EXPECT_EQ(codec->Encode(text["text"].get<std::string>(), true).value(),
                text["ids"].get<Ids>());
      EXPECT_EQ(codec->Decode(text["ids"].get<Ids>(), true).value(), text["decoded"]);
    }
  }
}

TEST_F(TextCodecTest, VocabularyAndMergesOfNoKnownTokenizerAreNone) {
  const auto& golden = TextGoldens()["vocab_and_merges"];
  TempModelDir dir;
  dir.Write("vocab.json", golden["vocab"].dump());
  dir.Write("merges.txt", golden["merges"].get<std::string>());
  EXPECT_EQ(TextCodec::Load(dir.path()).status().code(), absl::StatusCode::kNotFound);
  dir.Write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
  dir.Write("merges.txt", "#version: 0.2\nh e l\n");
  EXPECT_THAT(std::string(TextCodec::Load(dir.path()).status().message()),
              testing::HasSubstr("merges.txt: line 2"));
  dir.Write("merges.txt", "h e\n");
  dir.Write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer",
                                         "add_bos_token": true, "bos_token": "<none>"})");
  EXPECT_THAT(std::string(TextCodec::Load(dir.path()).status().message()),
              testing::HasSubstr("bos_token must be a token of vocab.json"));
}

TEST_F(TextCodecTest, KnowsVocabularyAndSpecialTokens) {
  EXPECT_EQ(codec_->vocab_size(), 4096);
  EXPECT_EQ(codec_->bos_id(), 0);
  EXPECT_EQ(codec_->eos_id(), 1);
  EXPECT_TRUE(codec_->has_chat_template());
}

TEST_F(TextCodecTest, NoTokenIsLongerThanItsBound) {
  const int32_t bound = codec_->max_token_bytes();
  size_t longest = 0;
  for (int32_t id = 0; id < codec_->vocab_size(); ++id) {
    longest = std::max(longest, codec_->TokenToBytesOrText(id).value().bytes.size());
  }
  EXPECT_EQ(static_cast<size_t>(bound), longest);
  EXPECT_GT(bound, 4);
}

using Json = nlohmann::ordered_json;

std::unique_ptr<TextCodec> LoadTokenizer(const Json& tokenizer) {
  TempModelDir dir;
  dir.Write("tokenizer.json", tokenizer.dump());
  return LoadOrFail(dir.path());
}

// A token of eight of what stands for a space: a text may have it too, as three bytes each.
Json WithWideSpace(Json tokenizer) {
  std::string half = "\u2581";
  for (int i = 0; i < 3; ++i) {
    tokenizer["model"]["vocab"][half + half] = 1000 + i;
    tokenizer["model"]["merges"].push_back({half, half});
    half += half;
  }
  return tokenizer;
}

TEST(TokenBytesTest, NoTextHasFewerTokensThanItsBytesAllow) {
  int num_bounded = 0;
  for (const auto& kind : TextGoldens()["other_tokenizers"]) {
    const bool is_bpe = kind["tokenizer"]["model"]["type"] == "BPE";
    const auto codec =
        LoadTokenizer(is_bpe ? WithWideSpace(kind["tokenizer"]) : Json(kind["tokenizer"]));
    ASSERT_NE(codec, nullptr);
    const auto bound = static_cast<size_t>(codec->max_token_bytes());
    num_bounded += bound > 0;
    for (const std::string piece : {"\u2581", " ", "\u4f60", "a", "<s>", "hello"}) {
      std::string text;
      for (int i = 0; i < 200; ++i) text += piece;
      const size_t num_tokens = codec->Encode(text, false).value().size();
      if (bound > 0) EXPECT_LE(text.size(), bound * num_tokens) << kind["name"] << piece;
    }
  }
  EXPECT_EQ(num_bounded, 2);
}

TEST(TokenBytesTest, ATokenizerThatMayDropTextHasNoBound) {
  const Json whole = Json::parse(ReadWholeFile(std::string(kTinyKjv) + "/tokenizer.json"));
  EXPECT_GT(LoadTokenizer(whole)->max_token_bytes(), 0);
  Json empty_marks = whole;  // As GPT-2's.
  empty_marks["model"]["continuing_subword_prefix"] = "";
  empty_marks["model"]["end_of_word_suffix"] = "";
  EXPECT_GT(LoadTokenizer(empty_marks)->max_token_bytes(), 0);
  Json swallows = whole;
  swallows["added_tokens"][0]["rstrip"] = true;
  EXPECT_EQ(LoadTokenizer(swallows)->max_token_bytes(), 0);
  Json drops = whole;
  drops["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  EXPECT_EQ(LoadTokenizer(drops)->max_token_bytes(), 0);
  Json splits = whole;
  splits["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "WhitespaceSplit"}}, whole["pre_tokenizer"]["pretokenizers"][1]}}};
  EXPECT_EQ(LoadTokenizer(splits)->max_token_bytes(), 0);
  Json lacks = whole;  // No merge has the byte 0xFF, which no UTF-8 has.
  lacks["model"]["vocab"].erase("\u00ff");
  EXPECT_EQ(LoadTokenizer(lacks)->max_token_bytes(), 0);
  Json plain = whole;  // "\u00e9" is a byte to the decoder, and two of the text.
  plain["pre_tokenizer"] = nullptr;
  EXPECT_EQ(LoadTokenizer(plain)->max_token_bytes(), 0);
}

TEST_F(TextCodecTest, RefusesIdsOutsideOfTheVocabulary) {
  for (const int32_t id : {-1, 4096, 1 << 30, std::numeric_limits<int32_t>::min(),
                           std::numeric_limits<int32_t>::max()}) {
    const auto text = codec_->Decode(Ids{70, id, 71}, false);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(text.status().message()), HasSubstr(std::to_string(id)));
    EXPECT_EQ(codec_->TokenToBytesOrText(id).status().code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_FALSE(codec_->Decode(Ids(100000, 4096), true).ok());
}

TEST_F(TextCodecTest, RefusesTextThatIsNotUtf8) {
  for (const std::string text : {"\xff", "abc\x80", "\xed\xa0\x80", "\xc3", "\xf5\x80\x80\x80"}) {
    EXPECT_EQ(codec_->Encode(text, true).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(std::string(codec_->Encode("abc\x80", true).status().message()), HasSubstr("byte 3"));
}

TEST_F(TextCodecTest, TokensJoinToTheBytesOfTheText) {
  const std::string text = "caf\u00e9 \U0001F600 \u4f60 and the <|user|>\n";
  std::string bytes;
  const Ids ids = codec_->Encode(text, false).value();
  for (const int32_t id : ids) bytes += codec_->TokenToBytesOrText(id).value().bytes;
  EXPECT_EQ(bytes, text);
}

TEST_F(TextCodecTest, TokensOfEqualTextHaveTheirOwnBytes) {
  std::set<std::string> bytes;
  int num_halves = 0;
  for (int32_t id = 6; id < 262; ++id) {
    const TokenPiece piece = codec_->TokenToBytesOrText(id).value();
    EXPECT_FALSE(piece.special);
    EXPECT_TRUE(bytes.insert(piece.bytes).second) << id;
    num_halves += piece.text == "\uFFFD";
  }
  EXPECT_EQ(num_halves, 128);
}

TEST_F(TextCodecTest, SpecialTokensAreMarked) {
  const TokenPiece piece = codec_->TokenToBytesOrText(2).value();
  EXPECT_EQ(piece.text, "<|user|>");
  EXPECT_EQ(piece.bytes, "<|user|>");
  EXPECT_TRUE(piece.special);
}

// A quadratic step anywhere would take hours here and end at the test's time limit.
TEST_F(TextCodecTest, EncodesLongRunsWithoutHanging) {
  for (const std::string unit : {"a", " ", "\n", " \n", "!", "1", "'", "\U0001F600", "<|",
                                 "<|end|>", "e\u0301", "\r\n\t "}) {
    std::string text;
    while (text.size() < (size_t{256} << 10)) text += unit;
    const auto ids = codec_->Encode(text, false);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(codec_->Decode(*ids, false).value(), text);
  }
}

TEST_F(TextCodecTest, PatternThatNeedsTooManyStepsIsAnError) {
  nlohmann::json tokenizer =
      nlohmann::json::parse(ReadWholeFile(std::string(kTinyKjv) + "/tokenizer.json"));
  tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a+)+$";
  TempModelDir dir;
  dir.Write("tokenizer.json", tokenizer.dump());
  const auto codec = LoadOrFail(dir.path());
  ASSERT_NE(codec, nullptr);
  EXPECT_EQ(codec->Encode(std::string(5000, 'a') + "!", false).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(codec->Encode("aaa", false).ok());
}

TEST_F(TextCodecTest, ServesManyThreadsAtOnce) {
  const std::string text = "In the beginning God created the heaven and the earth.";
  const Ids expected = codec_->Encode(text, true).value();
  std::vector<int> num_wrong(8, 0);
  {
    std::vector<std::jthread> threads;
    for (int& wrong : num_wrong) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) {
          const auto ids = codec_->Encode(text, true);
          const auto back = codec_->Decode(expected, true);
          const auto chat = codec_->ApplyChatTemplate(R"([{"role":"user","content":"x"}])", {});
          wrong += !ids.ok() || *ids != expected || !back.ok() || *back != text || !chat.ok() ||
                   *chat != "<|begin_of_text|><|user|>\nx<|end|>\n<|assistant|>\n";
        }
      });
    }
  }
  EXPECT_THAT(num_wrong, ::testing::Each(0));
}

}  // namespace
}  // namespace baton
