// A call of a router that has no prefill worker: the prompt is computed here.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/decode_worker/decode_node_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::Pair;
using Code = absl::StatusCode;

class OwnPromptTest : public DecodeNodeHarness {
 protected:
  explicit OwnPromptTest(int32_t window = 0) : DecodeNodeHarness(window) {}
  void Compute(CallId call, int32_t length, int32_t max_tokens = 8) {
    DecodeRequest request = Request(call, length, max_tokens);
    request.prefill = 0;
    request.compute_prompt = true;
    Open(call, std::move(request));
  }
  void FinishStepAfter(Duration took) {
    now_ += took;
    FinishStep();
  }
};

class OwnPromptInAWindowTest : public OwnPromptTest {
 protected:
  OwnPromptInAWindowTest() : OwnPromptTest(/*window=*/10) {}
};

TEST_F(OwnPromptTest, IsComputedFromItsStartWithoutATransfer) {
  Compute(1, 10);
  EXPECT_EQ(outbox_.Closed(1), std::nullopt);
  ASSERT_EQ(outbox_.Events<TokensEvent>(1).size(), 1u) << "says at once that it has it";
  EXPECT_TRUE(outbox_.Events<TokensEvent>(1)[0].outputs.empty());
  EXPECT_EQ(outbox_.Events<TokensEvent>(1)[0].cached_tokens, 0);
  EXPECT_TRUE(outbox_.Events<ReservedEvent>(1).empty());
  EXPECT_TRUE(transport_.expected.empty());
  EXPECT_EQ(runner_.plans[0]->rows[0].context_len, 0);
  FinishStep();      // A chunk is 8 tokens.
  FinishStep(56);
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(10, 56)));
  EXPECT_EQ(node_.counters().computed_here, 1);
  EXPECT_EQ(node_.counters().joined, 0);
}

TEST_F(OwnPromptTest, OfOneTokenEndsWithIt) {
  Compute(1, 5, /*max_tokens=*/1);
  FinishStep(56);
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(5, 56)));
  EXPECT_EQ(outbox_.Closed(1), Code::kOk);
  EXPECT_TRUE(node_.idle());
}

TEST_F(OwnPromptTest, WhatIsHereIsToldAndNotComputedAgain) {
  Compute(1, 10, 1);
  FinishStep();
  FinishStep();
  ASSERT_EQ(outbox_.Closed(1), Code::kOk);
  DecodeRequest again = Request(1, 10, 1);
  again.prefill = 0;
  again.compute_prompt = true;
  again.attempt = 2;
  Open(2, std::move(again));
  EXPECT_EQ(runner_.plans.back()->rows[0].context_len, 8);
  FinishStep();
  const auto events = outbox_.Events<TokensEvent>(2);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].cached_tokens, 8);
  EXPECT_EQ(events[1].cached_tokens, 0) << "once";
}

// Nothing is measured yet: one at a time.
TEST_F(OwnPromptTest, IsRefusedBehindAnotherOfUnknownLength) {
  Compute(1, 10);
  Compute(2, 10);
  EXPECT_EQ(outbox_.Closed(2), Code::kResourceExhausted);
  EXPECT_EQ(node_.counters().refused, 1);
  FinishStep();
  FinishStep();  // The first one decodes.
  Compute(3, 10);
  EXPECT_EQ(outbox_.Closed(3), std::nullopt);
}

TEST_F(OwnPromptTest, IsTakenBehindThoseThatTakeHalfASecondTogether) {
  Compute(1, 8, 1);
  FinishStepAfter(std::chrono::milliseconds(250));  // 8 tokens: 32 in a second, 16 in a half.
  Compute(2, 9);
  Compute(3, 8);
  EXPECT_EQ(outbox_.Closed(3), Code::kResourceExhausted) << "17 tokens";
  Compute(4, 7);
  EXPECT_EQ(outbox_.Closed(4), std::nullopt) << "16 tokens";
}

TEST_F(OwnPromptTest, OfLessThanAStepIsTakenAsLongAsAllTogetherAreOne) {
  Compute(1, 3);
  Compute(2, 5);
  EXPECT_EQ(outbox_.Closed(2), std::nullopt) << "8 tokens";
  Compute(3, 5);
  EXPECT_EQ(outbox_.Closed(3), Code::kResourceExhausted);
}

TEST_F(OwnPromptTest, DoesNotWaitForYoungerOnes) {
  now_ += std::chrono::seconds(10);
  Compute(1, 10);
  const auto ask = [&](CallId call, Duration age) {
    DecodeRequest request = Request(call, 10, 8);
    request.prefill = 0;
    request.compute_prompt = true;
    request.age = age;
    Open(call, std::move(request));
    return outbox_.Closed(call);
  };
  // Each is opened a second later.
  EXPECT_EQ(ask(2, std::chrono::seconds(1)), Code::kResourceExhausted) << "as old";
  EXPECT_EQ(ask(3, std::chrono::seconds(3)), std::nullopt);
  EXPECT_EQ(ask(4, std::chrono::seconds(3)), Code::kResourceExhausted) << "behind the third";
  FinishStep();
  EXPECT_EQ(runner_.plans.back()->rows[0].sequence.counter, 3u) << "the oldest first";
}

TEST_F(OwnPromptTest, IsRefusedWithoutBlocks) {
  Run(1, 30, 8);
  Compute(2, 12);
  EXPECT_EQ(outbox_.Closed(2), Code::kResourceExhausted);
  EXPECT_EQ(node_.counters().computed_here, 0);
}

TEST_F(OwnPromptTest, ACancelEndsIt) {
  Compute(1, 10);
  Handle(CallBroken{1});
  FinishStep();
  EXPECT_TRUE(node_.idle());
  EXPECT_EQ(pool_.counts().free + pool_.counts().cached, 10);
}

TEST_F(OwnPromptInAWindowTest, HoldsBlocksOfTheWholePrompt) {
  Compute(1, 30);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(runner_.plans.back()->rows[0].context_len, 8 * i);
    FinishStep();
  }
  FinishStep(56);
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(30, 56)));
}

}  // namespace
}  // namespace baton
