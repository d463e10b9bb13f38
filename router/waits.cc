#include "router/waits.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton {

using State = SequenceState::State;

Duration Waits::LimitOf(State state) const {
  if (state == State::kQueued) return options_.hold_limit;
  return state == State::kPrefilling ? options_.verdict_limit : options_.answer_limit;
}

void Waits::Await(SequenceState& sequence, Time now) {
  BATON_CHECK(sequence.state != State::kQueued && sequence.state != State::kDecoding);
  sequence.wait.act_by_ = now + LimitOf(sequence.state);
  Rewatch(sequence);
}

void Waits::Clear(SequenceState& sequence) {
  sequence.wait.act_by_ = kNever;
  sequence.wait.hold_until_ = kNever;
  Rewatch(sequence);
}

void Waits::AwaitTurn(SequenceState& sequence, Time now) {
  BATON_CHECK(sequence.state == State::kQueued);
  SequenceWait& wait = sequence.wait;
  if (!sequence.Holds()) {
    wait.hold_until_ = kNever;
  } else if (wait.hold_until_ == kNever) {
    wait.hold_until_ = now + options_.hold_limit;
  }
  wait.act_by_ = wait.hold_until_;
  Rewatch(sequence);
}

void Waits::Restart(SequenceState& sequence, Time now) {
  SequenceWait& wait = sequence.wait;
  wait.last_progress_ = now;
  if (wait.hold_until_ != kNever) wait.hold_until_ = now + options_.hold_limit;
  if (wait.act_by_ != kNever) wait.act_by_ = now + LimitOf(sequence.state);
  if (wait.watch_at_ != kNever) Rewatch(sequence);
}

Waits::Due Waits::Check(SequenceState& sequence, Time moved, Time now) {
  const SequenceWait& wait = sequence.wait;
  BATON_CHECK(wait.watch_at_ <= now);
  if (wait.act_by_ <= now) return Due::kOverdue;
  BATON_CHECK(sequence.state != State::kQueued);
  const Time give_up = std::max(moved, wait.last_progress_) + options_.no_progress_limit;
  if (give_up <= now) return Due::kSilent;
  BATON_CHECK(give_up != kNever);  // Or nobody's time would run.
  Watch(sequence, std::min(wait.act_by_, give_up));
  return Due::kNothing;
}

void Waits::Watch(SequenceState& sequence, Time at) {
  watches_.Clear(sequence.id.counter, sequence.wait.watch_at_);
  sequence.wait.watch_at_ = at;
  if (at != kNever) watches_.Set(sequence.id.counter, at);
}

void Waits::Rewatch(SequenceState& sequence) {
  const SequenceWait& wait = sequence.wait;
  const bool is_queued = sequence.state == State::kQueued;
  const Time silent = is_queued ? kNever : wait.last_progress_ + options_.no_progress_limit;
  Watch(sequence, std::min(wait.act_by_, silent));
}

}  // namespace baton
