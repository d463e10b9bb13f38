// What answers hold of the router's memory until their readers have them, and what asks for more.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "router/error.h"
#include "router/generation/generation_service.h"
#include "tests/unit/router/generation/fakes.h"
#include "tests/unit/router/generation/recorder.h"

namespace baton {
namespace {

TEST(AnswersHeldTest, AnswersHoldNoMoreThanTheyMayUntilTheirReadersHaveThem) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.max_answer_bytes = 3 * 100 * TokenScores::BytesPerToken(1);
  GenerationService service(options, std::make_shared<FakeTokenizer>(), &frontend);
  GenerationRequest request{.prompts = {Prompt(std::vector<int32_t>(100, 5))}};
  request.prompt_logprobs = 1;
  std::vector<Outcome> held;
  for (int i = 0; i < 3; ++i) held.push_back(Generate(service, request));
  EXPECT_EQ(service.answer_bytes(), options.limits.max_answer_bytes);
  const auto refused = [&] { return service.Prepare(request).status(); };
  EXPECT_TRUE(absl::IsResourceExhausted(refused()));
  EXPECT_FALSE(IsQuotaExceeded(refused()));
  EXPECT_TRUE(Generate(service, {.prompts = {Prompt(std::vector<int32_t>(100, 5))}}).generation);
  // It has ended, but its reader does not have it yet.
  held[0].generation->Cancel();
  EXPECT_TRUE(held[0].sink->ended);
  EXPECT_TRUE(absl::IsResourceExhausted(refused()));
  held[0].sink.reset();
  EXPECT_TRUE(refused().ok());
  held.clear();
}

// Counts what it decodes.
class DecodeCounter : public FakeTokenizer {
 public:
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids, bool skip) const override {
    decoded += static_cast<int64_t>(ids.size());
    return FakeTokenizer::Decode(ids, skip);
  }
  mutable int64_t decoded = 0;
};

TEST(AnswersHeldTest, AnEchoThatMayNotBeHeldIsNotMade) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.max_answer_bytes = 1000;
  const auto tokenizer = std::make_shared<DecodeCounter>();
  GenerationService service(options, tokenizer, &frontend);
  const Prompt prompt(std::vector<int32_t>(200, FakeTokenizer::kTheA));  // 600 bytes of text.
  GenerationRequest request{.prompts = {prompt}};
  request.echo = true;
  {
    const auto prepared = service.Prepare(request);
    ASSERT_TRUE(prepared.ok());
    EXPECT_EQ(service.answer_bytes(), 600) << "held from here on";
    EXPECT_TRUE(absl::IsResourceExhausted(service.Prepare(request).status()));
    EXPECT_EQ(tokenizer->decoded, 200) << "of the first request";
  }
  EXPECT_EQ(service.answer_bytes(), 0);
  request.prompts = {prompt, prompt, prompt};
  EXPECT_TRUE(absl::IsInvalidArgument(service.Prepare(request).status()));
  EXPECT_EQ(tokenizer->decoded, 400) << "of the first of three prompts";
  EXPECT_EQ(service.answer_bytes(), 0);
}

// Whoever asked again would ask in vain.
TEST(AnswersHeldTest, AnAnswerThatIsLargerThanAllThereIsIsRefusedForGood) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.max_answer_bytes = 1000;
  GenerationService service(options, std::make_shared<FakeTokenizer>(), &frontend);
  const auto refused = [&](const GenerationRequest& request, absl::string_view param) {
    const absl::Status status = service.Prepare(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(ErrorParam(status), param);
    const std::string most = request.tenant.empty() ? "at most 1000" : "at most 500";
    EXPECT_NE(status.message().find(most), std::string::npos) << status;
  };
  const Prompt ids(std::vector<int32_t>(200, FakeTokenizer::kTheA));  // 600 bytes of text.
  GenerationRequest echo{.prompts = {ids, ids}};
  echo.echo = true;
  refused(echo, "echo");
  echo.prompts = std::vector<Prompt>(5, Prompt(std::string(250, 'a')));
  refused(echo, "echo");
  echo.prompts = {ids};
  EXPECT_TRUE(service.Prepare(echo).ok());
  echo.tenant = "a";
  refused(echo, "echo");
  GenerationRequest scores{.prompts = {Prompt(std::vector<int32_t>(100, 5))}};
  scores.prompt_logprobs = 1;
  refused(scores, "prompt_logprobs");
  scores = {.prompts = {Prompt(std::string("ab"))}};
  scores.logprobs_param = "top_logprobs";
  scores.logprobs = 1;
  scores.max_tokens = 1000 / TokenScores::BytesPerToken(1) + 1;
  refused(scores, "top_logprobs");
  scores.max_tokens = 1000 / TokenScores::BytesPerToken(1);
  EXPECT_TRUE(service.Prepare(scores).ok());
  GenerationRequest with_ids{.prompts = std::vector<Prompt>(2, std::vector<int32_t>(125, 5))};
  with_ids.returns_prompt_ids = true;
  EXPECT_EQ(service.Prepare(with_ids)->answer_bytes, 1000);
  with_ids.prompts.push_back(std::vector<int32_t>(1, 5));
  refused(with_ids, "return_token_ids");
  EXPECT_EQ(service.answer_bytes(), 0);
}

