#include "router/generation/codec_tokenizer.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "router/error.h"
#include "router/generation/utf8.h"
#include "tests/unit/router/generation/recorder.h"

namespace baton {
namespace {

std::shared_ptr<const Tokenizer> LoadTiny() {
  auto codec = TextCodec::Load(std::string(BATON_SOURCE_DIR) + "/deploy/models/tiny-kjv");
  EXPECT_TRUE(codec.ok()) << codec.status();
  return MakeTokenizer(*std::move(codec));
}

TEST(CodecTokenizerTest, StreamsWhatItDecodes) {
  const auto tokenizer = LoadTiny();
  const std::string text = "In the beginning \xE2\x82\xAC\xF0\x9F\x98\x80 God created";
  const auto ids = tokenizer->Encode(text, true);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ((*ids)[0], 0);
  const auto decoder = tokenizer->NewStreamDecoder(/*skip_special_tokens=*/true);
  std::string streamed;
  for (const int32_t id : *ids) {
    const auto piece = decoder->Push(id);
    ASSERT_TRUE(piece.ok());
    EXPECT_TRUE(IsValidUtf8(*piece));
    streamed += *piece;
  }
  streamed += *decoder->Flush();
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(*tokenizer->Decode(*ids, true), text);
}

TEST(CodecTokenizerTest, HasTheBytesOfEachToken) {
  const auto tokenizer = LoadTiny();
  const std::string text = " the Lord\xE2\x82\xAC";
  const std::vector<int32_t> ids = *tokenizer->Encode(text, false);
  std::string bytes;
  for (const int32_t id : ids) bytes += tokenizer->TokenBytes(id);
  EXPECT_EQ(bytes, text);
  EXPECT_EQ(tokenizer->TokenBytes(5), "<|end|>");
}

TEST(CodecTokenizerTest, RefusesUnknownIdsAsInvalid) {
  const auto tokenizer = LoadTiny();
  EXPECT_TRUE(absl::IsInvalidArgument(tokenizer->Decode({{99999}}, true).status()));
}

TEST(CodecTokenizerTest, PreparesAChatAsTheTemplateWritesIt) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.vocab_size = 4096;
  GenerationService service(std::move(options), LoadTiny(), &frontend);
  const ChatPrompt chat{.messages_json = R"([{"role":"user","content":" Hello! "}])"};
  const auto ids = service.Tokenize(chat, {}, "messages");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(*service.Detokenize(*ids, "tokens"),
            "<|begin_of_text|><|user|>\nHello!<|end|>\n<|assistant|>\n");
  EXPECT_EQ((*ids)[0], 0);
  EXPECT_NE((*ids)[1], 0);
}

}  // namespace
}  // namespace baton
