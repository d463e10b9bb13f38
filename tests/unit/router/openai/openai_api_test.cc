#include "router/openai/openai_api.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "common/base/random.h"
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
  ASSERT_EQ(answer["choices"].size(), 1u);
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

TEST(OpenAiApiTest, ListsItsModel) {
  FakeFrontend frontend;
  ApiServer api(&frontend);
  const Json models = *ParseJson(api.Get("/v1/models").body);
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["object"], "model");
  EXPECT_EQ(models["data"][0]["created"], 123);
  EXPECT_EQ(models["data"][0]["max_model_len"], 256);
  EXPECT_EQ(ParseJson(api.Get("/v1/models/tiny").body)->at("id"), "tiny");
  EXPECT_EQ(api.Get("/v1/models/other").status, 404);
}

TEST(OpenAiApiTest, RefusesAnotherModelWith404) {
  FakeFrontend frontend;
  ApiServer api(&frontend);
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize"}) {
    const Json body = api.PostJson(path, R"({"model":"gpt","prompt":"a"})", 404);
    EXPECT_EQ(body["error"]["param"], "model");
    EXPECT_EQ(body["error"]["code"], "model_not_found");
  }
}

TEST(OpenAiApiTest, TokenizesAndDetokenizes) {
  FakeFrontend frontend;
  ApiServer api(&frontend);
  EXPECT_EQ(Dump(api.PostJson("/tokenize", R"({"prompt":"ab"})")),
            R"({"count":3,"max_model_len":256,"tokens":[0,99,100],"token_strs":null})");
  const Json bare = api.PostJson(
      "/tokenize", R"({"prompt":"ab","add_special_tokens":false,"return_token_strs":true})");
  EXPECT_EQ(Dump(bare["token_strs"]), R"(["a","b"])");
  const Json chat = api.PostJson("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(api.PostJson("/detokenize", Dump({{"tokens", chat["tokens"]}}))["prompt"],
            R"([{"role":"user","content":"x"}]assistant:)");
  EXPECT_EQ(api.PostJson("/detokenize", R"({"tokens":[0,99]})")["prompt"], "<s>a");
  EXPECT_EQ(api.PostJson("/detokenize", R"({"tokens":[261]})", 400)["error"]["param"], "tokens");
  EXPECT_EQ(api.PostJson("/detokenize", R"({"tokens":[4294967395]})", 400)["error"]["param"],
            "tokens");  // 99, if cut to 32 bits.
  for (const char* path : {"/tokenize", "/detokenize", "/v1/completions"}) {
    EXPECT_EQ(api.PostJson(path, "[]", 400)["error"]["message"],
              "The body must be a JSON object.");
  }
  EXPECT_EQ(api.PostJson("/detokenize", "{}", 400)["error"]["param"], "tokens");
  EXPECT_EQ(api.PostJson("/tokenize", "{}", 400)["error"]["param"], "prompt");
}

TEST(OpenAiApiTest, SaysHowTheClusterIs) {
  FakeFrontend frontend;
  ApiServer api(&frontend);
  EXPECT_EQ(api.Get("/health").status, 200);
  EXPECT_EQ(api.Get("/ready").status, 200);
  frontend.ready = false;
  EXPECT_EQ(api.Get("/ready").status, 503);
  EXPECT_EQ(api.Get("/health").status, 200);
  frontend.alive = false;
  EXPECT_EQ(api.Get("/health").status, 503);
  EXPECT_EQ(api.Get("/version").body, R"({"version":"0.1.0"})");
  EXPECT_EQ(api.Get("/metrics").body, "baton_up 1\n");
  EXPECT_EQ(ParseJson(api.Get("/status").body)->at("workers")[0]["blocks"]["free"], 7);
}