TEST(AnswersHeldTest, AnEchoCountsAsItIsAndNotAsItsTokensAre) {
  FakeFrontend frontend;
  GenerationService service(Options(), std::make_shared<FakeTokenizer>(), &frontend);
  GenerationRequest request{.prompts = {Prompt(std::vector<int32_t>(10, FakeTokenizer::kEnd))}};
  request.echo = true;
  EXPECT_EQ(service.Prepare(request)->answer_bytes, 0);
  request.skip_special_tokens = false;
  EXPECT_EQ(service.Prepare(request)->answer_bytes, 40);
  request.prompts = {Prompt(std::vector<int32_t>(10, FakeTokenizer::Byte(0xff)))};
  const auto prepared = service.Prepare(request);
  EXPECT_EQ(prepared->answer_bytes, 30);
  EXPECT_EQ(service.answer_bytes(), 30);
}

TEST(AnswersHeldTest, CountsWhatAnAnswerWillHold) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  GenerationService service(options, std::make_shared<FakeTokenizer>(), &frontend);
  GenerationRequest request{.prompts = {Prompt(std::string("ab"))}};
  EXPECT_EQ(service.Prepare(request)->answer_bytes, 0);
  request.echo = true;
  EXPECT_EQ(service.Prepare(request)->answer_bytes, 2);
  request.echo = false;
  request.logprobs = 4;
  EXPECT_EQ(service.Prepare(request)->answer_bytes, 0);
  EXPECT_TRUE(service.Prepare(request)->counts_tokens);
  request.max_tokens = 10;
  request.n = 3;
  EXPECT_EQ(service.Prepare(request)->answer_bytes, 30 * TokenScores::BytesPerToken(4));
  EXPECT_FALSE(service.Prepare(request)->counts_tokens);
}

TEST(AnswersHeldTest, TokensOfAnOpenEndCountAsTheyCome) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.max_answer_bytes = 2 * TokenScores::BytesPerToken(1);
  GenerationService service(options, std::make_shared<FakeTokenizer>(), &frontend);
  GenerationRequest request{.prompts = {Prompt(std::string("ab"))}};
  request.logprobs = 1;
  const Outcome run = Generate(service, request);
  const ValidRequest valid = frontend.requests()[0];
  const auto sink = frontend.sink(1);
  for (int32_t i = 0; i < 2; ++i) {
    sink->OnEvent(ChoiceTokens{0, {FakeOutput(valid, FakeTokenizer::kTheA, 3 + i)}});
  }
  EXPECT_EQ(service.answer_bytes(), options.limits.max_answer_bytes);
  EXPECT_FALSE(run.sink->ended);
  const Outcome other = Generate(service, request);
  frontend.sink(2)->OnEvent(ChoiceTokens{0, {FakeOutput(valid, FakeTokenizer::kTheA, 3)}});
  EXPECT_TRUE(other.sink->ended);
  EXPECT_TRUE(absl::IsResourceExhausted(other.sink->status)) << "the first has it all";
  sink->OnEvent(ChoiceTokens{0, {FakeOutput(valid, FakeTokenizer::kTheA, 5)}});
  EXPECT_TRUE(run.sink->ended);
  EXPECT_TRUE(absl::IsInvalidArgument(run.sink->status)) << "nobody else has any";
  EXPECT_EQ(ErrorParam(run.sink->status), "max_tokens");
}

// Their own part of each answer is free; beyond it they share what there is.
TEST(AnswersHeldTest, TokensThatWaitForTheirReaderCountBeyondTheFirst) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.max_answer_bytes = 10 * HeldBytes(1, 3);
  GenerationService service(options, std::make_shared<FakeTokenizer>(), &frontend);
  const Outcome run = Generate(service, {.prompts = {Prompt(std::string("ab"))}});
  const ValidRequest valid = frontend.requests()[0];
  const auto sink = frontend.sink(1);
  int32_t num_tokens = 0;
  const auto say = [&] {
    sink->OnEvent(ChoiceTokens{0, {FakeOutput(valid, FakeTokenizer::kTheA, 3 + num_tokens++)}});
  };
  const int64_t free_tokens = AnswerBudget::Share::kFreeBytes / HeldBytes(1, 3);
  while (num_tokens < free_tokens) say();
  EXPECT_EQ(service.answer_bytes(), 0);
  while (num_tokens < free_tokens + 10) say();
  EXPECT_GT(service.answer_bytes(), 9 * HeldBytes(1, 3));
  EXPECT_FALSE(run.sink->ended);
  for (int i = 0; i < 2; ++i) say();
  EXPECT_TRUE(run.sink->ended);
  EXPECT_TRUE(absl::IsResourceExhausted(run.sink->status)) << run.sink->status;
}

