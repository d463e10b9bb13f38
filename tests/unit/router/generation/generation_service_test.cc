#include "router/generation/generation_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "router/error.h"
#include "tests/unit/router/generation/fakes.h"
#include "tests/unit/router/generation/recorder.h"

namespace baton {
namespace {

TEST(GenerationServiceTest, TurnsTextIntoTokensAndTokensIntoText) {
  FakeFrontend frontend(SayBytes("\xE2\x82\xAC and the Lord"));
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run = Generate(service, {.prompts = {Prompt(std::string("ab"))}, .n = 2});
  ASSERT_TRUE(run.sink->ended);
  EXPECT_TRUE(run.sink->status.ok());
  EXPECT_EQ(run.sink->text, (std::vector<std::string>(2, "\xE2\x82\xAC and the Lord")));
  EXPECT_EQ(run.sink->finish, (std::vector<FinishReason>(2, FinishReason::kStop)));
  EXPECT_EQ(run.sink->usage.prompt_tokens, 3);
  EXPECT_EQ(run.sink->usage.completion_tokens, 34);
  EXPECT_EQ(run.sink->usage.cached_tokens, 3);
  EXPECT_EQ(frontend.requests()[0].prompts[0][0], FakeTokenizer::kBegin);
}

absl::Status StatusOf(GenerationService& service, const GenerationRequest& request) {
  absl::StatusOr<PreparedGeneration> prepared = service.Prepare(request);
  if (!prepared.ok()) return prepared.status();
  return service.Start(*std::move(prepared), std::make_shared<Recorder>(), nullptr).status();
}

TEST(GenerationServiceTest, EchoesWithoutAnyWorker) {
  FakeFrontend frontend;
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run =
      Generate(service, {.prompts = {Prompt(std::string("ab")), Prompt(std::string("c"))},
                         .max_tokens = 0,
                         .echo = true});
  EXPECT_TRUE(run.sink->ended);
  EXPECT_EQ(run.sink->finish, (std::vector<FinishReason>(2, FinishReason::kLength)));
  EXPECT_EQ(run.sink->usage.prompt_tokens, 5);
  EXPECT_TRUE(frontend.requests().empty());
}

TEST(GenerationServiceTest, LimitsTheRequestsOfATenantAsAQuota) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.max_requests_per_tenant = 1;
  GenerationService service(std::move(options), std::make_shared<FakeTokenizer>(), &frontend);
  const GenerationRequest request{.tenant = "a", .prompts = {Prompt(std::string("ab"))}};
  const Outcome first = Generate(service, request);
  EXPECT_TRUE(IsQuotaExceeded(StatusOf(service, request)));
  GenerationRequest other = request;
  other.tenant = "b";
  const Outcome third = Generate(service, other);
  first.generation->Cancel();
  const Outcome fourth = Generate(service, request);
  EXPECT_NE(fourth.generation, nullptr);
}

TEST(GenerationServiceTest, NeverCallsTheSinkOfARefusedRequest) {
  FakeFrontend frontend;
  frontend.submit_status = absl::ResourceExhaustedError("full");
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  auto sink = std::make_shared<Recorder>();
  const auto started =
      service.Start(*service.Prepare({.prompts = {Prompt(std::string("ab"))}}), sink, nullptr);
  EXPECT_EQ(started.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(IsQuotaExceeded(started.status()));
  EXPECT_FALSE(sink->ended);
}

TEST(GenerationServiceTest, ServesTokenIdsWithoutATokenizer) {
  FakeFrontend frontend(SayBytes("xy"));
  GenerationService service(Options(), nullptr, &frontend);
  const Outcome run = Generate(service, {.prompts = {Prompt(std::vector<int32_t>{5, 6})}});
  EXPECT_EQ(run.sink->text[0], "");
  EXPECT_EQ(run.sink->usage.completion_tokens, 3);
  EXPECT_EQ(ErrorParam(service.Tokenize(std::string("x"), {}, "prompt").status()), "prompt");
  EXPECT_EQ(ErrorParam(service.Detokenize({1}, "tokens").status()), "tokens");
}

TEST(GenerationServiceTest, DrawsAnotherSeedAndIdEachTime) {
  FakeFrontend frontend;
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const GenerationRequest request{.prompts = {Prompt(std::string("ab"))}};
  EXPECT_NE(service.Prepare(request)->request.sampling.seed,
            service.Prepare(request)->request.sampling.seed);
  EXPECT_NE(service.NewId(), service.NewId());
  EXPECT_EQ(service.NewId().size(), 32u);
}

TEST(GenerationServiceTest, RefusesTextThatCanNeverFitBeforeTokenizing) {
  FakeFrontend frontend;
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const auto prepared = service.Prepare({.prompts = {Prompt(std::string(256 * 256 + 1, 'x'))}});
  EXPECT_EQ(ErrorParam(prepared.status()), "prompt");
  EXPECT_EQ(ErrorCode(prepared.status()), "context_length_exceeded");
  EXPECT_EQ(ErrorParam(service.Prepare({.prompts = {Prompt(std::string("\xFF"))}}).status()),
            "prompt");
}

// Knows how long its tokens are, and counts what it is asked.
class BoundedTokenizer : public FakeTokenizer {
 public:
  explicit BoundedTokenizer(int32_t most) { most_bytes = most; }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool special) const override {
    ++num_encoded;
    return FakeTokenizer::Encode(text, special);
  }
  mutable int num_encoded = 0;
};

TEST(GenerationServiceTest, WhatHasTooManyTokensForSureIsNotTokenized) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.max_model_len = 10;
  const auto tokenizer = std::make_shared<BoundedTokenizer>(3);
  GenerationService service(std::move(options), tokenizer, &frontend);
  const auto refusal = [&](size_t bytes, bool score_only) {
    GenerationRequest request{.prompts = {Prompt(std::string(bytes, 'x'))}};
    if (score_only) request.max_tokens = 0;
    request.echo = score_only;
    tokenizer->num_encoded = 0;
    const absl::Status status = service.Prepare(request).status();
    EXPECT_EQ(ErrorParam(status), "prompt");
    EXPECT_EQ(ErrorCode(status), "context_length_exceeded");
    return std::string(status.message());
  };
  // At most 9 tokens and one to come: 27 bytes may fit, if the tokenizer says so.
  EXPECT_EQ(refusal(27, false),
            "prompt has 28 tokens; this model's maximum context length is 10 "
            "tokens, so it may have at most 9.");
  EXPECT_EQ(tokenizer->num_encoded, 1);
  EXPECT_EQ(refusal(28, false),
            "prompt has at least 10 tokens; this model's maximum context "
            "length is 10 tokens, so it may have at most 9.");
  EXPECT_EQ(tokenizer->num_encoded, 0);
  refusal(30, true);
  EXPECT_EQ(tokenizer->num_encoded, 1) << "nothing is to come";
  EXPECT_EQ(refusal(31, true),
            "prompt has at least 11 tokens; this model's maximum context length "
            "is 10 tokens, so it may have at most 10.");
  EXPECT_EQ(tokenizer->num_encoded, 0);
  // Who only counts tokens is told, and a chat's text is that of its template.
  EXPECT_EQ(service.Tokenize(std::string(31, 'x'), {}, "prompt")->size(), 32u);
  const ChatPrompt chat{.messages_json = std::string(18, 'x')};  // And "assistant:".
  EXPECT_THAT(std::string(service.Prepare({.prompts = {chat}}).status().message()),
              testing::HasSubstr("at least 10 tokens"));
}

