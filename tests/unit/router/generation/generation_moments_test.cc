// What may happen to an answer at each of its moments: before the node's key is known, in the
// middle of an event, after its end.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/router/generation/fakes.h"
#include "tests/unit/router/generation/recorder.h"

namespace baton {
namespace {

using Stops = std::set<std::pair<uint64_t, int32_t>>;

GenerationRequest TextRequest() { return {.prompts = {Prompt(std::string("ab"))}}; }

// Counts what the node is told.
class CountingFrontend : public FakeFrontend {
 public:
  using FakeFrontend::FakeFrontend;
  void Cancel(uint64_t request) override {
    ++num_cancels;
    if (!keeps_silent) FakeFrontend::Cancel(request);
  }
  int num_cancels = 0;
  bool keeps_silent = false;
};

class GenerationMomentsTest : public testing::Test {
 protected:
  TokenOutput Output(int32_t token, int32_t position, FinishReason finish = FinishReason::kNone) {
    TokenOutput output = FakeOutput(frontend_.requests().back(), token, position);
    output.finish = finish;
    return output;
  }
  static int32_t Byte(char c) { return FakeTokenizer::Byte(static_cast<unsigned char>(c)); }
  std::shared_ptr<ResponseSink> Node() { return frontend_.sink(1); }

  CountingFrontend frontend_;
  GenerationService service_{Options(), std::make_shared<FakeTokenizer>(), &frontend_};
};

TEST_F(GenerationMomentsTest, ADefectBeforeTheKeyIsKnownCancelsOnceItIs) {
  CountingFrontend frontend([](uint64_t, const ValidRequest& request, ResponseSink& sink) {
    sink.OnEvent(ChoiceTokens{3, {FakeOutput(request, FakeTokenizer::kTheA, 3)}});
  });
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run = Generate(service, TextRequest());
  EXPECT_EQ(frontend.num_cancels, 1);
  EXPECT_TRUE(run.sink->ended);
  EXPECT_EQ(run.sink->status.code(), absl::StatusCode::kInternal);
}

TEST_F(GenerationMomentsTest, WhoeverCancelsAgainTellsTheNodeNothing) {
  frontend_.keeps_silent = true;
  const Outcome run = Generate(service_, TextRequest());
  run.generation->Cancel();
  run.generation->Cancel();
  EXPECT_EQ(frontend_.num_cancels, 1);
}

TEST_F(GenerationMomentsTest, AStopStringFoundAfterTheKeyIsKnownIsToldOnce) {
  GenerationRequest request = TextRequest();
  request.stop = {"the"};
  const Outcome run = Generate(service_, request);
  Node()->OnEvent(ChoiceTokens{0, {Output(FakeTokenizer::kTheA, 3)}});
  EXPECT_EQ(frontend_.stopped(), (Stops{{1, 0}}));
}

TEST_F(GenerationMomentsTest, AStopStringInTheLastTokenIsNoNewsForTheNode) {
  GenerationRequest request = TextRequest();
  request.stop = {"the"};
  const Outcome run = Generate(service_, request);
  Node()->OnEvent(ChoiceTokens{0, {Output(FakeTokenizer::kTheA, 3, FinishReason::kLength)}});
  EXPECT_EQ(run.sink->finish[0], FinishReason::kStop);
  EXPECT_TRUE(frontend_.stopped().empty());
}

TEST_F(GenerationMomentsTest, TokensBehindAStopStringOfTheSameEventDoNotCount) {
  GenerationRequest request = TextRequest();
  request.stop = {"the"};
  const Outcome run = Generate(service_, request);
  Node()->OnEvent(ChoiceTokens{
      0, {Output(Byte('x'), 3), Output(FakeTokenizer::kTheA, 4), Output(Byte('y'), 5)}});
  EXPECT_EQ(run.sink->text[0], "x");
  EXPECT_EQ(run.sink->usage.completion_tokens, 0);  // Told at the end.
  ASSERT_EQ(run.sink->deltas.size(), 1u);
  EXPECT_EQ(run.sink->deltas[0].tokens, (std::vector<int32_t>{Byte('x'), FakeTokenizer::kTheA}));
  Node()->OnEvent(RequestEnded{});
  EXPECT_EQ(run.sink->usage.completion_tokens, 2);
}

TEST_F(GenerationMomentsTest, AStopStringMayBeginInOneTokenAndEndInAnother) {
  GenerationRequest request = TextRequest();
  request.stop = {"xthey"};
  const Outcome run = Generate(service_, request);
  Node()->OnEvent(ChoiceTokens{0, {Output(Byte('a'), 3), Output(Byte('x'), 4)}});
  EXPECT_EQ(run.sink->text[0], "a");  // What may become the stop string is held back.
  Node()->OnEvent(ChoiceTokens{0, {Output(FakeTokenizer::kTheA, 5)}});
  EXPECT_EQ(run.sink->text[0], "a");
  Node()->OnEvent(ChoiceTokens{0, {Output(Byte('z'), 6), Output(Byte('x'), 7)}});
  EXPECT_EQ(run.sink->text[0], "axthez");
  Node()->OnEvent(ChoiceTokens{0, {Output(FakeTokenizer::kTheB, 8), Output(Byte('y'), 9)}});
  EXPECT_EQ(run.sink->text[0], "axthez");
  EXPECT_EQ(run.sink->deltas.back().stop_string, "xthey");
}

TEST_F(GenerationMomentsTest, ACharacterCutByTheEndIsReplacedAndOneCutByATokenIsNot) {
  const Outcome run = Generate(service_, TextRequest());
  Node()->OnEvent(ChoiceTokens{0, {Output(FakeTokenizer::kEuroHead, 3)}});
  EXPECT_EQ(run.sink->text[0], "");
  Node()->OnEvent(ChoiceTokens{0, {Output(Byte('\xAC'), 4)}});
  EXPECT_EQ(run.sink->text[0], "\xE2\x82\xAC");
  Node()->OnEvent(
      ChoiceTokens{0, {Output(FakeTokenizer::kEuroHead, 5, FinishReason::kLength)}});
  EXPECT_EQ(run.sink->text[0], "\xE2\x82\xAC\xEF\xBF\xBD");
}

TEST_F(GenerationMomentsTest, ChoicesAreNumberedByPromptAndKeepTheirTextApart) {
  GenerationRequest request;
  request.prompts = {Prompt(std::string("ab")), Prompt(std::string("c"))};
  request.n = 2;
  const Outcome run = Generate(service_, request);
  for (const int32_t choice : {3, 0, 2, 1}) {
    const int32_t token = Byte(static_cast<char>('0' + choice));
    Node()->OnEvent(ChoiceTokens{choice, {Output(token, 3, FinishReason::kLength)}});
    EXPECT_EQ(run.sink->deltas.back().prompt, choice / 2);
  }
  Node()->OnEvent(RequestEnded{});
  EXPECT_EQ(run.sink->text, (std::vector<std::string>{"0", "1", "2", "3"}));
  EXPECT_TRUE(run.sink->status.ok());
  EXPECT_EQ(run.sink->usage.completion_tokens, 4);
  EXPECT_EQ(run.sink->usage.prompt_tokens, 3 + 2);  // Each prompt once, with its first token.
}

TEST_F(GenerationMomentsTest, OneChoiceThatHasNotEndedMakesTheEndADefect) {
  GenerationRequest request = TextRequest();
  request.n = 2;
  const Outcome run = Generate(service_, request);
  Node()->OnEvent(ChoiceTokens{0, {Output(Byte('x'), 3, FinishReason::kLength)}});
  Node()->OnEvent(RequestEnded{});
  EXPECT_EQ(run.sink->status.code(), absl::StatusCode::kInternal);
}

TEST_F(GenerationMomentsTest, TheLastTokenNamesTheStopTokenOnlyIfItWasAskedFor) {
  for (const bool asked : {true, false}) {
    FakeFrontend frontend;
    GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
    GenerationRequest request = TextRequest();
    request.stop_token_ids = {asked ? Byte('x') : Byte('z')};
    const Outcome run = Generate(service, request);
    TokenOutput output = FakeOutput(frontend.requests()[0], Byte('x'), 3);
    output.finish = FinishReason::kStop;
    frontend.sink(1)->OnEvent(ChoiceTokens{0, {output}});
    ASSERT_EQ(run.sink->deltas.size(), 1u);
    EXPECT_EQ(run.sink->deltas[0].stop_token,
              asked ? std::optional<int32_t>(Byte('x')) : std::nullopt);
    EXPECT_EQ(run.sink->text[0], "");  // The token that ends it is not shown.
  }
}

TEST_F(GenerationMomentsTest, EventsThatNameNothingThatWasAskedForAreDefects) {
  std::vector<ClientEvent> bad;
  for (const int32_t choice : {-1, 1}) bad.push_back(ChoiceTokens{choice, {}});
  for (const int32_t prompt : {-1, 1}) bad.push_back(PromptScored{prompt, {}});
  for (const ClientEvent& event : bad) {
    FakeFrontend frontend;
    GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
    const Outcome run = Generate(service, TextRequest());
    frontend.sink(1)->OnEvent(event);
    EXPECT_EQ(frontend.cancelled().size(), 1u);
    EXPECT_EQ(run.sink->status.code(), absl::StatusCode::kInternal);
  }
}

TEST_F(GenerationMomentsTest, AfterADefectNothingMoreIsTold) {
  frontend_.keeps_silent = true;
  const Outcome run = Generate(service_, TextRequest());
  Node()->OnEvent(ChoiceTokens{7, {}});
  Node()->OnEvent(ChoiceTokens{0, {Output(Byte('x'), 3)}});
  EXPECT_TRUE(run.sink->deltas.empty());
  Node()->OnEvent(RequestEnded{});
  EXPECT_EQ(run.sink->status.code(), absl::StatusCode::kInternal);
}

TEST_F(GenerationMomentsTest, AfterTheEndNothingIsToldAndTheSinkIsLetGo) {
  Outcome run = Generate(service_, TextRequest());
  const auto node = Node();
  node->OnEvent(ChoiceTokens{0, {}});  // Nothing in it, nothing said.
  EXPECT_TRUE(run.sink->deltas.empty());
  node->OnEvent(RequestEnded{absl::UnavailableError("gone")});
  node->OnEvent(RequestEnded{});
  node->OnEvent(ChoiceTokens{0, {Output(Byte('x'), 3)}});
  EXPECT_TRUE(absl::IsUnavailable(run.sink->status));
  const std::weak_ptr<Recorder> sink = run.sink;
  run.sink.reset();
  EXPECT_TRUE(sink.expired());
}

TEST_F(GenerationMomentsTest, DigestsAndLogprobsComeOnlyWhenAskedFor) {
  for (const bool asked : {true, false}) {
    FakeFrontend frontend;
    GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
    GenerationRequest request = TextRequest();
    if (asked) request.logprobs = 0;
    request.logits_digests = asked;
    const Outcome run = Generate(service, request);
    TokenOutput output = FakeOutput(frontend.requests()[0], Byte('x'), 3);
    output.logits_digest = 42;
    frontend.sink(1)->OnEvent(ChoiceTokens{0, {output}});
    ASSERT_EQ(run.sink->deltas.size(), 1u);
    EXPECT_EQ(run.sink->deltas[0].logprobs.size(), asked ? 1u : 0u);
    EXPECT_EQ(run.sink->deltas[0].logits_digests,
              asked ? std::vector<uint64_t>{42} : std::vector<uint64_t>{});
  }
}

}  // namespace
}  // namespace baton
