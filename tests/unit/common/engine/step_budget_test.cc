#include "common/engine/step_budget.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

TEST(StepBudgetTest, StartsSmallAndWithinTheCap) {
  EXPECT_EQ(StepBudget(milliseconds(250), 2048).tokens(), 64);
  EXPECT_EQ(StepBudget(milliseconds(250), 16).tokens(), 16);
}

TEST(StepBudgetTest, GrowsWithTheMeasuredRateButAtMostDoubles) {
  StepBudget budget(milliseconds(250), 2048);
  budget.Record(64, milliseconds(200));
  EXPECT_EQ(budget.tokens(), 80);
  budget.Record(80, milliseconds(1));
  EXPECT_EQ(budget.tokens(), 160);
}

TEST(StepBudgetTest, ShrinksWhenAStepWasTooSlow) {
  StepBudget budget(milliseconds(250), 2048);
  budget.Record(64, milliseconds(500));
  EXPECT_EQ(budget.tokens(), 32);
  budget.Record(64, milliseconds(250));
  EXPECT_EQ(budget.tokens(), 64);
  budget.Record(1, milliseconds(1000));  // Small, but too slow already.
  EXPECT_EQ(budget.tokens(), 32);
}

TEST(StepBudgetTest, AFastSmallStepTellsNothing) {
  StepBudget budget(milliseconds(250), 2048);
  budget.Record(31, milliseconds(1));
  EXPECT_EQ(budget.tokens(), 64);
}

TEST(StepBudgetTest, StepsThatTakeTooLongHoweverSmallDoNotShrinkToNothing) {
  StepBudget budget(milliseconds(250), 2048);
  for (int i = 0; i < 20; ++i) budget.Record(budget.tokens(), milliseconds(300));
  EXPECT_EQ(budget.tokens(), 32);
}

TEST(StepBudgetTest, TheRateFollowsStepsThatTell) {
  StepBudget budget(milliseconds(250), 1000);
  EXPECT_EQ(budget.rate(), 0);
  budget.Record(64, milliseconds(64));
  EXPECT_NEAR(budget.rate(), 1000, 1e-6);
  budget.Record(1, milliseconds(100));  // A small step within the budget tells nothing.
  EXPECT_NEAR(budget.rate(), 1000, 1e-6);
  budget.Record(128, milliseconds(64));
  EXPECT_NEAR(budget.rate(), 1250, 1e-6);
  for (int i = 0; i < 50; ++i) budget.Record(250, milliseconds(125));
  EXPECT_NEAR(budget.rate(), 2000, 1);
}

TEST(StepBudgetTest, ASmallStepThatWasTooSlowShrinksStepsAndNotTheRate) {
  StepBudget budget(milliseconds(250), 1000);
  budget.Record(64, milliseconds(64));
  EXPECT_EQ(budget.tokens(), 128);
  budget.Record(40, milliseconds(500));
  EXPECT_EQ(budget.tokens(), 32);
  EXPECT_NEAR(budget.rate(), 1000, 1e-6);
  EXPECT_NEAR(budget.least_rate(), 1000, 1e-6);
}

TEST(StepBudgetTest, TheFastestSmallStepIsTheLeastRateUntilALargerOneTells) {
  StepBudget budget(milliseconds(250), 1000);
  EXPECT_EQ(budget.least_rate(), 0);
  budget.Record(10, milliseconds(10));
  budget.Record(10, milliseconds(100));
  EXPECT_NEAR(budget.least_rate(), 1000, 1e-6);
  EXPECT_EQ(budget.rate(), 0);
  budget.Record(64, milliseconds(128));
  EXPECT_NEAR(budget.least_rate(), 500, 1e-6);
  EXPECT_NEAR(budget.rate(), 500, 1e-6);
}

TEST(StepBudgetTest, NeverLeavesItsRange) {
  StepBudget budget(milliseconds(250), 100);
  budget.Record(64, milliseconds(1));
  EXPECT_EQ(budget.tokens(), 100);
  budget.Record(100, std::chrono::hours(1));
  EXPECT_EQ(budget.tokens(), 32);
  budget.Record(0, milliseconds(1));
  budget.Record(1, Duration(0));
  EXPECT_EQ(budget.tokens(), 32);
  StepBudget narrow(milliseconds(250), 8);
  narrow.Record(8, std::chrono::hours(1));
  EXPECT_EQ(narrow.tokens(), 8);
}

}  // namespace
}  // namespace baton
