#include "router/generation/answer_budget.h"

#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(AnswerBudgetTest, SharesAreGivenBackWithTheirLastReference) {
  auto budget = std::make_shared<AnswerBudget>(100);
  auto share = budget->NewShare();
  EXPECT_TRUE(share->Grow(60));
  EXPECT_TRUE(share->Grow(40));
  EXPECT_FALSE(share->Grow(1));
  EXPECT_EQ(budget->used(), 100);
  auto kept = share;
  share.reset();
  EXPECT_EQ(budget->used(), 100);
  kept.reset();
  EXPECT_EQ(budget->used(), 0);
}

TEST(AnswerBudgetTest, ATenantTakesNoMoreThanItLeaves) {
  auto budget = std::make_shared<AnswerBudget>(100);
  auto a = budget->NewShare("a"), more_of_a = budget->NewShare("a"), b = budget->NewShare("b");
  EXPECT_TRUE(a->Grow(30));
  EXPECT_FALSE(more_of_a->Grow(21));
  EXPECT_TRUE(more_of_a->Grow(20));
  EXPECT_FALSE(a->Grow(1));
  EXPECT_TRUE(b->Grow(25));
  EXPECT_FALSE(b->Grow(1));
  EXPECT_TRUE(a->Grow(-20));
  EXPECT_FALSE(more_of_a->Grow(8));  // It has 30, and b takes of the rest too.
  EXPECT_TRUE(more_of_a->Grow(7));
  EXPECT_TRUE(budget->NewShare()->Grow(38));  // Of no tenant: all there is.
  a.reset();
  more_of_a.reset();
  b.reset();
  EXPECT_EQ(budget->used(), 0);
}

TEST(AnswerBudgetTest, WhatIsMoreThanItsMostIsToldFromWhatOthersHave) {
  auto budget = std::make_shared<AnswerBudget>(100);
  auto a = budget->NewShare("a"), anybody = budget->NewShare();
  EXPECT_EQ(a->most(), 50);
  EXPECT_EQ(anybody->most(), 100);
  ASSERT_TRUE(anybody->Grow(60));
  EXPECT_FALSE(a->Grow(50));
  EXPECT_FALSE(a->IsTooMuch(50)) << "others have it";
  EXPECT_TRUE(a->IsTooMuch(51));
  EXPECT_FALSE(anybody->IsTooMuch(40));
  EXPECT_TRUE(anybody->IsTooMuch(41));
}

TEST(AnswerBudgetTest, WhoAsksForNothingIsNeverRefused) {
  auto budget = std::make_shared<AnswerBudget>(100);
  auto all = budget->NewShare();
  ASSERT_TRUE(all->Grow(100));
  EXPECT_TRUE(budget->NewShare()->Grow(0));
}

TEST(AnswerBudgetTest, ARefusalOfOneDoesNotRefuseAnother) {
  auto budget = std::make_shared<AnswerBudget>(100);
  std::jthread greedy([&](std::stop_token stop) {
    auto share = budget->NewShare();
    while (!stop.stop_requested()) EXPECT_FALSE(share->Grow(101));
  });
  for (int i = 0; i < 200'000; ++i) {
    auto share = budget->NewShare();
    ASSERT_TRUE(share->Grow(100)) << i;
  }
}

// All that it may, of the free part alone.
void HoldAll(AnswerBudget::Share& share) {
  for (const int64_t step : {1024, 64}) {
    while (share.Hold(step)) {
    }
  }
}

TEST(AnswerBudgetTest, TheFreePartsOfAllAnswersHaveATotalAndOneThatBeginsHasSome) {
  auto budget = std::make_shared<AnswerBudget>(0);
  std::vector<std::shared_ptr<AnswerBudget::Share>> slow;
  for (int i = 0; i < 16384; ++i) {
    slow.push_back(budget->NewShare());
    HoldAll(*slow.back());
    if (i == 0) {
      EXPECT_EQ(budget->free_used(), AnswerBudget::Share::kFreeBytes);
    }
  }
  EXPECT_LE(budget->free_used(), AnswerBudget::kMaxFreeBytes);
  EXPECT_GT(budget->free_used(), AnswerBudget::kMaxFreeBytes / 2);
  auto prompt = budget->NewShare();
  for (int token = 0; token < 1000; ++token) {
    ASSERT_TRUE(prompt->Hold(200)) << token;
    ASSERT_TRUE(prompt->Hold(-200));
  }
  slow.clear();
  prompt.reset();
  EXPECT_EQ(budget->free_used(), 0);
  EXPECT_EQ(budget->used(), 0);
}

TEST(AnswerBudgetTest, WhatIsHeldBeyondTheFreePartIsChargedAndGivenBackFirst) {
  auto budget = std::make_shared<AnswerBudget>(1000);
  auto share = budget->NewShare();
  const int64_t free = AnswerBudget::Share::kFreeBytes;
  ASSERT_TRUE(share->Hold(free + 600));
  EXPECT_EQ(budget->used(), 600);
  EXPECT_EQ(budget->free_used(), free);
  EXPECT_FALSE(share->Hold(401));
  EXPECT_EQ(budget->used(), 600) << "nothing taken";
  EXPECT_TRUE(share->Hold(-700));
  EXPECT_EQ(budget->used(), 0);
  EXPECT_EQ(budget->free_used(), free - 100);
}

}  // namespace
}  // namespace baton
