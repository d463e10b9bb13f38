#include "router/openai/stream_answer.h"

#include <gtest/gtest.h>

#include "tests/unit/router/openai/api_fixture.h"
#include "tests/unit/router/openai/bounded_writer.h"

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
    for (const Json& id : choice.value("token_ids", Json::array())) ids[index].push_back(id);
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

std::shared_ptr<StreamAnswer> NewStream(std::shared_ptr<BoundedWriter> writer, bool echo = false) {
  AnswerContext context{.id = "x", .prompt_texts = {std::string(1000, 'p')}};
  context.request.generation.echo = echo;
  context.request.top_logprobs = echo ? 20 : -1;
  context.request.include_usage = true;
  context.request.continuous_usage = true;
  return std::make_shared<StreamAnswer>(std::move(context), 2, 7, std::move(writer));
}

TEST(StreamAnswerTest, WhatIsWrittenIsGivenBack) {
  const auto budget = std::make_shared<AnswerBudget>(1 << 20);
  auto writer = std::make_shared<BoundedWriter>();
  const auto stream = NewStream(writer);
  const auto share = budget->NewShare();
  stream->Keep(share);
  for (int32_t token = 0; token < 6000; ++token) {
    ASSERT_TRUE(share->Hold(HeldBytes(1, 3)));
    stream->OnDelta({.choice = token % 2, .text = "the", .tokens = {token}});
  }
  const int64_t unread = budget->used();
  EXPECT_GT(unread, 3000 * HeldBytes(1, 3));
  EXPECT_LT(unread, 6000 * HeldBytes(1, 3) - AnswerBudget::Share::kFreeBytes);
  while (writer->Drain()) {
  }
  EXPECT_EQ(budget->used(), 0);
  EXPECT_TRUE(share->Hold(AnswerBudget::Share::kFreeBytes));
  EXPECT_EQ(budget->used(), 0) << "the free part too";
}

TEST(StreamAnswerTest, ATokenIsOneEventAndOneWrite) {
  auto writer = std::make_shared<BoundedWriter>();
  const auto stream = NewStream(writer);
  for (int32_t token = 0; token < 5; ++token) {
    stream->OnDelta({.choice = 0, .text = "t", .tokens = {token}});
    EXPECT_EQ(writer->writes, token + 1);
    EXPECT_EQ(Events(writer->body).size(), static_cast<size_t>(token) + 1);
  }
}

TEST(StreamAnswerTest, TokensWaitTogetherForAClientThatDoesNotKeepUp) {
  auto writer = std::make_shared<BoundedWriter>();
  const auto stream = NewStream(writer);
  stream->OnDelta({.choice = 0, .text = "0,", .tokens = {0}});
  const size_t first = writer->body.size();
  writer->queued = BoundedWriter::kRoom;
  std::string expected = "0,";
  for (int32_t token = 1; token < 1000; ++token) {
    expected += std::to_string(token) + ",";
    stream->OnDelta({.choice = 0,
                     .text = std::to_string(token) + ",",
                     .tokens = {token},
                     .finish = token == 999 ? FinishReason::kLength : FinishReason::kNone});
  }
  stream->OnEnd(absl::OkStatus(), {.prompt_tokens = 7, .completion_tokens = 1000});
  EXPECT_EQ(writer->body.size(), first);
  while (writer->Drain()) {
  }
  EXPECT_EQ(writer->finished, 1);
  const auto events = Events(writer->body);
  EXPECT_LT(events.size(), 10u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json chunk = *ParseJson(events[i]);
    text += chunk["choices"][0]["text"].get<std::string>();
    const bool last = i + 3 == events.size();
    EXPECT_EQ(chunk["choices"][0]["finish_reason"].is_null(), !last);
    if (last) {
      EXPECT_EQ(chunk["usage"]["completion_tokens"], 1000);
    }
  }
  EXPECT_EQ(text, expected);
}

TEST(StreamAnswerTest, AnEventOfManyScoresIsMadeAsItIsTaken) {
  auto writer = std::make_shared<BoundedWriter>();
  {
    const auto stream = NewStream(writer, /*echo=*/true);
    std::vector<TokenLogprob> top;
    for (int32_t id = 50000; id < 50020; ++id) top.push_back({id, -1});
    auto scores = std::make_shared<TokenScores>();
    for (int32_t i = 0; i < 6000; ++i) scores->Add({.chosen = {.token = i}, .top = top});
    stream->OnPrompt({.prompt = 0, .tokens = scores});
    for (int32_t c = 0; c < 2; ++c) stream->OnDelta({.choice = c, .finish = FinishReason::kLength});
    stream->OnEnd(absl::OkStatus(), {});
  }
  do {
    EXPECT_LT(writer->queued, size_t{192} << 10);  // Then it is others' turn.
  } while (writer->Drain());
  EXPECT_EQ(writer->finished, 1);
  EXPECT_GT(writer->body.size(), size_t{4} << 20);
  const auto events = Events(writer->body);
  ASSERT_EQ(events.size(), 4u);
  for (size_t c = 0; c < 2; ++c) {
    const Json choice = (*ParseJson(events[c]))["choices"][0];
    EXPECT_EQ(choice["index"], c);
    EXPECT_EQ(choice["logprobs"]["top_logprobs"].size(), 6000u);
  }
}

TEST(StreamAnswerTest, AFailureIsToldAfterWhatWaits) {
  auto writer = std::make_shared<BoundedWriter>();
  const auto stream = NewStream(writer);
  writer->queued = BoundedWriter::kRoom;
  stream->OnDelta({.choice = 0, .text = "a", .tokens = {1}});
  stream->OnEnd(absl::UnavailableError("a worker was lost"), {});
  EXPECT_EQ(writer->streams + writer->sent, 0);
  while (writer->Drain()) {
  }
  const auto events = Events(writer->body);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ((*ParseJson(events[1]))["error"]["message"], "a worker was lost");
  EXPECT_TRUE(writer->closed);
}

}  // namespace
}  // namespace baton
