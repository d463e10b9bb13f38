#include "router/openai/full_answer.h"

#include <gtest/gtest.h>

#include "tests/unit/router/openai/api_fixture.h"
#include "tests/unit/router/openai/bounded_writer.h"

namespace baton {
namespace {

TEST(FullAnswerTest, NumbersTheChoicesOfAllPrompts) {
  FakeFrontend frontend(SayBytes("xy"));
  ApiServer api(&frontend);
  const Json answer = api.PostJson("/v1/completions", R"({"prompt":["a","bc"],"n":2})");
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"], "xy");
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
}

TEST(FullAnswerTest, EchoesAPromptWithTheScoresThatHarnessesRead) {
  FakeFrontend frontend(SayBytes("x"));
  ApiServer api(&frontend);
  const Json choice =
      api.PostJson("/v1/completions", R"({"prompt":[0,99,100],"max_tokens":1,"echo":true,)"
                                      R"("logprobs":1,"temperature":0})")["choices"][0];
  EXPECT_EQ(choice["text"], "abx");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(Dump(choice["logprobs"]["tokens"]), R"(["<s>","a","b","x"])");
  EXPECT_EQ(Dump(choice["logprobs"]["token_logprobs"]), "[null,-0.125,-0.25,-0.5]");
  EXPECT_EQ(Dump(choice["logprobs"]["text_offset"]), "[0,0,1,2]");
  EXPECT_EQ(Dump(choice["logprobs"]["top_logprobs"]),
            R"([null,{"a":-0.125},{"b":-0.25},{"x":-0.5,"the":-0.25}])");
}

TEST(FullAnswerTest, ScoresWithoutANewToken) {
  FakeFrontend frontend(SayBytes("x"));
  ApiServer api(&frontend);
  const Json answer =
      api.PostJson("/v1/completions", R"({"prompt":"ab","max_tokens":0,"echo":true,"logprobs":0})");
  EXPECT_EQ(answer["choices"][0]["text"], "ab");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
  EXPECT_TRUE(frontend.requests()[0].score_only);
}

TEST(FullAnswerTest, AnswersAChatWithLogprobs) {
  FakeFrontend frontend(SayBytes("hi"));
  ApiServer api(&frontend);
  const Json answer =
      api.PostJson("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],)"
                                           R"("logprobs":true,"top_logprobs":2})");
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["id"].get<std::string>().substr(0, 9), "chatcmpl-");
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "hi");
  EXPECT_EQ(choice["finish_reason"], "stop");
  ASSERT_EQ(choice["logprobs"]["content"].size(), 3u);
  EXPECT_EQ(choice["logprobs"]["content"][0]["token"], "h");
  EXPECT_EQ(choice["logprobs"]["content"][0]["top_logprobs"].size(), 2u);
  // The template wrote what special tokens there are.
  EXPECT_NE(frontend.requests()[0].prompts[0][0], FakeTokenizer::kBegin);
}

TEST(FullAnswerTest, GivesTokenIdsAndDigestsWhenAsked) {
  FakeFrontend frontend(SayBytes("a"));
  ApiServer api(&frontend);
  const Json answer = api.PostJson(
      "/v1/completions",
      R"({"prompt":[5,6],"return_token_ids":true,"return_logits_digest":true,"request_id":"r7"})");
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(answer["id"], "cmpl-r7");
  EXPECT_EQ(Dump(choice["token_ids"]), "[99,1]");
  EXPECT_EQ(Dump(choice["prompt_token_ids"]), "[5,6]");
  EXPECT_EQ(Dump(choice["logits_digests"]), R"(["fedcba9876540063","fedcba9876540001"])");
}

