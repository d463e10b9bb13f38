#include "common/model/model_runner.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(StepPlanTest, TokensGoToTheRowsThatFollow) {
  StepPlan plan;
  plan.rows = {{.sequence = {1, 2}, .tokens = {0}, .emitted = {4}, .num_emitted = 2, .follows = 2},
               {.sequence = {1, 1}, .tokens = {0}, .num_emitted = 2, .follows = 0},
               {.sequence = {1, 3}, .tokens = {0}, .num_emitted = 1, .follows = 1}};
  const auto known = WithTokens(plan, {.status = {}, .tokens = {7, -1, 9}});
  EXPECT_EQ(known->rows[0].tokens, std::vector<int32_t>{9});
  EXPECT_EQ(known->rows[0].emitted, (std::vector<int32_t>{4, 9}));
  EXPECT_EQ(known->rows[1].tokens, std::vector<int32_t>{7});
  EXPECT_TRUE(known->rows[1].emitted.empty());                // No penalty asks for them.
  EXPECT_EQ(known->rows[2].tokens, std::vector<int32_t>{0});  // Its row failed: nobody reads it.
  for (const StepRow& row : known->rows) EXPECT_EQ(row.follows, -1);
}

// A row that has no token fails alone, and so does a step.
TEST(StepPlanTest, AnOutcomeHasATokenOfEachRowThatWasSampled) {
  StepDone done{.step = 3, .status = absl::OkStatus(), .rows = {}};
  done.rows = {{.sampled = true, .output = {.token = 7}}, {.sampled = false}};
  EXPECT_EQ(OutcomeOf(done).tokens, (std::vector<int32_t>{7, -1}));
  done = {.step = 4, .status = absl::InternalError("x"), .rows = {}};
  EXPECT_EQ(OutcomeOf(done).status.message(), "x");
  EXPECT_TRUE(OutcomeOf(done).tokens.empty());
}

TEST(StepPlanTest, AFollowUpIsOneWhoseRowsFollow) {
  StepPlan plan;
  EXPECT_FALSE(IsFollowUp(plan));
  plan.rows = {{.tokens = {1}}};
  EXPECT_FALSE(IsFollowUp(plan));
  plan.rows[0].follows = 0;
  EXPECT_TRUE(IsFollowUp(plan));
}

}  // namespace
}  // namespace baton
