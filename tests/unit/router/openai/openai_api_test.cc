#include "router/openai/openai_api.h"

#include <gtest/gtest.h>

#include "tests/unit/router/openai/api_fixture.h"

namespace baton {
namespace {

TEST(OpenAiApiTest, AnswersACompletionWithTextUsageAndIds) {
  FakeFrontend frontend(SayBytes("and God"));
  ApiServer api(&frontend);
  const Json answer = api.PostJson("/v1/completions", R"({"model":"tiny","prompt":"abc"})");
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["id"].get<std::string>().substr(0, 5), "cmpl-");
  EXPECT_EQ(answer["created"], 456);
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_EQ(answer["system_fingerprint"], "baton-0.1.0-n1");
  ASSERT_EQ(answer["choices"].size(), 1);
  EXPECT_EQ(answer["choices"][0]["text"], "and God");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 8);
  EXPECT_EQ(answer["usage"]["total_tokens"], 12);
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
}

TEST(OpenAiApiTest, StreamsTheSameTextAsItAnswersAtOnce) {
  FakeFrontend frontend(SayBytes("a\xE2\x82\xAC!"));
  ApiServer api(&frontend);
  const auto response = api.Post("/v1/completions", R"({"prompt":"abc","stream":true,)"
                                                    R"("stream_options":{"include_usage":true}})");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.Header("Content-Type"), "text/event-stream; charset=utf-8");
  const auto events = Events(response.body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json chunk = *ParseJson(events[i]);
    EXPECT_EQ(chunk["object"], "text_completion");
    EXPECT_TRUE(chunk["usage"].is_null());
    text += chunk["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(chunk["choices"][0]["finish_reason"].is_null(), i + 3 < events.size());
  }
  EXPECT_EQ(text, "a\xE2\x82\xAC!");
  const Json last = *ParseJson(events[events.size() - 2]);
  EXPECT_EQ(last["choices"], Json::array());
  EXPECT_EQ(last["usage"]["completion_tokens"], 6);
}

}  // namespace
}  // namespace baton
