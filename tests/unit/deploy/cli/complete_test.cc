#include "deploy/cli/complete.h"

#include <fstream>

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

TEST(CompleteTest, ApiKeyIsTheFilesTextWithoutItsNewline) {
  const std::string path = testing::TempDir() + "/api_key";
  std::ofstream(path) << "abc-1\n";
  EXPECT_EQ(ReadApiKey(path).value(), "abc-1");
  EXPECT_EQ(ReadApiKey("").value(), "");
}

TEST(CompleteTest, ApiKeyFilesOfNoOrSeveralLinesAreRefusedByTheOption) {
  const std::string path = testing::TempDir() + "/odd_api_key";
  for (const char* text : {"", " \n", "a\r\nHost: b", "a b"}) {
    std::ofstream(path) << text;
    EXPECT_NE(ReadApiKey(path).status().ToString().find("--api-key-file"), std::string::npos);
  }
  EXPECT_FALSE(ReadApiKey(testing::TempDir() + "/no_such_key").ok());
}

TEST(CompleteTest, NoClusterIsSaidWithItsCure) {
  const auto url = RouterUrl(testing::TempDir() + "/no_cluster_here");
  EXPECT_NE(url.status().ToString().find("baton up --dir"), std::string::npos) << url.status();
}

}  // namespace
}  // namespace baton::cli
