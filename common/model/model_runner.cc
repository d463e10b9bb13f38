#include "common/model/model_runner.h"

#include <utility>

#include "common/base/check.h"

namespace baton {

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