TEST(GenerationServiceTest, WhereTokensHaveNoBoundOfBytesAllIsTokenized) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.max_model_len = 10;
  const auto tokenizer = std::make_shared<BoundedTokenizer>(0);
  GenerationService service(std::move(options), tokenizer, &frontend);
  EXPECT_FALSE(service.Prepare({.prompts = {Prompt(std::string(1000, 'x'))}}).ok());
  EXPECT_EQ(tokenizer->num_encoded, 1);
}

TEST(GenerationServiceTest, BoundsAPromptsBytesWhateverItsModelTakes) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.max_prompt_bytes = 10;
  GenerationService service(std::move(options), std::make_shared<FakeTokenizer>(), &frontend);
  EXPECT_TRUE(service.Prepare({.prompts = {Prompt(std::string(10, 'x'))}}).ok());
  const Prompt chat = ChatPrompt{.messages_json = std::string(11, 'x')};
  for (const Prompt& prompt : {Prompt(std::string(11, 'x')), chat}) {
    const absl::Status status = service.Prepare({.prompts = {prompt}}).status();
    EXPECT_EQ(ErrorParam(status), "prompt");
    EXPECT_EQ(ErrorCode(status), "context_length_exceeded");
    EXPECT_NE(status.message().find("never more than 10 bytes"), std::string::npos) << status;
  }
  EXPECT_EQ(ErrorParam(
                service.Prepare({.prompts = {ChatPrompt{.messages_json = "\xFF"}}}).status()),
            "prompt");
}

