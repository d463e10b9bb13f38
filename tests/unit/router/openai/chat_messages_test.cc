#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "router/error.h"
#include "router/openai/api_request.h"

namespace baton {
namespace {

absl::StatusOr<ChatPrompt> Parse(const std::string& messages, const std::string& fields = "") {
  return ParseChatPrompt(*ParseJson("{\"messages\":" + messages + fields + "}"));
}

TEST(ChatMessagesTest, JoinsTextPartsAndDropsNulls) {
  const auto prompt = Parse(
      R"([{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
      R"({"role":"user","content":"c","name":null},{"role":"assistant","content":null}])");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->messages_json,
            R"([{"role":"system","content":"a\nb"},{"role":"user","content":"c"},)"
            R"({"role":"assistant"}])");
  EXPECT_TRUE(prompt->add_generation_prompt);
}

TEST(ChatMessagesTest, APartMayBeAStringOrARefusal) {
  const auto prompt =
      Parse(R"([{"role":"assistant","content":["a",{"type":"refusal","refusal":"b"}]}])");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->messages_json, R"([{"role":"assistant","content":"a\nb"}])");
}

TEST(ChatMessagesTest, BoundsTheKeysOfAMessage) {
  const auto message = [](int keys) {
    std::string text = R"([{"role":"user","content":"x")";
    for (int i = 2; i < keys; ++i) text += ",\"k" + std::to_string(i) + "\":1";
    return text + "}]";
  };
  EXPECT_TRUE(Parse(message(64)).ok());
  EXPECT_EQ(ErrorParam(Parse(message(65)).status()), "messages[0]");
}

TEST(ChatMessagesTest, GivesTemplatesTheArgumentsOfCallsAsObjects) {
  const auto prompt = Parse(
      R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"x\":1}"}},)"
      R"({"function":{"name":"g","arguments":"no"}},{"function":{"arguments":"[1]"}}]}])");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_NE(prompt->messages_json.find(R"("arguments":{"x":1})"), std::string::npos);
  EXPECT_NE(prompt->messages_json.find(R"("arguments":"no")"), std::string::npos);
  EXPECT_NE(prompt->messages_json.find(R"("arguments":"[1]")"), std::string::npos);
}

TEST(ChatMessagesTest, NamesThePartThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "messages"},
      {"{}", "messages"},
      {"null", "messages"},
      {"[1]", "messages[0]"},
      {R"([{"content":"x"}])", "messages[0].role"},
      {R"([{"role":5,"content":"x"}])", "messages[0].role"},
      {R"([{"role":"","content":"x"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":5}])", "messages[0].content"},
      {R"([{"role":"user","content":"a"},{"role":"user","content":[1]}])",
       "messages[1].content[0]"},
      {R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])",
       "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"}};
  for (const auto& [messages, param] : cases) {
    EXPECT_EQ(ErrorParam(Parse(messages).status()), param) << messages;
  }
}

TEST(ChatMessagesTest, PassesTemplateOptionsOn) {
  const std::string message = R"([{"role":"user","content":"x"}])";
  const auto prompt =
      Parse(message, R"(,"add_generation_prompt":false,"chat_template_kwargs":{"think":true})");
  EXPECT_FALSE(prompt->add_generation_prompt);
  EXPECT_EQ(prompt->template_kwargs_json, R"({"think":true})");
  EXPECT_EQ(ErrorParam(Parse(message, R"(,"chat_template_kwargs":[])").status()),
            "chat_template_kwargs");
  for (const std::string reserved : {"messages", "tools", "chat_template"}) {
    const auto refused =
        Parse(message, R"(,"chat_template_kwargs":{")" + reserved + R"(":[]})");
    EXPECT_EQ(ErrorParam(refused.status()), "chat_template_kwargs") << reserved;
  }
}

}  // namespace
}  // namespace baton
