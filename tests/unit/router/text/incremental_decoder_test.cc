#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/router/text/text_goldens.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<int32_t>;

bool IsUtf8(const std::string& text) {
  nlohmann::json quoted = text;
  return quoted.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) ==
         quoted.dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
}

// The pieces of all pushes, then that of the flush.
std::vector<std::string> Pieces(const TextCodec& codec, const Ids& ids, bool skip_special) {
  IncrementalDecoder decoder = codec.NewDecoder(skip_special);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(decoder.Push(id).value());
  pieces.push_back(decoder.Flush().value());
  for (const std::string& piece : pieces) EXPECT_TRUE(IsUtf8(piece));
  return pieces;
}

std::string Joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

class IncrementalDecoderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    codec_ = LoadOrFail(kTinyKjv);
    ASSERT_NE(codec_, nullptr);
    for (int32_t id = 6; id < 262; ++id) {
      const std::string bytes = codec_->TokenToBytesOrText(id).value().bytes;
      ASSERT_EQ(bytes.size(), 1u);
      byte_id_[static_cast<unsigned char>(bytes[0])] = id;
    }
  }

  Ids BytesAsTokens(const std::string& bytes) const {
    Ids ids;
    for (const char byte : bytes) ids.push_back(byte_id_[static_cast<unsigned char>(byte)]);
    return ids;
  }

  std::unique_ptr<TextCodec> codec_;
  int32_t byte_id_[256] = {};
};

TEST_F(IncrementalDecoderTest, PiecesOfRandomIdsJoinToTheWholeText) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    Ids ids(random() % 60);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % (i % 2 == 0 ? 4096 : 300));
    for (const bool skip : {false, true}) {
      EXPECT_EQ(Joined(Pieces(*codec_, ids, skip)), codec_->Decode(ids, skip).value());
    }
  }
}

TEST_F(IncrementalDecoderTest, PiecesOfRandomBytesJoinToTheWholeText) {
  std::mt19937 random(2);
  const std::string interesting =
      "\x80\xbf\xc2\xdf\xe0\xa0\xed\x9f\xef\xf0\x90\xf4\x8f\xf5\xff"
      "a";
  for (int i = 0; i < 500; ++i) {
    std::string bytes;
    for (size_t j = random() % 40; j > 0; --j) {
      bytes +=
          i % 2 == 0 ? static_cast<char>(random()) : interesting[random() % interesting.size()];
    }
    const Ids ids = BytesAsTokens(bytes);
    EXPECT_EQ(Joined(Pieces(*codec_, ids, true)), codec_->Decode(ids, true).value());
  }
}

TEST_F(IncrementalDecoderTest, CharacterComesWithItsLastByte) {
  EXPECT_THAT(Pieces(*codec_, BytesAsTokens("a\U0001F600\u00e9"), true),
              ElementsAre("a", "", "", "", "\U0001F600", "", "\u00e9", ""));
}

TEST_F(IncrementalDecoderTest, WrongBytesAreReplacedAsSoonAsTheyCannotBecomeACharacter) {
  EXPECT_THAT(Pieces(*codec_, BytesAsTokens("\x80\xe2\x82z\xf0\x9f"), true),
              ElementsAre("\uFFFD", "", "", "\uFFFDz", "", "", "\uFFFD"));
}

TEST_F(IncrementalDecoderTest, SkippedTokensDoNotSplitACharacter) {
  Ids ids = BytesAsTokens("\u20ac");
  ids.insert(ids.begin() + 1, 2);
  EXPECT_THAT(Pieces(*codec_, ids, true), ElementsAre("", "", "", "\u20ac", ""));
  EXPECT_EQ(Joined(Pieces(*codec_, ids, false)), "\uFFFD<|user|>\uFFFD\uFFFD");
}