TEST(OpenAiApiTest, NamesTheFieldOfAnInvalidRequest) {
  FakeFrontend frontend(SayBytes("x"));
  ApiServer api(&frontend);
  const Json body =
      api.PostJson("/v1/completions", R"({"prompt":"ab","max_tokens":254})", 400)["error"];
  EXPECT_EQ(body["param"], "max_tokens");
  EXPECT_EQ(body["type"], "invalid_request_error");
  EXPECT_EQ(body["code"], "context_length_exceeded");
  EXPECT_NE(body["message"].get<std::string>().find("253"), std::string::npos);
  const Json refused = api.PostJson("/v1/chat/completions",
                                    R"({"messages":[{"role":"user","content":"refuse me"}]})", 400);
  EXPECT_EQ(refused["error"]["param"], "messages");
  EXPECT_EQ(api.PostJson("/v1/completions", "{", 400)["error"]["param"], nullptr);
}

TEST(OpenAiApiTest, TheIdOfAnAnswerIsTheLabelThatTheSchedulerKnows) {
  FakeFrontend frontend(SayBytes("x"));
  ApiServer api(&frontend);
  const Json named = api.PostJson("/v1/completions", R"({"prompt":"a","request_id":"r7"})");
  EXPECT_EQ(named["id"], "cmpl-r7");
  EXPECT_EQ(frontend.requests().back().label, "cmpl-r7");
  const Json drawn = api.PostJson("/v1/chat/completions",
                                  R"({"messages":[{"role":"user","content":"x"}]})");
  const auto id = drawn["id"].get<std::string>();
  EXPECT_EQ(id.find("chatcmpl-"), 0u);
  EXPECT_EQ(id.size(), std::string("chatcmpl-").size() + 32);
  EXPECT_EQ(frontend.requests().back().label, id);
}

TEST(OpenAiApiTest, AsksToComeBackWhenTheQueueIsFull) {
  FakeFrontend frontend;
  frontend.submit_status = absl::ResourceExhaustedError("The queue is full.");
  ApiServer api(&frontend);
  const auto response = api.Post("/v1/completions", R"({"prompt":"a","stream":true})");
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.Header("Retry-After"), "1");
}

TEST(OpenAiApiTest, AnswersDamagedBodiesWith400Or200) {
  FakeFrontend frontend(SayBytes("x"));
  ApiServer api(&frontend);
  Random random(17);
  http::TestClient client(api.port());
  const std::string good =
      R"({"prompt":["a","b"],"logit_bias":{"5":-1.5},"stop":"z","n":2,"logprobs":1,"echo":true,)"
      R"("messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"max_tokens":3})";
  static const std::vector<std::string> kValues = {"null",   "-1",
                                                   "1e999",  "\"\\u0000\"",
                                                   "[[[]]]", "{}",
                                                   "true",   "18446744073709551616",
                                                   "0.5",    "\"\xF0\x9F\x98\x80\""};
  for (int i = 0; i < 3000; ++i) {
    std::string body = good;
    if (random.Below(2) == 0) {
      body[random.Below(body.size())] = static_cast<char>(random.Below(256));
    } else {  // Another value for some key.
      const size_t colon = body.find(':', random.Below(body.size() - 20));
      const size_t end = body.find_first_of(",}", colon);
      body.replace(colon + 1, end - colon - 1, kValues[random.Below(kValues.size())]);
    }
    const auto response =
        client.Post(random.Below(2) == 0 ? "/v1/completions" : "/v1/chat/completions", body);
    ASSERT_TRUE(response.status == 200 || response.status == 400) << response.status << body;
    ASSERT_TRUE(ParseJson(response.body).ok()) << response.body;
  }
}

// Long texts wait here until the test says so, however long that takes.
class HeldTasks {
 public:
  http::Executor executor() {
    return [this](const std::string&, std::function<void()> task) {
      absl::MutexLock lock(&mutex_);
      tasks_.push_back(std::move(task));
    };
  }
  void AwaitTasks(size_t number) {
    absl::MutexLock lock(&mutex_);
    const auto are_here = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return tasks_.size() >= number; };
    mutex_.Await(absl::Condition(&are_here));
    EXPECT_EQ(tasks_.size(), number);
  }
  void RunAll() {
    std::vector<std::function<void()>> tasks;
    {
      absl::MutexLock lock(&mutex_);
      tasks.swap(tasks_);
    }
    for (const auto& task : tasks) task();
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::function<void()>> tasks_;
};