// Fails as a model's own tokenizer may.
class FailingTokenizer : public FakeTokenizer {
 public:
  explicit FailingTokenizer(absl::Status failure) : failure_(std::move(failure)) {}
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view, bool) const override {
    return failure_;
  }
  absl::StatusOr<std::string> Decode(std::span<const int32_t>, bool) const override {
    return failure_;
  }

 private:
  const absl::Status failure_;
};

TEST(GenerationServiceTest, WhatTheTokenizerRefusesIsAboutTheFieldAndItsFailuresAreOurs) {
  FakeFrontend frontend;
  GenerationService fake(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Prompt refused = ChatPrompt{.messages_json = "refuse me"};
  const absl::Status of_template = fake.Tokenize(refused, {}, "messages").status();
  EXPECT_TRUE(absl::IsInvalidArgument(of_template));
  EXPECT_EQ(ErrorParam(of_template), "messages");
  EXPECT_EQ(of_template.message(), "messages: the template refuses");
  const auto failing = [&](absl::Status failure, auto use) {
    GenerationService service(
        Options(), std::make_shared<FailingTokenizer>(std::move(failure)), &frontend);
    return use(service);
  };
  const auto encode = [](auto& s) { return s.Tokenize(std::string("a"), {}, "prompt").status(); };
  const auto chat = [](auto& s) {
    return s.Tokenize(ChatPrompt{.messages_json = "[]"}, {}, "messages").status();
  };
  const auto decode = [](auto& s) { return s.Detokenize({1}, "tokens").status(); };
  const absl::Status bad = absl::InvalidArgumentError("odd");
  EXPECT_EQ(failing(bad, encode).message(), "prompt: odd");
  EXPECT_EQ(failing(bad, chat).message(), "messages: odd");
  EXPECT_EQ(failing(bad, decode).message(), "tokens: odd");
  EXPECT_EQ(ErrorParam(failing(bad, decode)), "tokens");
  EXPECT_EQ(ErrorParam(failing(InvalidField("own", "odd"), encode)), "own");
  EXPECT_EQ(failing(absl::InternalError("bug"), encode), absl::InternalError("bug"));
}

TEST(GenerationServiceTest, AnEchoOfIdsIsTheirTextAsTheAnswersIs) {
  FakeFrontend frontend;
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  GenerationRequest request{.prompts = {Prompt(std::vector<int32_t>{0, 99})}};
  EXPECT_TRUE(service.Prepare(request)->prompt_texts.empty());
  EXPECT_FALSE(service.Prepare(request)->echo);
  request.echo = true;
  request.stop = {"x"};
  EXPECT_EQ(service.Prepare(request)->prompt_texts, (std::vector<std::string>{"a"}));
  EXPECT_TRUE(service.Prepare(request)->echo);
  EXPECT_TRUE(service.Prepare(request)->skip_special_tokens);
  EXPECT_EQ(service.Prepare(request)->stop, (std::vector<std::string>{"x"}));
  request.skip_special_tokens = false;
  EXPECT_EQ(service.Prepare(request)->prompt_texts, (std::vector<std::string>{"<s>a"}));
  EXPECT_FALSE(service.Prepare(request)->skip_special_tokens);
  GenerationService without(Options(), nullptr, &frontend);
  request.stop.clear();
  EXPECT_EQ(without.Prepare(request)->prompt_texts, (std::vector<std::string>{""}));
}

TEST(GenerationServiceTest, ARefusedRequestHoldsNeitherQuotaNorBytes) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.max_requests_per_tenant = 1;
  GenerationService service(std::move(options), std::make_shared<FakeTokenizer>(), &frontend);
  GenerationRequest request{.tenant = "a", .prompts = {Prompt(std::string("ab"))}};
  request.echo = true;
  const auto start = [&] { return StatusOf(service, request); };
  frontend.submit_status = absl::ResourceExhaustedError("full");
  EXPECT_FALSE(start().ok());
  EXPECT_EQ(service.answer_bytes(), 0);
  frontend.submit_status = absl::OkStatus();
  const Outcome first = Generate(service, request);  // Not in the way of the refused one.
  ASSERT_NE(first.generation, nullptr);
  const int64_t held = service.answer_bytes();
  EXPECT_TRUE(IsQuotaExceeded(start()));
  EXPECT_EQ(service.answer_bytes(), held);
}