// They are written when all log probabilities of their prompt have come, which may be sought again.
TEST(AnswersHeldTest, TokensThatWaitForThoseOfTheirPromptCountToo) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.max_answer_bytes = 4000;
  options.tenants["a"] = {.requests_per_s = 0.001, .burst = 2};
  GenerationService service(options, std::make_shared<FakeTokenizer>(), &frontend);
  GenerationRequest request{.tenant = "a", .prompts = {Prompt(std::string("ab"))}};
  request.prompt_logprobs = 0;
  const int64_t reserved = service.Prepare(request)->answer_bytes;
  std::vector<Outcome> runs{Generate(service, request), Generate(service, request)};
  const ValidRequest valid = frontend.requests()[0];
  int32_t num_tokens = 0;
  const auto say = [&](int run) {
    const TokenOutput output = FakeOutput(valid, FakeTokenizer::kTheA, 3 + num_tokens++);
    frontend.sink(run)->OnEvent(ChoiceTokens{0, {output}});
  };
  constexpr int64_t kBytes = sizeof(ChoiceTokens) + sizeof(TokenOutput);
  while (num_tokens < AnswerBudget::Share::kFreeBytes / kBytes) say(1);
  EXPECT_EQ(service.answer_bytes(), 2 * reserved);
  for (int i = 0; i < 10; ++i) say(1);
  EXPECT_GT(service.answer_bytes(), 2 * reserved + 9 * kBytes);
  EXPECT_TRUE(runs[0].sink->deltas.empty());
  PromptScored scored;
  for (int32_t p = 1; p < 3; ++p) {
    scored.logprobs.push_back({.position = p, .token = valid.prompts[0][p]});
  }
  frontend.sink(1)->OnEvent(scored);
  EXPECT_EQ(std::ssize(runs[0].sink->deltas), num_tokens);
  EXPECT_LT(service.answer_bytes(), 2 * reserved + kBytes) << "given back";
  num_tokens = 0;
  while (!runs[1].sink->ended && num_tokens < 10'000) say(2);
  ASSERT_TRUE(runs[1].sink->ended);
  EXPECT_TRUE(absl::IsResourceExhausted(runs[1].sink->status)) << runs[1].sink->status;
  EXPECT_TRUE(IsQuotaExceeded(service.CheckRoom("a"))) << "it was computed, so it is no refusal";
}

TEST(AnswersHeldTest, ATenantLeavesOthersAsMuchAsItTakes) {
  FakeFrontend frontend;
  GenerationServiceOptions options = Options();
  options.limits.max_answer_bytes = 4 * TokenScores::BytesPerToken(1);
  GenerationService service(options, std::make_shared<FakeTokenizer>(), &frontend);
  GenerationRequest request{.prompts = {Prompt(std::string("ab"))}};
  request.logprobs = 1;
  request.max_tokens = 2;
  request.tenant = "a";
  const auto first = service.Prepare(request);
  ASSERT_TRUE(first.ok()) << first.status();
  request.max_tokens = 1;
  EXPECT_TRUE(absl::IsResourceExhausted(service.Prepare(request).status()));
  request.tenant = "b";
  EXPECT_TRUE(service.Prepare(request).ok());
}

// What a reader has taken is another's to have.
TEST(AnswersHeldTest, AShareShrinksToNothing) {
  const auto budget = std::make_shared<AnswerBudget>(1000);
  const auto share = budget->NewShare(), other = budget->NewShare();
  constexpr int64_t kFree = AnswerBudget::Share::kFreeBytes;
  EXPECT_TRUE(share->Grow(100));
  EXPECT_TRUE(share->Hold(kFree));
  EXPECT_EQ(budget->used(), 100);
  EXPECT_TRUE(share->Hold(900));
  EXPECT_EQ(budget->used(), 1000);
  EXPECT_FALSE(share->Hold(1));
  EXPECT_TRUE(other->Hold(kFree));
  EXPECT_FALSE(other->Hold(1));
  EXPECT_TRUE(share->Hold(-200));
  EXPECT_EQ(budget->used(), 800);
  EXPECT_TRUE(other->Hold(200));
  EXPECT_TRUE(share->Hold(-kFree - 700));
  EXPECT_EQ(budget->used(), 300);
}

}  // namespace
}  // namespace baton
