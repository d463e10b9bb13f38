// The part of RouterNode that goes on when a worker, a call or a transfer is lost. What is lost is
// dropped; a side that is left is held for a moment while the other is sought again.
#include <algorithm>
#include <utility>

#include "router/node.h"

namespace baton {

// ---- Losses ------------------------------------------------------------------------------------

void RouterNode::AddLoss(SequenceState& sequence, const Side& side, absl::Status why, Time now) {
  const auto is_same = [&](const Loss& loss) { return loss.incarnation == side.incarnation; };
  if (std::ranges::any_of(sequence.losses, is_same)) return;
  sequence.losses.push_back({.worker = side.worker,
                             .incarnation = side.incarnation,
                             .status = std::move(why),
                             .at = now});
}

void RouterNode::LoseDecode(SequenceState& sequence, absl::Status why, Time now) {
  Drop(sequence.decode);
  AddLoss(sequence, sequence.decode, std::move(why), now);
  Enqueue(sequence, now);
}

void RouterNode::LosePrefill(SequenceState& sequence, absl::Status why, Time now) {
  Drop(sequence.prefill);
  if (sequence.state == State::kDecoding) return;  // A score that is owed is sought at the end.
  AddLoss(sequence, sequence.prefill, std::move(why), now);
  const bool awaits_answer =
      sequence.state == State::kReserving || sequence.state == State::kRebinding;
  // The reservation that is on its way decides; nothing was asked of a prefill worker yet.
  if (awaits_answer && sequence.act_by != kNever) return;
  Enqueue(sequence, now);
}

// Waits for its turn. Losses are judged after a moment, when what is known of the worker has come.
void RouterNode::Enqueue(SequenceState& sequence, Time now) {
  EndRecovering(sequence);
  for (Side* side : {&sequence.prefill, &sequence.decode}) {
    if (side->call == 0) ReleaseTokens(*side);
  }
  sequence.state = State::kQueued;
  sequence.queued_since = now;
  Unqueue(sequence);
  (Holds(sequence) ? holders_ : queue_).insert(KeyOf(sequence));
  sequence.ready_at = sequence.losses.empty() ? now : now + options_.judge_delay;
  if (!Holds(sequence)) {
    sequence.hold_until = kNever;
  } else if (sequence.hold_until == kNever) {
    sequence.hold_until = now + options_.hold_limit;
  }
  sequence.act_by = sequence.hold_until;
  Rewatch(sequence);
}

void RouterNode::Unqueue(const SequenceState& sequence) {
  queue_.erase(KeyOf(sequence));
  holders_.erase(KeyOf(sequence));
}

// Was the worker lost, or did it fail although it is healthy? The first is a move, the second a
// retry with a budget. A worker whose call broke is healthy once it was heard of again, over the
// connection of the call.
RouterNode::Verdict RouterNode::Judge(SequenceState& sequence, Time now) {
  while (!sequence.losses.empty()) {
    const Loss& loss = sequence.losses.back();
    const WorkerDirectory::Worker& worker = directory_.at(loss.worker);
    const bool is_up = directory_.IsUp(loss.worker, loss.incarnation) && !worker.status.draining &&
                       worker.up_since <= loss.at;  // Else its connection was lost with the call.
    const bool may_be_down = absl::IsUnavailable(loss.status) || absl::IsCancelled(loss.status) ||
                             absl::IsDataLoss(loss.status);
    if (is_up && may_be_down && worker.last_status <= loss.at) {
      sequence.ready_at = now + options_.judge_delay;
      return Verdict::kWait;
    }
    const bool in_bounds = is_up ? ++sequence.retries <= options_.max_retries && retry_credit_ >= 1
                                 : ++sequence.moves <= options_.max_moves;
    if (!in_bounds) {
      // To a client it is all the same how the workers were lost; a bug of theirs is not.
      Fail(sequence, absl::IsInternal(loss.status) ? absl::Status(loss.status)
                                                   : absl::UnavailableError(loss.status.message()));
      return Verdict::kFailed;
    }
    ++(is_up ? counters_.retries : counters_.moves);
    if (is_up) {
      retry_credit_ -= 1;
      directory_.Skip(loss.worker, now + options_.retry_delay);
    }
    sequence.lost.push_back(loss.incarnation);
    sequence.losses.pop_back();
  }
  return Verdict::kGoOn;
}

void RouterNode::FenceHungWorkers(Time now) {
  for (int32_t w = 0; w < static_cast<int32_t>(directory_.workers().size()); ++w) {
    if (directory_.HungAt(w) > now) continue;
    directory_.MarkHung(w, now);
    ++counters_.hung_workers;
    for (auto& [counter, sequence] : sequences_) {
      const absl::Status why = absl::UnavailableError("a worker stopped making progress");
      if (sequence.decode.call != 0 && sequence.decode.worker == w) LoseDecode(sequence, why, now);
      if (sequence.prefill.call != 0 && sequence.prefill.worker == w) {
        LosePrefill(sequence, why, now);
      }
    }
  }
}

// ---- Failed handoffs ---------------------------------------------------------------------------

void RouterNode::RebindTo(SequenceState& sequence, Incarnation prefill, Time now) {
  ++(prefill != 0 ? counters_.rebinds : counters_.self_prefills);
  sequence.state = State::kRebinding;
  Await(sequence, now);
  outbox_.Rebind(
      sequence.decode.call,
      RebindRequest{.sequence = sequence.id, .attempt = sequence.attempt, .prefill = prefill});
}

// The link between two workers failed, or is believed to have: the pair is blamed, not the workers.
// The same pair once more, then another worker on one side, then the decode worker computes the
// prompt itself. A decode worker that has the KV answers each Rebind with tokens.
void RouterNode::OnHandoffFailed(SequenceState& sequence, Time now) {
  if (sequence.state != State::kPrefilling || sequence.decode.call == 0) {
    ++counters_.stale_mail;
    return;
  }
  sequence.act_by = kNever;
  ++counters_.handoff_failures;
  ++sequence.handoff_failures;
  blamed_[{sequence.prefill.worker, sequence.decode.worker}] = now + options_.blame_time;
  if (sequence.handoff_failures == 1) {
    ++sequence.attempt;
    return RebindTo(sequence, sequence.prefill.incarnation, now);
  }
  if (sequence.handoff_failures == 2) {
    if (sequence.prefill.call != 0 && HasOther(sequence.decode)) {
      Drop(sequence.decode);
      return Enqueue(sequence, now);
    }
    if (HasOther(sequence.prefill)) {
      Drop(sequence.prefill);
      return Enqueue(sequence, now);
    }
  }
  if (sequence.prefilled || !sequence.owes_score) Drop(sequence.prefill);
  ++sequence.attempt;
  RebindTo(sequence, 0, now);
}

// Another worker that could take the side's place.
bool RouterNode::HasOther(const Side& side) const {
  const WorkerDirectory::Worker& own = directory_.workers()[side.worker];
  for (int32_t w = 0; w < static_cast<int32_t>(directory_.workers().size()); ++w) {
    const WorkerDirectory::Worker& other = directory_.workers()[w];
    if (w != side.worker && other.role == own.role && other.group == own.group &&
        directory_.Usable(w)) {
      return true;
    }
  }
  return false;
}

// ---- Waits -------------------------------------------------------------------------------------

void RouterNode::Watch(SequenceState& sequence, Time at) {
  watches_.Clear(sequence.id.counter, sequence.watch_at);
  sequence.watch_at = at;
  if (at != kNever) watches_.Set(sequence.id.counter, at);
}

void RouterNode::Rewatch(SequenceState& sequence) {
  const bool is_queued = sequence.state == State::kQueued;
  const Time silent = is_queued ? kNever : sequence.last_progress + options_.no_progress_limit;
  Watch(sequence, std::min(sequence.act_by, silent));
}

Duration RouterNode::LimitOf(State state) const {
  if (state == State::kQueued) return options_.hold_limit;
  return state == State::kPrefilling ? options_.verdict_limit : options_.answer_limit;
}

// From now on the answer, the verdict or the other side is waited for.
void RouterNode::Await(SequenceState& sequence, Time now) {
  sequence.act_by = now + LimitOf(sequence.state);
  Rewatch(sequence);
}

// As if each had begun just now.
void RouterNode::RestartWaits(Time now) {
  for (auto& [counter, sequence] : sequences_) {
    sequence.last_progress = now;
    if (sequence.hold_until != kNever) sequence.hold_until = now + options_.hold_limit;
    if (sequence.act_by != kNever) sequence.act_by = now + LimitOf(sequence.state);
    if (sequence.watch_at != kNever) Rewatch(sequence);
  }
}

// Who owes the sequence its next event: the prefill worker while its call is open, which computes
// and sends; then, and in all other states, the decode worker.
const RouterNode::Side& RouterNode::OwingSide(const SequenceState& sequence) const {
  const bool is_prefill = sequence.state == State::kPrefilling && sequence.prefill.call != 0;
  return is_prefill ? sequence.prefill : sequence.decode;
}

// A sequence may be silent while the worker that owes it an event computes others before it; it
// fails when that one does not move either. What the other side does for others says nothing.
void RouterNode::CheckWatch(uint64_t counter, Time now) {
  SequenceState& sequence = sequences_.at(counter);
  if (sequence.act_by <= now) {
    if (sequence.state == State::kPrefilling) {
      if (sequence.decode.call != 0) return OnHandoffFailed(sequence, now);
      return Fail(sequence, absl::InternalError("a prefill worker ended a call too early"));
    }
    if (sequence.state != State::kQueued) {
      ++counters_.unanswered;
      return LoseDecode(sequence, absl::UnavailableError("a decode worker did not answer"), now);
    }
    ++counters_.holds_expired;
    Drop(sequence.decode);
    Drop(sequence.prefill);
    return Enqueue(sequence, now);
  }
  Time moved = sequence.last_progress;
  const Side& owing = OwingSide(sequence);
  if (owing.call != 0) moved = std::max(moved, directory_.at(owing.worker).last_progress);
  const Time give_up = moved + options_.no_progress_limit;
  if (give_up <= now) {
    Fail(sequence, absl::UnavailableError("the workers of this request stopped making progress"));
    return;
  }
  Watch(sequence, std::min(sequence.act_by, give_up));
}

}  // namespace baton
