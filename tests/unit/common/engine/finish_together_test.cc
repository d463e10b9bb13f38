// Engine: sequences that leave their last token for each other.
#include "common/engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/engine/engine_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;

class FinishTogetherTest : public EngineHarness {
 protected:
  void SetUp() override { Create({.chunk_tokens = 8, .finish_together = 3}, 64); }

  std::unique_ptr<Sequence> Together(CallId call, int32_t length, uint64_t group = 7) {
    auto sequence = Prompt(call, length);
    sequence->finish_group = group;
    sequence->prefill_only = true;
    return sequence;
  }
  // The next step's calls and lengths are these; it then ends.
  void ExpectStep(std::vector<CallId> calls, std::vector<int32_t> lengths) {
    const StepPlan* plan = Start();
    ASSERT_NE(plan, nullptr);
    EXPECT_EQ(Calls(*plan), calls);
    EXPECT_EQ(Lengths(*plan), lengths);
    Finish();
  }
};

TEST_F(FinishTogetherTest, AloneItFinishesWithItsLastChunk) {
  engine_->Add(Together(1, 11));
  ExpectStep({1}, {8});
  ExpectStep({1}, {3});
  EXPECT_EQ(Start(), nullptr);
}

TEST_F(FinishTogetherTest, TheOlderOneWaitsAndBothSampleInOneStep) {
  engine_->Add(Together(1, 6));
  engine_->Add(Together(2, 9));
  ExpectStep({1, 2}, {5, 3});
  ExpectStep({2, 1}, {6, 1});  // All that is left fits into a step.
  EXPECT_EQ(engine_->num_running(), 0u);
}

TEST_F(FinishTogetherTest, NobodyWaitsOnceAsManyAsTheOptionSaysCanFinish) {
  for (CallId call = 1; call <= 4; ++call) engine_->Add(Together(call, 4));
  engine_->Add(Together(5, 30));
  ExpectStep({1, 2, 3}, {3, 3, 2});
  ExpectStep({3, 4, 1, 2}, {2, 4, 1, 1});
  ExpectStep({5}, {8});
}

TEST_F(FinishTogetherTest, OneIsNobody) {
  Create({.chunk_tokens = 8, .finish_together = 1}, 64);
  engine_->Add(Together(1, 10));
  engine_->Add(Together(2, 30));
  ExpectStep({1}, {8});
  ExpectStep({1, 2}, {2, 6});
}

TEST_F(FinishTogetherTest, NobodyWaitsForLongerThanEightTimesItsOwnTokens) {
  engine_->Add(Together(1, 2));
  engine_->Add(Together(2, 60));
  ExpectStep({1, 2}, {1, 7});  // The first waits from here on.
  ExpectStep({2}, {8});
  ExpectStep({2}, {8});  // 16 in all; another 8 would be too many.
  ExpectStep({2, 1}, {7, 1});
}

TEST_F(FinishTogetherTest, WhenOneHasWaitedForAsLongAsItMayItsWholeGroupFinishes) {
  engine_->Add(Together(1, 2));
  engine_->Add(Together(2, 10));
  engine_->Add(Together(3, 60));
  ExpectStep({1, 2}, {1, 7});
  ExpectStep({2, 3}, {2, 6});
  ExpectStep({3}, {8});
  ExpectStep({3, 1, 2}, {6, 1, 1});
}

TEST_F(FinishTogetherTest, WhatACacheHasGivenIsNotItsOwn) {
  Create({.chunk_tokens = 16, .finish_together = 3}, 64);
  auto cached = Together(1, 41);
  cached->num_computed = 40;
  pool_->Seal(cached->blocks, "t", std::span(cached->tokens).first(40));
  engine_->Add(std::move(cached));
  engine_->Add(Together(2, 20));
  engine_->Add(Together(3, 60));
  ExpectStep({2, 1}, {15, 1});
  ExpectStep({2, 3}, {4, 12});  // The others go on.
}