TEST(FullAnswerTest, SaysWhyItStopped) {
  FakeFrontend frontend(SayBytes("and so"));
  ApiServer api(&frontend);
  const Json choice =
      api.PostJson("/v1/completions", R"({"prompt":"a","stop":[" s"]})")["choices"][0];
  EXPECT_EQ(choice["text"], "and");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], " s");
  const Json ended =
      api.PostJson("/v1/completions", R"({"prompt":"a","stop_token_ids":[1]})")["choices"][0];
  EXPECT_EQ(ended["stop_reason"], 1);
}

TEST(FullAnswerTest, GivesPromptLogprobsById) {
  FakeFrontend frontend(SayBytes("a"));
  ApiServer api(&frontend);
  for (const std::string more : {"", R"(,"return_tokens_as_token_ids":true)"}) {
    const std::string body = R"({"prompt":[5,99],"prompt_logprobs":0)" + more + "}";
    const Json choice = api.PostJson("/v1/completions", body)["choices"][0];
    EXPECT_EQ(Dump(choice["prompt_logprobs"]),
              R"([null,{"99":{"logprob":-0.125,"rank":1,"decoded_token":"a"}}])");
  }
}

TEST(FullAnswerTest, NamesTokensByIdWhenAsked) {
  FakeFrontend frontend(SayBytes("a"));
  ApiServer api(&frontend);
  const Json choice =
      api.PostJson("/v1/completions", R"({"prompt":"a","logprobs":0,"max_tokens":1,)"
                                      R"("return_tokens_as_token_ids":true})")["choices"][0];
  EXPECT_EQ(Dump(choice["logprobs"]["tokens"]), R"(["token_id:99"])");
}

TEST(FullAnswerTest, AChatHasTheIdsOfItsPromptOnce) {
  FakeFrontend frontend(SayBytes("a"));
  ApiServer api(&frontend);
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}])";
  const Json answer =
      api.PostJson("/v1/chat/completions", chat + R"(,"n":2,"return_token_ids":true})");
  EXPECT_EQ(answer["prompt_token_ids"], Json(frontend.requests()[0].prompts[0]));
  EXPECT_FALSE(api.PostJson("/v1/chat/completions", chat + "}").contains("prompt_token_ids"));
}

TEST(FullAnswerTest, MapsTheEndOfARequestToItsStatus) {
  absl::Status status;
  FakeFrontend frontend([&](uint64_t, const ValidRequest& request, ResponseSink& sink) {
    sink.OnEvent(ChoiceTokens{0, {FakeOutput(request, FakeTokenizer::kTheA, 3)}});
    sink.OnEvent(RequestEnded{status});
  });
  ApiServer api(&frontend);
  for (const auto& [end, http] : {std::pair{absl::UnavailableError("a worker was lost"), 503},
                                  std::pair{absl::DeadlineExceededError("too late"), 504},
                                  std::pair{absl::ResourceExhaustedError("full"), 503},
                                  std::pair{absl::InternalError("bug"), 500}}) {
    status = end;
    const auto response = api.Post("/v1/completions", R"({"prompt":"a"})");
    EXPECT_EQ(response.status, http);
    EXPECT_EQ(response.Header("Retry-After"), http == 503 ? "1" : "");
  }
  status = absl::CancelledError("gone");
  EXPECT_EQ(api.Post("/v1/completions", R"({"prompt":"a"})").status, 0);
}

TEST(FullAnswerTest, ServesTokenIdsWithoutATokenizer) {
  FakeFrontend frontend(SayBytes("a"));
  ApiServer api(&frontend, /*with_tokenizer=*/false);
  const Json choice = api.PostJson(
      "/v1/completions", R"({"prompt":[5],"logprobs":1,"return_token_ids":true})")["choices"][0];
  EXPECT_EQ(choice["text"], "");
  EXPECT_EQ(Dump(choice["token_ids"]), "[99,1]");
  EXPECT_EQ(choice["logprobs"]["tokens"][0], "token_id:99");
  EXPECT_EQ(api.PostJson("/v1/completions", R"({"prompt":"a"})", 400)["error"]["param"], "prompt");
  EXPECT_EQ(api.PostJson("/tokenize", R"({"prompt":"a"})", 400)["error"]["param"], "prompt");
}

