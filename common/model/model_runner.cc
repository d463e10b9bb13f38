#include "common/model/model_runner.h"

#include <utility>

#include "common/base/check.h"

namespace baton {

int32_t CountTokens(const StepPlan& plan) {
  size_t num_tokens = 0;
  for (const StepRow& row : plan.rows) num_tokens += row.tokens.size();
  return static_cast<int32_t>(num_tokens);
}

StepOutcome OutcomeOf(const StepDone& done) {
  StepOutcome outcome{.status = done.status, .tokens = {}};
  for (const RowResult& row : done.rows) {
    outcome.tokens.push_back(row.sampled ? row.output.token : -1);
  }
  return outcome;
}

std::shared_ptr<const StepPlan> WithTokens(const StepPlan& follow_up, const StepOutcome& before) {
  auto plan = std::make_shared<StepPlan>(follow_up);
  for (StepRow& row : plan->rows) {
    const int32_t followed = std::exchange(row.follows, -1);
    BATON_CHECK(followed >= 0 && followed < std::ssize(before.tokens));
    const int32_t token = before.tokens[followed];
    if (token < 0) continue;  // Nobody reads what comes of a row that failed.
    row.tokens = {token};
    if (std::ssize(row.emitted) + 1 == row.num_emitted) row.emitted.push_back(token);
  }
  return plan;
}

}  // namespace baton