TEST_F(FinishTogetherTest, GroupsDoNotWaitForEachOther) {
  engine_->Add(Together(1, 6, 7));
  engine_->Add(Together(2, 60, 8));
  ExpectStep({1, 2}, {6, 2});
}

TEST_F(FinishTogetherTest, WhoIsToFinishAloneDoes) {
  engine_->Add(Together(1, 6));
  engine_->Add(Together(2, 60));
  ExpectStep({1, 2}, {5, 3});
  engine_->FinishAlone(1);
  ExpectStep({2, 1}, {7, 1});
}

TEST_F(FinishTogetherTest, AFailedStepEndsItsRowsAndWhoWaitsGoesOn) {
  engine_->Add(Together(1, 6));
  engine_->Add(Together(2, 60));
  ExpectStep({1, 2}, {5, 3});
  const StepPlan* plan = Start();
  ASSERT_EQ(Calls(*plan), std::vector<CallId>{2});
  engine_->OnStepDone({.step = plan->step, .status = absl::InternalError("x")}, now_);
  ExpectStep({1}, {1});
}

TEST_F(FinishTogetherTest, NobodyWaitsUntilItsDeadlineIsNear) {
  auto first = Together(1, 6);
  first->wait_until = now_ + 2 * kStepTime;
  engine_->Add(std::move(first));
  engine_->Add(Together(2, 60));
  ExpectStep({1, 2}, {5, 3});
  ExpectStep({2}, {8});
  ExpectStep({2, 1}, {7, 1});
}

TEST_F(FinishTogetherTest, WhoseDeadlineIsNearBeforeItWaitedHurriesNobody) {
  auto late = Together(3, 40);
  late->wait_until = now_;
  engine_->Add(Together(1, 4));
  engine_->Add(Together(2, 60));
  engine_->Add(std::move(late));
  ExpectStep({1, 2}, {3, 5});
  ExpectStep({2}, {8});  // The first still waits for the second.
}

TEST_F(FinishTogetherTest, ThoseThatFillTheStepToItsLastTokenFinishInIt) {
  for (CallId call = 1; call <= 2; ++call) engine_->Add(Together(call, 4));
  ExpectStep({1, 2}, {4, 4});
}

TEST_F(FinishTogetherTest, WhoIsNotHereCannotFinishAlone) {
  engine_->FinishAlone(9);
  EXPECT_EQ(Start(), nullptr);
}

TEST_F(FinishTogetherTest, OthersNeitherWaitNorAreWaitedFor) {
  engine_->Add(Together(1, 6));
  engine_->Add(Prompt(2, 12));
  engine_->Add(Decoding(3, 4));
  ExpectStep({1, 2, 3}, {6, 1, 1});
}

TEST_F(FinishTogetherTest, WhoIsCancelledIsNotWaitedFor) {
  engine_->Add(Together(1, 6));
  engine_->Add(Together(2, 60));
  ExpectStep({1, 2}, {5, 3});
  EXPECT_NE(engine_->Remove(2), nullptr);
  ExpectStep({1}, {1});
}

TEST_F(FinishTogetherTest, WhoWaitsCanBeCancelled) {
  engine_->Add(Together(1, 6));
  engine_->Add(Together(2, 12));
  ExpectStep({1, 2}, {5, 3});
  EXPECT_NE(engine_->Remove(1), nullptr);
  ExpectStep({2}, {8});
  ExpectStep({2}, {1});
}

TEST_F(FinishTogetherTest, StepsOfOneTokenGoOn) {
  Create({.chunk_tokens = 1, .finish_together = 8}, 64);
  engine_->Add(Together(1, 2));
  engine_->Add(Together(2, 2));
  int32_t steps = 0;
  while (Start() != nullptr) {
    Finish();
    ASSERT_LE(++steps, 4);
  }
  EXPECT_EQ(steps, 4);
}

}  // namespace
}  // namespace baton
