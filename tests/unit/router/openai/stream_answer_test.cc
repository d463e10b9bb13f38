#include "router/openai/stream_answer.h"

#include <gtest/gtest.h>

#include "tests/unit/router/openai/api_fixture.h"

namespace baton {
namespace {

TEST(StreamAnswerTest, BeginsEachChoiceOfAChatWithItsRole) {
  FakeFrontend frontend(SayBytes("hi"));
  ApiServer api(&frontend);
  const auto response =
      api.Post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],)"
                                       R"("stream":true,"n":2,"return_token_ids":true})");
  std::vector<std::string> text(2);
  std::vector<Json> ids(2, Json::array());
  int roles = 0;
  const auto events = Events(response.body);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json chunk = *ParseJson(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_FALSE(chunk.contains("usage"));
    const Json& choice = chunk["choices"][0];
    const int index = choice["index"];
    if (choice["delta"].contains("role")) {
      EXPECT_EQ(choice["delta"]["role"], "assistant");
      EXPECT_EQ(text[index], "");
      ++roles;
    }
    text[index] += choice["delta"]["content"].get<std::string>();
    for (const Json& id : choice.value("token_ids", Json::array())) {
      ids[index].push_back(id);
    }
  }
  EXPECT_EQ(roles, 2);
  EXPECT_EQ(text, (std::vector<std::string>{"hi", "hi"}));
  EXPECT_EQ(Dump(ids[1]), "[106,107,1]");
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST(StreamAnswerTest, CountsUsageInEveryChunkWhenAsked) {
  FakeFrontend frontend(SayBytes("xy"));
  ApiServer api(&frontend);
  const auto events =
      Events(api.Post("/v1/completions", R"({"prompt":"a","stream":true,"stream_options":)"
                                         R"({"include_usage":true,"continuous_usage_stats":true}})")
                 .body);
  ASSERT_EQ(events.size(), 5u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ((*ParseJson(events[i]))["usage"]["completion_tokens"], i + 1);
  }
  EXPECT_EQ((*ParseJson(events[3]))["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
}

TEST(StreamAnswerTest, EchoesOncePerChoiceWithScores) {
  FakeFrontend frontend(SayBytes("x"));
  ApiServer api(&frontend);
  const auto events =
      Events(api.Post("/v1/completions", R"({"prompt":"ab","stream":true,"echo":true,"logprobs":0,)"
                                         R"("max_tokens":1})")
                 .body);
  ASSERT_EQ(events.size(), 2u);
  const Json choice = (*ParseJson(events[0]))["choices"][0];
  EXPECT_EQ(choice["text"], "abx");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 4u);
}

TEST(StreamAnswerTest, AnswersAStatusWhenItFailsBeforeTheFirstToken) {
  FakeFrontend frontend([](uint64_t, const ValidRequest&, ResponseSink& sink) {
    sink.OnEvent(RequestEnded{absl::UnavailableError("no worker")});
  });
  ApiServer api(&frontend);
  const auto response = api.Post("/v1/completions", R"({"prompt":"a","stream":true})");
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.Header("Content-Type"), "application/json");
}

TEST(StreamAnswerTest, EndsWithAnErrorAndACloseWhenItFailsLater) {
  FakeFrontend frontend([](uint64_t, const ValidRequest& request, ResponseSink& sink) {
    sink.OnEvent(ChoiceTokens{0, {FakeOutput(request, FakeTokenizer::kTheA, 3)}});
    sink.OnEvent(RequestEnded{absl::UnavailableError("a worker was lost")});
  });
  ApiServer api(&frontend);
  http::TestClient client(api.port());
  const auto response = client.Post("/v1/completions", R"({"prompt":"a","stream":true})");
  const auto events = Events(response.body);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_TRUE((*ParseJson(events[0]))["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ((*ParseJson(events[1]))["error"]["message"], "a worker was lost");
  EXPECT_EQ(events[2], "[DONE]");
  EXPECT_TRUE(client.AtEnd());
}

TEST(StreamAnswerTest, SendsEachTokenAtOnceAndCancelsWhenTheClientGoes) {
  FakeFrontend frontend([](uint64_t, const ValidRequest& request, ResponseSink& sink) {
    sink.OnEvent(ChoiceTokens{0, {FakeOutput(request, FakeTokenizer::kTheA, 3)}});
  });
  ApiServer api(&frontend);
  http::TestClient client(api.port());
  client.SendPost("/v1/completions", R"({"prompt":"a","stream":true})");
  std::string seen;
  while (seen.find("\"the\"") == std::string::npos) {
    const std::string more = client.ReadSome();
    ASSERT_FALSE(more.empty());
    seen += more;
  }
  EXPECT_TRUE(frontend.cancelled().empty());
  client.Close();
  EXPECT_TRUE(frontend.WaitForCancel(1));
}

TEST(StreamAnswerTest, CancelsARequestWhoseClientGoesBeforeTheFirstToken) {
  FakeFrontend frontend;
  ApiServer api(&frontend);
  for (const char* body : {R"({"prompt":"a","stream":true})", R"({"prompt":"a"})"}) {
    http::TestClient client(api.port());
    const uint64_t key = frontend.requests().size() + 1;
    client.SendPost("/v1/completions", body);
    while (frontend.requests().size() < key) {
    }
    client.Close();
    EXPECT_TRUE(frontend.WaitForCancel(key));
  }
}

}  // namespace
}  // namespace baton
