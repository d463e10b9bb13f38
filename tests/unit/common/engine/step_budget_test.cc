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
  budget.Record(1, milliseconds(1000));  // Small, but too slow already.
  EXPECT_EQ(budget.tokens(), 1);
}

TEST(StepBudgetTest, AFastSmallStepTellsNothing) {
  StepBudget budget(milliseconds(250), 2048);
  budget.Record(31, milliseconds(1));
  EXPECT_EQ(budget.tokens(), 64);
}

TEST(StepBudgetTest, NeverLeavesOneToCap) {
  StepBudget budget(milliseconds(250), 100);
  budget.Record(64, milliseconds(1));
  EXPECT_EQ(budget.tokens(), 100);
  budget.Record(100, std::chrono::hours(1));
  EXPECT_EQ(budget.tokens(), 1);
  budget.Record(0, milliseconds(1));
  budget.Record(1, Duration(0));
  EXPECT_EQ(budget.tokens(), 1);
}

}  // namespace
}  // namespace baton
