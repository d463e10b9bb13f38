#include "deploy/cli/complete.h"

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

using nlohmann::json;

TEST(CompleteTest, BodyLeavesUnsetSamplingToTheModel) {
  const CompleteOptions options{.text = "In the", .max_tokens = 5};
  EXPECT_EQ(CompletionBody(options, "m"),
            json::parse(R"({"model": "m", "max_tokens": 5, "stream": true, "prompt": "In the"})"));
}

TEST(CompleteTest, ChatSendsOneUserMessageAndTheGivenSampling) {
  const CompleteOptions options{
      .text = "Hi", .chat = true, .stream = false, .temperature = 0.0, .seed = 7};
  const json body = CompletionBody(options, "m");
  EXPECT_EQ(body["messages"], json::parse(R"([{"role": "user", "content": "Hi"}])"));
  EXPECT_EQ(body["temperature"], 0.0);
  EXPECT_EQ(body["seed"], 7);
  EXPECT_FALSE(body.contains("prompt"));
}

TEST(CompleteTest, TextIsFoundInEveryResponseForm) {
  EXPECT_EQ(TextOf(json::parse(R"({"choices": [{"text": "a"}]})")), "a");
  EXPECT_EQ(TextOf(json::parse(R"({"choices": [{"delta": {"content": "b"}}]})")), "b");
  EXPECT_EQ(TextOf(json::parse(R"({"choices": [{"message": {"content": "c"}}]})")), "c");
}

TEST(CompleteTest, OddResponsesHaveNoText) {
  for (const char* text :
       {"null", "[]", R"({"choices": []})", R"({"choices": [3]})", R"({"choices": {"0": 1}})",
        R"({"choices": [{"delta": {}}]})", R"({"choices": [{"delta": {"content": null}}]})"}) {
    EXPECT_EQ(TextOf(json::parse(text)), "") << text;
  }
}

}  // namespace
}  // namespace baton::cli