// An echo of 2,000 tokens with 20 alternatives each, for so many choices.
std::shared_ptr<BoundedWriter> AnswerLargely(int32_t choices) {
  AnswerContext context{.id = "x", .prompt_texts = {std::string(100000, 'p')}};
  context.request.generation.echo = true;
  context.request.top_logprobs = 20;
  auto writer = std::make_shared<BoundedWriter>();
  const auto answer =
      std::make_shared<FullAnswer>(std::move(context), static_cast<size_t>(choices), writer);
  std::vector<TokenLogprob> top;
  for (int32_t id = 5000; id < 5020; ++id) top.push_back({id, -1});
  auto scores = std::make_shared<TokenScores>();
  for (int32_t i = 0; i < 2000; ++i) scores->Add({.chosen = {.token = i}, .top = top});
  answer->OnPrompt({.prompt = 0, .tokens = scores});
  for (int32_t c = 0; c < choices; ++c) {
    answer->OnDelta({.choice = c, .finish = FinishReason::kLength});
  }
  answer->OnEnd(absl::OkStatus(), {.prompt_tokens = 2000});
  return writer;
}

TEST(FullAnswerTest, ALongOneIsMadeAsItIsTaken) {
  const auto writer = AnswerLargely(20);
  EXPECT_EQ(writer->streams, 1);
  size_t most = 0;
  do {
    most = std::max(most, writer->queued);
    EXPECT_LT(writer->queued, BoundedWriter::kRoom + (64 << 10));
  } while (writer->Drain());
  EXPECT_GT(most, 0u);
  EXPECT_EQ(writer->finished, 1);
  EXPECT_FALSE(writer->closed);
  EXPECT_GT(writer->body.size(), size_t{10} << 20);
  const absl::StatusOr<Json> json = ParseJson(writer->body);
  ASSERT_TRUE(json.ok()) << json.status();
  ASSERT_EQ((*json)["choices"].size(), 20u);
  for (size_t c = 0; c < 20; ++c) {
    const Json& choice = (*json)["choices"][c];
    EXPECT_EQ(choice["index"], c);
    EXPECT_EQ(choice["text"].get<std::string>().size(), 100000u);
    EXPECT_EQ(choice["logprobs"]["top_logprobs"].size(), 2000u);
    EXPECT_EQ(choice["logprobs"]["tokens"][1999], "token_id:1999");
  }
  EXPECT_EQ((*json)["usage"]["prompt_tokens"], 2000);
}

TEST(FullAnswerTest, NothingOfALongOneIsLeftWhenItsClientGoes) {
  const auto writer = AnswerLargely(20);
  EXPECT_TRUE(writer->on_room);
  EXPECT_EQ(writer->finished, 0);
  EXPECT_GT(writer.use_count(), 1);  // The answer waits for room.
  writer->on_room = nullptr;
  EXPECT_EQ(writer.use_count(), 1);
}

TEST(FullAnswerTest, AShortOneHasItsLength) {
  FakeFrontend frontend(SayBytes("xy"));
  ApiServer api(&frontend);
  const auto shorter = api.Post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(shorter.Header("Content-Length"), std::to_string(shorter.body.size()));
  const std::string prompt(200, 'a');
  const auto longer = api.Post("/v1/completions", R"({"prompt":")" + prompt +
                                                      R"(","echo":true,"logprobs":1,"n":100})");
  EXPECT_EQ(longer.status, 200);
  EXPECT_EQ(longer.Header("Content-Length"), "");
  EXPECT_EQ(longer.Header("Transfer-Encoding"), "chunked");
  const absl::StatusOr<Json> json = ParseJson(longer.body);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["choices"].size(), 100u);
}

}  // namespace
}  // namespace baton
