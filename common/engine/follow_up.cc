// Of Engine: a second step behind the one that runs.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/engine/engine.h"

namespace baton {

// The step in front runs from now on.
void Engine::PredictFollowUp(Time now) {
  BATON_CHECK(in_flight_.size() == 1);
  InFlight& first = in_flight_.front();
  first.began = now;
  const bool wanted = options_.steps_in_flight > 1 && IsDecode(*first.plan);
  follow_up_due_ = wanted ? std::max(now, now + last_decode_ - options_.follow_up_lead) : kNever;
}

bool Engine::IsDecode(const StepPlan& plan) {
  return plan.swap_in.empty() && plan.swap_out.empty() && plan.copies.empty() &&
         std::ranges::all_of(
             plan.rows, [](const StepRow& row) { return row.sample && row.tokens.size() == 1; });
}

// Nobody is passed over.
bool Engine::MayFollow(const InFlight& first) const {
  return preempted_.empty() && running_.size() + removed_.size() == first.calls.size();
}

// The time of a follow-up is that between two pieces of mail: the first may have come late, which
// says nothing of the step.
void Engine::Record(const InFlight& step, bool is_ok, Duration took) {
  const StepPlan& plan = *step.plan;
  const bool tells = !IsFollowUp(plan) || took >= last_decode_ / 2;
  if (IsDecode(plan)) last_decode_ = std::max(took, last_decode_ / 2);
  if (!is_ok || !tells || plan.rows.empty()) return;
  budget_.Record(CountTokens(plan), took);
  own_budget_.Record(step.own_tokens, took);
}

// Whatever the token is.
bool Engine::EndsWithNext(const Sequence& sequence) const {
  constexpr int32_t kNoToken = -1;
  const SamplingParams& params = sequence.sampling->params;
  const FinishReason reason = FinishAfter(params, {}, kNoToken, sequence.num_emitted() + 1);
  return sequence.prefill_only || reason != FinishReason::kNone;
}

void Engine::StartFollowUp() {
  BATON_CHECK(in_flight_.size() == 1);
  const InFlight& first = in_flight_.front();
  if (!MayFollow(first)) return;
  struct Next {
    Sequence* sequence;
    int32_t row;
    int32_t missing;
  };
  std::vector<Next> rows;
  int32_t needed = 0;
  for (size_t i = 0; i < first.calls.size(); ++i) {
    const auto key = keys_.find(first.calls[i]);
    if (key == keys_.end()) continue;
    Sequence& sequence = *running_.at(key->second);
    if (EndsWithNext(sequence)) continue;
    if (sequence.is_long != IsLong(sequence.num_tokens() + 1)) return;  // Computed again first.
    const int32_t entries = allocator_.BlocksFor(sequence.num_tokens() + 1);
    const int32_t missing = std::max(0, entries - sequence.blocks.size());
    needed += allocator_.BlocksToGrow(sequence.blocks, missing);
    rows.push_back({&sequence, static_cast<int32_t>(i), missing});
  }
  if (rows.empty() || needed > allocator_.num_available()) return;
  auto plan = std::make_shared<StepPlan>();
  InFlight step;
  for (const Next& next : rows) {
    BATON_CHECK(next.missing == 0 || allocator_.Grow(next.sequence->blocks, next.missing));
    plan->rows.push_back(MakeFollowing(*next.sequence, next.row));
    step.calls.push_back(next.sequence->call);
  }
  BATON_CHECK(step.calls.size() <= first.calls.size());
  Launch(std::move(plan), std::move(step));
}

// Of what the step in flight samples the row knows nothing but where it is.
StepRow Engine::MakeFollowing(const Sequence& sequence, int32_t row) const {
  StepRow next;
  next.sequence = sequence.id;
  next.tokens = {0};
  next.follows = row;
  next.context_len = sequence.num_tokens();
  const int32_t entries = allocator_.BlocksFor(next.context_len + 1);
  BATON_CHECK(sequence.blocks.size() >= entries);
  next.block_table = sequence.blocks.Flat(entries);
  // What goes back when the step in flight has ended: no query of this row sees it.
  for (int32_t g = 0; g < allocator_.num_groups(); ++g) {
    const int32_t passed =
        TokensLeftOut(allocator_.windows()[g], next.context_len) / allocator_.block_size();
    std::fill_n(next.block_table.begin() + g * entries, std::min(passed, entries), -1);
  }
  next.sample = true;
  next.sampling = sequence.sampling;
  next.is_long = sequence.is_long;
  next.num_emitted = sequence.num_emitted() + 1;
  if (NeedsHistory(sequence.sampling->params)) {
    next.emitted.assign(sequence.tokens.begin() + sequence.prompt_length, sequence.tokens.end());
  }
  return next;
}

}  // namespace baton