TEST(GenerationServiceTest, ATenantsPriorityTokensAndRequestsAreItsLimits) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.tenants["a"] = {.tokens_per_min = 1000, .weight = 5, .max_priority = -2};
  GenerationService service(std::move(options), std::make_shared<FakeTokenizer>(), &frontend);
  GenerationRequest request{.tenant = "a", .prompts = {Prompt(std::vector<int32_t>(10, 1))}};
  request.max_tokens = 20;
  request.n = 2;
  request.priority = -2147483647;
  const auto start = [&] { return StatusOf(service, request); };
  const Outcome first = Generate(service, request);
  for (int i = 1; i < 20; ++i) EXPECT_TRUE(start().ok()) << i;  // 50 tokens each.
  EXPECT_TRUE(IsQuotaExceeded(start()));
  first.generation->Cancel();  // Its prompt may have been computed.
  EXPECT_TRUE(IsQuotaExceeded(start()));
  request.max_tokens = 15;
  EXPECT_TRUE(start().ok());
  EXPECT_TRUE(IsQuotaExceeded(start()));
  EXPECT_EQ(frontend.requests().back().priority, -2);
  EXPECT_EQ(frontend.requests().back().weight, 5);
  request.tenant = "b";
  EXPECT_TRUE(start().ok());
  EXPECT_EQ(frontend.requests().back().priority, 0);
  EXPECT_EQ(frontend.requests().back().weight, 1);
  request.priority = 3;
  EXPECT_TRUE(start().ok());
  EXPECT_EQ(frontend.requests().back().priority, 3);
}

TEST(GenerationServiceTest, PromptsThatAreGivenUpBeforeTheirFirstTokenAreUsed) {
  GenerationServiceOptions options = Options();
  options.tenants["a"] = {.tokens_per_min = 100};
  const absl::Status kUsed[] = {absl::CancelledError("gone"), absl::DeadlineExceededError("late")};
  const absl::Status kRefused[] = {absl::ResourceExhaustedError("full"),
                                   absl::UnavailableError("no worker"),
                                   absl::InvalidArgumentError("too long")};
  const auto started_of_20 = [&](const absl::Status& end) {
    const auto refuse = [&](uint64_t, const ValidRequest&, ResponseSink& sink) {
      sink.OnEvent(RequestEnded{end});
    };
    FakeFrontend frontend(refuse);
    GenerationService service(options, std::make_shared<FakeTokenizer>(), &frontend);
    GenerationRequest request{.tenant = "a", .prompts = {Prompt(std::vector<int32_t>(10, 1))}};
    request.max_tokens = 1;
    int started = 0;
    for (int i = 0; i < 20; ++i) started += StatusOf(service, request).ok() ? 1 : 0;
    return started;
  };
  for (const absl::Status& end : kUsed) EXPECT_EQ(started_of_20(end), 9) << end;
  for (const absl::Status& end : kRefused) EXPECT_EQ(started_of_20(end), 20) << end;
}

// Of every three one finds the inbox full, one is given up by the queue and one is served, until
// a limit is reached: which is by those that were served alone.
TEST(GenerationServiceTest, RefusalsOfAllKindsLeaveEachLimitExact) {
  const TenantLimits kRate{.requests_per_s = 0.001, .burst = 5};
  const TenantLimits kMinute{.tokens_per_min = 5 * 11};
  const TenantLimits kDay{.tokens_per_day = 5 * 11};
  TenantLimits all = kRate;
  all.tokens_per_min = 6 * 11;
  all.tokens_per_day = 7 * 11;
  all.concurrency = 1;
  for (const TenantLimits& limits : {kRate, kMinute, kDay, all}) {
    bool is_given_up = false;
    FakeFrontend frontend([&](uint64_t key, const ValidRequest& request, ResponseSink& sink) {
      if (!is_given_up) return SayBytes("x")(key, request, sink);
      sink.OnEvent(RequestEnded{absl::ResourceExhaustedError("another tenant's goes first")});
    });
    GenerationServiceOptions options = Options();
    options.tenants["a"] = limits;
    GenerationService service(options, std::make_shared<FakeTokenizer>(), &frontend);
    GenerationRequest request{.tenant = "a", .prompts = {Prompt(std::vector<int32_t>(10, 5))}};
    request.max_tokens = 1;
    int served = 0, refused = 0, over = 0;
    for (int i = 0; i < 60; ++i) {
      is_given_up = i % 3 == 1;
      frontend.submit_status =
          i % 3 == 0 ? absl::ResourceExhaustedError("the router is busy") : absl::OkStatus();
      const auto sink = std::make_shared<Recorder>();
      absl::StatusOr<PreparedGeneration> prepared = service.Prepare(request);
      absl::Status status = prepared.status();
      if (status.ok()) status = service.Start(*std::move(prepared), sink, nullptr).status();
      if (status.ok()) status = sink->status;
      ++(status.ok() ? served : IsQuotaExceeded(status) ? over : refused);
    }
    EXPECT_EQ(served, 5);
    EXPECT_EQ(refused, 10);
    EXPECT_EQ(over, 45);
  }
}

