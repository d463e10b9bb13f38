#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/router/text/text_goldens.h"

namespace baton {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const char kOneMessage[] = R"([{"role":"user","content":"x"}])";

absl::Status LoadError(const TempModelDir& dir) { return TextCodec::Load(dir.path()).status(); }

std::string Message(const absl::Status& status) { return std::string(status.message()); }

json TinyTokenizer() {
  return json::parse(ReadWholeFile(std::string(kTinyKjv) + "/tokenizer.json"));
}

TEST(TextLoadTest, FolderWithoutATokenizerIsNotFound) {
  TempModelDir dir;
  dir.Write("config.json", "{}");
  EXPECT_EQ(LoadError(dir).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(TextCodec::Load(dir.path() + "/missing").status().code(), absl::StatusCode::kNotFound);
}

TEST(TextLoadTest, BrokenTokenizerFilesAreNamedWithTheirDefect) {
  const std::string whole = ReadWholeFile(std::string(kTinyKjv) + "/tokenizer.json");
  std::vector<std::string> broken = {"",
                                     "{",
                                     "null",
                                     "[]",
                                     "{}",
                                     "\xff\xfe",
                                     "{\"version\":\"9\"}",
                                     whole.substr(0, whole.size() / 2),
                                     std::string(100, '\0'),
                                     std::string(100000, '['),
                                     std::string(100000, '{')};
  const auto change = [&](const std::string& pointer, const json& value) {
    json tokenizer = TinyTokenizer();
    tokenizer[json::json_pointer(pointer)] = value;
    broken.push_back(tokenizer.dump());
  };
  change("/model/type", "Magic");
  change("/model/vocab", json::array());
  change("/model/vocab", json::object());
  change("/model/vocab/a", -1);
  change("/model/vocab/a", 4294967295u);
  change("/model/vocab/a", 99999999999);
  change("/model/vocab/a", 1.5);
  change("/model/merges", json::array({"no such merge"}));
  change("/model/merges", json::array({json::array({"a"})}));
  change("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(((");
  change("/pre_tokenizer/pretokenizers/0/type", "Unknown");
  change("/decoder/type", "Unknown");
  change("/post_processor", 7);
  change("/added_tokens", "none");
  for (const std::string& content : broken) {
    TempModelDir dir;
    dir.Write("tokenizer.json", content);
    const absl::Status status = LoadError(dir);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << content.substr(0, 80);
    EXPECT_THAT(Message(status), AllOf(HasSubstr("tokenizer.json"), Not(HasSubstr(dir.path()))));
  }
}

TEST(TextLoadTest, BrokenConfigsAreNamedWithFileFieldAndDefect) {
  const struct {
    const char* config;
    const char* expected;
  } cases[] = {
      {"{", "tokenizer_config.json: is not valid JSON"},
      {"[]", "tokenizer_config.json: must hold a JSON object, not an array"},
      {R"({"bos_token": 42})", "tokenizer_config.json: bos_token must be a string"},
      {R"({"eos_token": {"text": "x"}})", "tokenizer_config.json: eos_token must be"},
      {R"({"extra_special_tokens": 1})", "extra_special_tokens must be an array"},
      {R"({"additional_special_tokens": ["a", 1]})", "additional_special_tokens[1] must be"},
      {R"({"added_tokens_decoder": []})", "added_tokens_decoder must be an object"},
      {R"({"added_tokens_decoder": {"x": {"content": "a"}}})", "the key is not a token id"},
      {R"({"added_tokens_decoder": {"7": "a"}})", "added_tokens_decoder[\"7\"] must be an object"},
      {R"({"split_special_tokens": "yes"})", "split_special_tokens must be true or false"},
      {R"({"chat_template": 5})", "chat_template must be a string or an array"},
      {R"({"chat_template": [{"name": "default"}]})", "chat_template[0] must have"},
      {R"({"chat_template": "{% if %}"})", "tokenizer_config.json: chat template: syntax error"},
      {R"({"chat_template": "{{ 'abc"})", "tokenizer_config.json: chat template: syntax error"},
      {R"({"chat_template": "{% include 'x' %}"})", "cannot load another template"},
  };
  for (const auto& c : cases) {
    TempModelDir dir;
    dir.WriteTinyKjv(c.config);
    const absl::Status status = LoadError(dir);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.config;
    EXPECT_THAT(Message(status), HasSubstr(c.expected));
  }
}

TEST(TextLoadTest, BrokenTemplateFilesAreNamed) {
  TempModelDir dir;
  dir.WriteTinyKjv("{}");
  dir.Write("chat_template.jinja", "line\n{% for %}");
  EXPECT_THAT(Message(LoadError(dir)),
              AllOf(HasSubstr("chat_template.jinja: chat template"), HasSubstr("line 2")));
  dir.Write("chat_template.jinja", "\xff");
  EXPECT_THAT(Message(LoadError(dir)), HasSubstr("chat_template.jinja: is not UTF-8"));
  dir.Write("chat_template.jinja", std::string(300 << 10, 'x'));
  EXPECT_THAT(Message(LoadError(dir)), HasSubstr("chat_template.jinja: is larger than"));
}

TEST(TextLoadTest, FilesThatAreFoldersAreRefused) {
  TempModelDir dir;
  dir.Write("tokenizer.json/x", "");
  EXPECT_THAT(Message(LoadError(dir)), HasSubstr("tokenizer.json: is not a regular file"));
}

TEST(TextLoadTest, TemplateFilesTakePrecedenceOverTheConfig) {
  TempModelDir dir;
  dir.WriteTinyKjv(R"({"chat_template": "config"})");
  const auto text = [&] {
    const auto codec = LoadOrFail(dir.path());
    return codec == nullptr ? "" : codec->ApplyChatTemplate(kOneMessage, {}).value();
  };
  EXPECT_EQ(text(), "config");
  dir.Write("chat_template.json", R"({"chat_template": "legacy"})");
  EXPECT_EQ(text(), "config");
  dir.Write("tokenizer_config.json", "{}");
  EXPECT_EQ(text(), "legacy");
  dir.Write("chat_template.jinja", "file");
  EXPECT_EQ(text(), "file");
}

TEST(TextLoadTest, NamedTemplatesAreChosenAsInTransformers) {
  TempModelDir dir;
  dir.WriteTinyKjv(R"({"chat_template": [{"name": "default", "template": "D"},
    {"name": "tool_use", "template": "T"}, {"name": "rag", "template": "R"}]})");
  const auto codec = LoadOrFail(dir.path());
  ASSERT_NE(codec, nullptr);
  EXPECT_EQ(codec->ApplyChatTemplate(kOneMessage, {}).value(), "D");
  EXPECT_EQ(codec->ApplyChatTemplate(kOneMessage, {.kwargs_json = R"({"tools": [{}]})"}).value(),
            "T");
  EXPECT_EQ(codec->ApplyChatTemplate(kOneMessage, {.chat_template = "rag"}).value(), "R");
  EXPECT_EQ(codec->ApplyChatTemplate(kOneMessage, {.chat_template = "{{ 1 }}"}).value(), "1");

  dir.Write("chat_templates/other.jinja", "O");
  const auto other = LoadOrFail(dir.path());
  ASSERT_NE(other, nullptr);
  EXPECT_FALSE(other->has_chat_template());
  EXPECT_THAT(Message(other->ApplyChatTemplate(kOneMessage, {}).status()), HasSubstr("other"));
  EXPECT_EQ(other->ApplyChatTemplate(kOneMessage, {.chat_template = "other"}).value(), "O");
}

TEST(TextLoadTest, ModelWithoutATemplateSaysSo) {
  TempModelDir dir;
  dir.WriteTinyKjv("{}");
  const auto codec = LoadOrFail(dir.path());
  ASSERT_NE(codec, nullptr);
  EXPECT_FALSE(codec->has_chat_template());
  const auto text = codec->ApplyChatTemplate(kOneMessage, {});
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(text.status()), HasSubstr("no chat template"));
}

TEST(TextLoadTest, SpecialTokensComeFromEveryFormOfTheConfig) {
  TempModelDir dir;
  dir.WriteTinyKjv(
      R"({"bos_token": {"__type": "AddedToken", "content": "<|user|>", "special": true},
    "eos_token": {"content": "<|end|>", "lstrip": false}, "image_token": "<|system|>",
    "chat_template":
      "{{ bos_token }} {{ eos_token }} {{ image_token }} {{ pad_token is defined }}"})");
  auto codec = LoadOrFail(dir.path());
  ASSERT_NE(codec, nullptr);
  EXPECT_EQ(codec->ApplyChatTemplate(kOneMessage, {}).value(), "<|user|> <|end|> <|system|> False");
  EXPECT_EQ(codec->bos_id(), 2);
  EXPECT_EQ(codec->eos_id(), 5);
  dir.Write("special_tokens_map.json", R"({"pad_token": "<|end_of_text|>", "eos_token": null})");
  codec = LoadOrFail(dir.path());
  ASSERT_NE(codec, nullptr);
  EXPECT_EQ(codec->ApplyChatTemplate(kOneMessage, {}).value(), "<|user|>  <|system|> True");
}

TEST(TextLoadTest, LargerVocabularyOfTheModelWidensTheRangeOfIds) {
  TempModelDir dir;
  dir.WriteTinyKjv("{}");
  dir.Write("config.json", R"({"vocab_size": 5000})");
  const auto codec = LoadOrFail(dir.path());
  ASSERT_NE(codec, nullptr);
  EXPECT_EQ(codec->vocab_size(), 5000);
  EXPECT_EQ(codec->Decode(std::vector<int32_t>{70, 4999, 70}, false).value(), "aa");
  EXPECT_EQ(codec->TokenToBytesOrText(4999).value().bytes, "");
  EXPECT_FALSE(codec->Decode(std::vector<int32_t>{5000}, false).ok());
}

}  // namespace
}  // namespace baton
