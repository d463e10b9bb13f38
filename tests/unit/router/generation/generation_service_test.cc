#include "router/generation/generation_service.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "router/generation/error.h"
#include "tests/unit/router/generation/fakes.h"

namespace baton {
namespace {

// Keeps what it hears.
class Recorder : public GenerationSink {
 public:
  void OnPrompt(PromptLogprobs prompt) override {
    EXPECT_FALSE(ended);
    prompts.push_back(std::move(prompt));
  }
  void OnDelta(ChoiceDelta delta) override {
    EXPECT_FALSE(ended);
    const auto choice = static_cast<size_t>(delta.choice);
    text.resize(std::max(text.size(), choice + 1));
    finish.resize(text.size());
    EXPECT_EQ(finish[choice], FinishReason::kNone);
    text[choice] += delta.text;
    finish[choice] = delta.finish;
    deltas.push_back(std::move(delta));
  }
  void OnEnd(const absl::Status& s, const Usage& u) override {
    EXPECT_FALSE(ended);
    ended = true;
    status = s;
    usage = u;
  }

  std::vector<PromptLogprobs> prompts;
  std::vector<ChoiceDelta> deltas;
  std::vector<std::string> text;
  std::vector<FinishReason> finish;
  bool ended = false;
  absl::Status status;
  Usage usage;
};

GenerationServiceOptions Options() {
  GenerationServiceOptions options{.model_name = "tiny"};
  options.limits.max_model_len = 256;
  options.limits.vocab_size = FakeTokenizer::kSize;
  return options;
}

struct Outcome {
  std::shared_ptr<Recorder> sink = std::make_shared<Recorder>();
  std::shared_ptr<Generation> generation;
};

Outcome Generate(GenerationService& service, const GenerationRequest& request) {
  Outcome run;
  auto prepared = service.Prepare(request);
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  auto started = service.Start(*std::move(prepared), run.sink, nullptr);
  EXPECT_TRUE(started.ok()) << started.status();
  run.generation = started.value_or(nullptr);
  return run;
}

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

TEST(GenerationServiceTest, StopsAtAStopStringAndTellsTheNode) {
  FakeFrontend frontend(SayBytes("and the Lord said"));
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run =
      Generate(service, {.prompts = {Prompt(std::string("ab"))}, .stop = {"Lord", "never"}});
  EXPECT_EQ(run.sink->text[0], "and the ");
  EXPECT_EQ(run.sink->finish[0], FinishReason::kStop);
  EXPECT_EQ(run.sink->deltas.back().stop_string, "Lord");
  EXPECT_EQ(run.sink->usage.completion_tokens, 12);
  EXPECT_EQ(frontend.stopped(), (std::set<std::pair<uint64_t, int32_t>>{{1, 0}}));
  EXPECT_TRUE(run.sink->status.ok());
}

TEST(GenerationServiceTest, GivesOffsetsInCodePointsAfterTheEcho) {
  FakeFrontend frontend(
      SayBytes("\xE2\x82\xAC"
               "x"));
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run = Generate(service, {.prompts = {Prompt(std::string("a\xC3\xA9"))},
                                         .echo = true,
                                         .logprobs = 2,
                                         .prompt_logprobs = 1});
  ASSERT_EQ(run.sink->prompts.size(), 1u);
  const auto& prompt = run.sink->prompts[0].tokens;
  ASSERT_EQ(prompt.size(), 4u);
  EXPECT_FALSE(prompt[0].has_logprob);
  EXPECT_EQ(prompt[0].chosen.text, "<s>");
  EXPECT_FLOAT_EQ(prompt[2].chosen.logprob, -0.25f);
  EXPECT_EQ(prompt[1].text_offset, 0);
  EXPECT_EQ(prompt[2].text_offset, 1);
  std::vector<int64_t> offsets;
  for (const ChoiceDelta& delta : run.sink->deltas) {
    for (const TokenLogprobs& token : delta.logprobs) {
      offsets.push_back(token.text_offset);
      EXPECT_EQ(token.top.size(), 2u);
    }
  }
  EXPECT_EQ(offsets, (std::vector<int64_t>{2, 2, 2, 3, 4}));
}

TEST(GenerationServiceTest, WaitsForTheScoresOfAPromptBeforeItsTokens) {
  FakeFrontend frontend([](uint64_t, const ValidRequest& request, ResponseSink& sink) {
    TokenOutput output = FakeOutput(request, FakeTokenizer::kTheA, 3);
    output.finish = FinishReason::kLength;
    sink.OnEvent(ChoiceTokens{0, {output}});
    sink.OnEvent(PromptScored{0, {{.position = 1, .token = 5, .logprob = -1}}});
    sink.OnEvent(RequestEnded{});
  });
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run =
      Generate(service, {.prompts = {Prompt(std::string("ab"))}, .prompt_logprobs = 0});
  EXPECT_EQ(run.sink->prompts.size(), 1u);
  EXPECT_EQ(run.sink->text, (std::vector<std::string>{"the"}));
  EXPECT_TRUE(run.sink->status.ok());
}

TEST(GenerationServiceTest, ReportsAnAnswerThatEndsEarlyAsAnError) {
  FakeFrontend frontend([](uint64_t, const ValidRequest& request, ResponseSink& sink) {
    sink.OnEvent(ChoiceTokens{0, {FakeOutput(request, FakeTokenizer::kTheA, 3)}});
    sink.OnEvent(RequestEnded{});
  });
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run = Generate(service, {.prompts = {Prompt(std::string("ab"))}});
  EXPECT_EQ(run.sink->status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(run.sink->finish[0], FinishReason::kNone);
}

TEST(GenerationServiceTest, CancelsAtTheNodeOnce) {
  FakeFrontend frontend;
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run = Generate(service, {.prompts = {Prompt(std::string("ab"))}});
  EXPECT_FALSE(run.sink->ended);
  run.generation->Cancel();
  run.generation->Cancel();
  EXPECT_EQ(frontend.cancelled(), (std::set<uint64_t>{1}));
  EXPECT_TRUE(run.sink->ended);
  EXPECT_TRUE(absl::IsCancelled(run.sink->status));
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
  const auto second =
      service.Start(*service.Prepare(request), std::make_shared<Recorder>(), nullptr);
  EXPECT_TRUE(IsQuotaExceeded(second.status()));
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

}  // namespace
}  // namespace baton