TEST(GenerationServiceTest, NoTextIsTokenizedForATenantWithoutQuota) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.tenants["a"] = {.requests_per_s = 0.001, .burst = 1};
  const auto tokenizer = std::make_shared<CountingTokenizer>();
  GenerationService service(std::move(options), tokenizer, &frontend);
  const GenerationRequest request{.tenant = "a", .prompts = {Prompt(std::string("ab"))}};
  EXPECT_TRUE(StatusOf(service, request).ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(IsQuotaExceeded(StatusOf(service, request)));
  EXPECT_EQ(tokenizer->num_texts, 1);
}

TEST(GenerationServiceTest, NoTextIsTokenizedForWhomTheQueueIsFullAndItsEndIsCounted) {
  struct Observer : GenerationObserver {
    void OnFirstToken(Duration) override {}
    void OnNextToken(Duration) override {}
    void OnRequestEnd(const absl::Status&, Duration, const Usage&) override { ++num_ended; }
    void OnRefusal(const absl::Status& status) override {
      num_refused += absl::IsResourceExhausted(status) ? 1 : 0;
    }
    int num_ended = 0, num_refused = 0;
  } observer;
  FakeFrontend frontend;
  frontend.full_for = "a";
  GenerationServiceOptions options = Options();
  options.observer = &observer;
  const auto tokenizer = std::make_shared<CountingTokenizer>();
  GenerationService service(std::move(options), tokenizer, &frontend);
  GenerationRequest request{.tenant = "a", .prompts = {Prompt(std::string("ab"))}};
  EXPECT_TRUE(absl::IsResourceExhausted(service.CheckRoom("a")));
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(service, request)));
  EXPECT_EQ(tokenizer->num_texts, 0);
  EXPECT_EQ(observer.num_refused, 2);
  EXPECT_EQ(observer.num_ended, 0) << "it took no time";
  request.tenant = "b";
  EXPECT_TRUE(StatusOf(service, request).ok());
}

TEST(GenerationServiceTest, ShowsOnlyTheBeginningOfAModelsName) {
  FakeFrontend frontend;
  GenerationService service(Options(), nullptr, &frontend);
  const absl::Status status = service.CheckModel(std::string(10'000, '\xFF'));
  EXPECT_LT(status.message().size(), 1000u);
  EXPECT_TRUE(IsValidUtf8(std::string(status.message())));
}

TEST(GenerationServiceTest, KnowsItsModelOnly) {
  FakeFrontend frontend;
  GenerationService service(Options(), nullptr, &frontend);
  EXPECT_TRUE(service.CheckModel("").ok());
  EXPECT_TRUE(service.CheckModel("tiny").ok());
  const absl::Status status = service.CheckModel("gpt");
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(ErrorParam(status), "model");
  EXPECT_EQ(ErrorCode(status), "model_not_found");
}

TEST(GenerationServiceTest, DetokenizesNoMoreThanTheModelCouldSay) {
  FakeFrontend frontend;
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  EXPECT_EQ(service.Detokenize(std::vector<int32_t>(256, 99), "tokens")->size(), 256u);
  const absl::Status status =
      service.Detokenize(std::vector<int32_t>(257, 99), "tokens").status();
  EXPECT_EQ(ErrorParam(status), "tokens");
}

}  // namespace
}  // namespace baton
