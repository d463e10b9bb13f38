#include "router/generation/generation_session.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/router/generation/fakes.h"
#include "tests/unit/router/generation/recorder.h"

namespace baton {
namespace {

TEST(GenerationSessionTest, StopsAtAStopStringAndTellsTheNode) {
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

TEST(GenerationSessionTest, GivesOffsetsInCodePointsAfterTheEcho) {
  FakeFrontend frontend(
      SayBytes("\xE2\x82\xAC"
               "x"));
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run = Generate(service, {.prompts = {Prompt(std::string("a\xC3\xA9"))},
                                         .echo = true,
                                         .logprobs = 2,
                                         .prompt_logprobs = 1});
  ASSERT_EQ(run.sink->prompts.size(), 1u);
  const TokenScores& prompt = *run.sink->prompts[0].tokens;
  ASSERT_EQ(prompt.size(), 4u);
  EXPECT_FALSE(prompt[0].has_logprob);
  EXPECT_EQ(prompt[0].chosen.token, FakeTokenizer::kBegin);
  EXPECT_FLOAT_EQ(prompt[2].chosen.logprob, -0.25f);
  EXPECT_EQ(prompt[1].text_offset, 0);
  EXPECT_EQ(prompt[2].text_offset, 1);
  std::vector<int64_t> offsets;
  for (const ChoiceDelta& delta : run.sink->deltas) {
    for (size_t i = 0; i < delta.logprobs.size(); ++i) {
      offsets.push_back(delta.logprobs[i].text_offset);
      EXPECT_EQ(delta.logprobs[i].top.size(), 2u);
    }
  }
  EXPECT_EQ(offsets, (std::vector<int64_t>{2, 2, 2, 3, 4}));
}

TEST(GenerationSessionTest, WaitsForTheScoresOfAPromptBeforeItsTokens) {
  FakeFrontend frontend([](uint64_t, const ValidRequest& request, ResponseSink& sink) {
    TokenOutput output = FakeOutput(request, FakeTokenizer::kTheA, 3);
    output.finish = FinishReason::kLength;
    sink.OnEvent(ChoiceTokens{0, {output}});
    sink.OnEvent(PromptScored{0, {{.position = 1, .token = 99, .logprob = -1}}});
    sink.OnEvent(PromptScored{0, {{.position = 2, .token = 100, .logprob = -2}}});
    sink.OnEvent(RequestEnded{});
  });
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run =
      Generate(service, {.prompts = {Prompt(std::string("ab"))}, .prompt_logprobs = 0});
  EXPECT_EQ(run.sink->prompts.size(), 1u);
  EXPECT_EQ(run.sink->text, (std::vector<std::string>{"the"}));
  EXPECT_TRUE(run.sink->status.ok());
}

TEST(GenerationSessionTest, ReportsAnAnswerThatEndsEarlyAsAnError) {
  FakeFrontend frontend([](uint64_t, const ValidRequest& request, ResponseSink& sink) {
    sink.OnEvent(ChoiceTokens{0, {FakeOutput(request, FakeTokenizer::kTheA, 3)}});
    sink.OnEvent(RequestEnded{});
  });
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run = Generate(service, {.prompts = {Prompt(std::string("ab"))}});
  EXPECT_EQ(run.sink->status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(run.sink->finish[0], FinishReason::kNone);
}

TEST(GenerationSessionTest, CancelsAtTheNodeOnce) {
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

TEST(GenerationSessionTest, IgnoresTokensAfterAStopString) {
  FakeFrontend frontend;
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run = Generate(service, {.prompts = {Prompt(std::string("ab"))}, .stop = {"the"}});
  const ValidRequest request = frontend.requests()[0];
  const auto sink = frontend.sink(1);
  sink->OnEvent(ChoiceTokens{0, {FakeOutput(request, FakeTokenizer::Byte('x'), 3)}});
  sink->OnEvent(ChoiceTokens{0, {FakeOutput(request, FakeTokenizer::kTheA, 4)}});
  sink->OnEvent(ChoiceTokens{0, {FakeOutput(request, FakeTokenizer::Byte('y'), 5)}});
  sink->OnEvent(RequestEnded{});
  EXPECT_EQ(run.sink->text[0], "x");
  EXPECT_EQ(run.sink->usage.completion_tokens, 2);
  EXPECT_TRUE(run.sink->status.ok());
}

TEST(GenerationSessionTest, RunsTheSinkOnTheExecutorOnly) {
  FakeFrontend frontend(SayBytes("x"));
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  std::vector<std::function<void()>> tasks;
  const auto sink = std::make_shared<Recorder>();
  const auto started =
      service.Start(*service.Prepare({.prompts = {Prompt(std::string("ab"))}}), sink,
                    [&](std::function<void()> task) { tasks.push_back(std::move(task)); });
  ASSERT_TRUE(started.ok());
  EXPECT_TRUE(sink->deltas.empty());
  for (const auto& task : tasks) task();
  EXPECT_TRUE(sink->ended);
  EXPECT_EQ(sink->text[0], "x");
}

TEST(GenerationSessionTest, RefusesTokensOfAChoiceThatWasNotAskedFor) {
  FakeFrontend frontend;
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run = Generate(service, {.prompts = {Prompt(std::string("ab"))}});
  const auto sink = frontend.sink(1);
  sink->OnEvent(ChoiceTokens{1, {FakeOutput(frontend.requests()[0], FakeTokenizer::kTheA, 3)}});
  EXPECT_EQ(frontend.cancelled().size(), 1u);
  EXPECT_EQ(run.sink->status.code(), absl::StatusCode::kInternal);
}

TEST(GenerationSessionTest, TellsTheObserverOfEachTokenAndTheEnd) {
  struct Counter : GenerationObserver {
    void OnFirstToken(Duration) override { ++first; }
    void OnNextToken(Duration since_previous) override {
      ++next;
      EXPECT_GT(since_previous, Duration::zero());
    }
    void OnRequestEnd(const absl::Status&, Duration, const Usage& usage) override {
      tokens += usage.completion_tokens;
    }
    void OnRefusal(const absl::Status&) override { ADD_FAILURE(); }
    int first = 0;
    int next = 0;
    int64_t tokens = 0;
  } counter;
  FakeFrontend frontend(SayBytes("xyz"));
  GenerationServiceOptions options = Options();
  options.observer = &counter;
  options.clock = [now = Time{}]() mutable { return now += std::chrono::milliseconds(1); };
  GenerationService service(std::move(options), std::make_shared<FakeTokenizer>(), &frontend);
  Generate(service, {.prompts = {Prompt(std::string("ab"))}});
  EXPECT_EQ(counter.first, 1);
  EXPECT_EQ(counter.next, 3);
  EXPECT_EQ(counter.tokens, 4);
}

}  // namespace
}  // namespace baton