TEST_F(IncrementalDecoderTest, WrongIdIsRefusedAndChangesNothing) {
  IncrementalDecoder decoder = codec_->NewDecoder(true);
  const Ids euro = BytesAsTokens("\u20ac");
  EXPECT_EQ(decoder.Push(euro[0]).value(), "");
  for (const int32_t id : {-1, 4096, 1 << 30}) {
    EXPECT_EQ(decoder.Push(id).status().code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_EQ(decoder.Push(euro[1]).value(), "");
  EXPECT_EQ(decoder.Push(euro[2]).value(), "\u20ac");
}

TEST_F(IncrementalDecoderTest, IsAsNewAfterAFlush) {
  IncrementalDecoder decoder = codec_->NewDecoder(true);
  EXPECT_EQ(decoder.Push(byte_id_[0xE2]).value(), "");
  EXPECT_EQ(decoder.Flush().value(), "\uFFFD");
  EXPECT_EQ(decoder.Flush().value(), "");
  EXPECT_EQ(decoder.Push(byte_id_['a']).value(), "a");
}

TEST_F(IncrementalDecoderTest, OutlivesItsCodec) {
  IncrementalDecoder decoder = codec_->NewDecoder(true);
  codec_.reset();
  EXPECT_EQ(decoder.Push(byte_id_['a']).value(), "a");
  IncrementalDecoder moved = std::move(decoder);
  EXPECT_EQ(moved.Push(byte_id_['b']).value(), "b");
}

// The other kinds of tokenizers, whose tokens change their text with their neighbours.
class OtherTokenizersTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const auto& kind = TextGoldens()["other_tokenizers"][GetParam()];
    name_ = kind["name"];
    dir_.Write("tokenizer.json", kind["tokenizer"].dump());
    dir_.Write("tokenizer_config.json", kind["config"].dump());
    codec_ = LoadOrFail(dir_.path());
    ASSERT_NE(codec_, nullptr);
  }

  std::string name_;
  TempModelDir dir_;
  std::unique_ptr<TextCodec> codec_;
};

TEST_P(OtherTokenizersTest, PiecesOfTextsJoinToTheWholeText) {
  for (const auto& c : TextGoldens()["other_tokenizers"][GetParam()]["texts"]) {
    for (const bool skip : {false, true}) {
      EXPECT_EQ(Joined(Pieces(*codec_, c["ids"], skip)), c[skip ? "decoded_skip" : "decoded"])
          << c["text"];
    }
  }
}

TEST_P(OtherTokenizersTest, PiecesOfRandomIdsJoinToTheWholeText) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    Ids ids(random() % 80);
    for (int32_t& id : ids) {
      do {
        id = static_cast<int32_t>(random() % codec_->vocab_size());
      } while (codec_->TokenToBytesOrText(id).value().text == "\uFFFD");
    }
    for (const bool skip : {false, true}) {
      EXPECT_EQ(Joined(Pieces(*codec_, ids, skip)), codec_->Decode(ids, skip).value());
    }
  }
}

TEST_P(OtherTokenizersTest, HoldsBackAtMost32Tokens) {
  std::mt19937 random(4);
  for (int i = 0; i < 50; ++i) {
    Ids ids(200);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % codec_->vocab_size());
    const std::vector<std::string> pieces = Pieces(*codec_, ids, false);
    int num_held = 0;
    for (const std::string& piece : pieces) {
      num_held = piece.empty() ? num_held + 1 : 0;
      EXPECT_LT(num_held, 33);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, OtherTokenizersTest, ::testing::Range(0, 3));

TEST(ByteFallbackTest, CharactersOfSeveralByteTokensComeWhole) {
  const auto& kind = TextGoldens()["other_tokenizers"][0];
  TempModelDir dir;
  dir.Write("tokenizer.json", kind["tokenizer"].dump());
  const auto codec = LoadOrFail(dir.path());
  ASSERT_NE(codec, nullptr);
  const auto byte = [](int value) { return 3 + value; };
  EXPECT_THAT(Pieces(*codec, {byte(0xE2), byte(0x82), byte(0xAC), byte('!')}, true),
              ElementsAre("", "", "\u20ac", "!", ""));
  EXPECT_EQ(codec->TokenToBytesOrText(byte(0xE2)).value().bytes, "\xE2");
  // One wrong byte after a whole character: what was given out stays.
  EXPECT_EQ(
      Joined(Pieces(*codec, {byte(0xE2), byte(0x82), byte(0xAC), byte(0x80), byte('a')}, true)),
      "\u20ac\uFFFD\uFFFD");
}

}  // namespace
}  // namespace baton