TEST(OpenAiApiTest, LongTextsAreNotInTheWayOfStreamsAndShortPrompts) {
  constexpr int kTokens = 50;
  HeldTasks held;
  FakeFrontend frontend([](uint64_t key, const ValidRequest& request, ResponseSink& sink) {
    if (key > 1) SayBytes("x")(key, request, sink);
  });
  ApiServer api(&frontend, true, {}, held.executor());
  http::TestClient stream(api.port());
  stream.SendPost("/v1/completions", R"({"prompt":"a","stream":true,"max_tokens":50})");
  while (frontend.requests().empty()) {
  }
  const std::string large(64 << 10, 'a');
  const std::vector<std::pair<std::string, std::string>> kLong = {
      {"/v1/completions", R"({"prompt":")" + large + "\"}"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}]})"},
      {"/tokenize", R"({"prompt":"a"})"},
      {"/detokenize", R"({"tokens":[1)" + std::string(4000, ' ') + "]}"}};
  std::vector<std::unique_ptr<http::TestClient>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<http::TestClient>(api.port()));
    clients.back()->SendPost(kLong[i % 4].first, kLong[i % 4].second);
  }
  held.AwaitTasks(20);
  const ValidRequest request = frontend.requests()[0];
  for (int t = 0; t < kTokens; ++t) {
    TokenOutput output = FakeOutput(request, FakeTokenizer::kTheA, 2 + t);
    output.finish = t + 1 == kTokens ? FinishReason::kLength : FinishReason::kNone;
    frontend.sink(1)->OnEvent(ChoiceTokens{0, {output}});
  }
  frontend.sink(1)->OnEvent(RequestEnded{});
  EXPECT_EQ(Events(stream.Read().body).size(), kTokens + 1u);
  EXPECT_EQ(api.Post("/v1/completions", R"({"prompt":"a"})").status, 200);
  EXPECT_EQ(api.Get("/metrics").status, 200);
  held.RunAll();
  for (size_t i = 0; i < clients.size(); ++i) {
    EXPECT_EQ(clients[i]->Read().status, i % 4 == 0 ? 400 : 200) << i;  // Too long for the model.
  }
}

// Each round is one step of the node, a token for every stream, with a health check meanwhile.
TEST(OpenAiApiTest, AnswersHealthWithin50MsBeside64Streams) {
  constexpr int kStreams = 64;
  constexpr int kTokens = 200;
  FakeFrontend frontend;
  ApiServer api(&frontend);
  std::atomic<int> complete{0};
  std::vector<std::jthread> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([&] {
      const auto response =
          api.Post("/v1/completions", R"({"prompt":"a","stream":true,"max_tokens":200})");
      complete += Events(response.body).size() == kTokens + 1;
    });
  }
  while (frontend.requests().size() < kStreams) {
  }
  const ValidRequest request = frontend.requests()[0];
  int slow = 0;
  for (int t = 0; t < kTokens; ++t) {
    for (uint64_t key = 1; key <= kStreams; ++key) {
      TokenOutput output = FakeOutput(request, FakeTokenizer::kTheA, 2 + t);
      output.finish = t + 1 == kTokens ? FinishReason::kLength : FinishReason::kNone;
      frontend.sink(key)->OnEvent(ChoiceTokens{0, {output}});
    }
    const absl::Time start = absl::Now();
    ASSERT_EQ(api.Get("/health").status, 200);
    slow += absl::Now() - start > absl::Milliseconds(50);
  }
  for (uint64_t key = 1; key <= kStreams; ++key) frontend.sink(key)->OnEvent(RequestEnded{});
  clients.clear();
  EXPECT_EQ(complete, kStreams);
  // A machine that runs other tests beside this one may be late once or twice by itself.
  EXPECT_LE(slow, kTokens / 100);
}

}  // namespace
}  // namespace baton
