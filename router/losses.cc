// The part of RouterNode that goes on when a worker, a call or a transfer is lost, or an answer
// does not come. What is lost is dropped; a side that is left is held for a moment while the other
// is sought again. What that costs is for Recovery to say.
#include <utility>

#include "common/base/check.h"
#include "router/node.h"

namespace baton {

void RouterNode::LoseDecode(SequenceState& sequence, absl::Status why, Time now) {
  returns_.Forget(sequence);
  calls_.Drop(sequence.decode);
  recovery_.AddLoss(sequence, sequence.decode, std::move(why), now);
  Enqueue(sequence, now);
  BATON_CHECK(!sequence.losses.empty() && sequence.decode.call == 0);
}

// Its K/V is where it was: it has lost nothing yet.
void RouterNode::AwaitReturn(SequenceState& sequence, const CallClosed& closed, Time now) {
  BATON_CHECK(!sequence.Holds() && !queue_.Contains(sequence));
  LeaveWorkers(sequence, now);
  returns_.Begin(sequence, closed, now);
  BATON_CHECK(returns_.IsWaiting(sequence));
}

// Without room now it asks again while there is time; what is not there any more will not come.
void RouterNode::OnReturnRefused(SequenceState& sequence, const absl::Status& why, Time now) {
  BATON_CHECK(sequence.returned && !sequence.Holds());
  ++counters_.requeued;
  directory_.Skip(sequence.decode.worker, now + options_.retry_delay);
  LeaveWorkers(sequence, now);
  if (absl::IsResourceExhausted(why)) return returns_.Again(sequence);
  // The worker is well: a move.
  EndReturn(sequence, absl::AbortedError("what a decode worker had computed is gone"), now);
}

// An ordinary loss after all, with the connection over which its call went: it queues.
void RouterNode::EndReturn(SequenceState& sequence, absl::Status why, Time now) {
  BATON_CHECK(sequence.state == State::kQueued && !sequence.Holds());
  sequence.decode.connection = sequence.back.connection;
  recovery_.AddLoss(sequence, sequence.decode, std::move(why), sequence.back.lost_at);
  returns_.Forget(sequence);
  queue_.Add(sequence, now);
  recovery_.OnQueued(sequence, now);
}

void RouterNode::LosePrefill(SequenceState& sequence, absl::Status why, Time now) {
  calls_.Drop(sequence.prefill);
  if (sequence.state == State::kDecoding) return;  // A score that is owed is sought at the end.
  recovery_.AddLoss(sequence, sequence.prefill, std::move(why), now);
  const bool awaits_answer =
      sequence.state == State::kReserving || sequence.state == State::kRebinding;
  // The reservation that is on its way decides; nothing was asked of a prefill worker yet.
  if (awaits_answer && waits_.Awaits(sequence)) return;
  Enqueue(sequence, now);
}

// Waits for its turn, which comes when its losses are judged.
void RouterNode::Enqueue(SequenceState& sequence, Time now) {
  LeaveWorkers(sequence, now);
  queue_.Add(sequence, now);
  BATON_CHECK(queue_.Contains(sequence) && !returns_.IsWaiting(sequence));
}

// It is queued by its state alone: what waits to return is no burden for each turn.
void RouterNode::LeaveWorkers(SequenceState& sequence, Time now) {
  BATON_CHECK(sequence.prefill.call == 0 || sequence.decode.call == 0);
  for (Side* side : {&sequence.prefill, &sequence.decode}) {
    if (side->call == 0) directory_.Release(*side);
  }
  sequence.leader = 0;
  sequence.state = State::kQueued;
  sequence.queued_since = now;
  recovery_.OnQueued(sequence, now);
  waits_.AwaitTurn(sequence, now);
}

void RouterNode::FenceHungWorkers(Time now) {
  for (int32_t w = 0; w < static_cast<int32_t>(directory_.workers().size()); ++w) {
    if (directory_.HungAt(w) > now) continue;
    directory_.MarkHung(w, now);
    returns_.Note(w);
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
  BATON_CHECK(sequence.decode.call != 0 && sequence.attempt > 1);
  ++(prefill != 0 ? counters_.rebinds : counters_.self_prefills);
  sequence.state = State::kRebinding;
  waits_.Await(sequence, now);
  outbox_.Rebind(
      sequence.decode.call,
      RebindRequest{.sequence = sequence.id, .attempt = sequence.attempt, .prefill = prefill});
}

void RouterNode::OnHandoffFailed(SequenceState& sequence, Time now) {
  if (sequence.state != State::kPrefilling || sequence.decode.call == 0) {
    ++counters_.stale_mail;
    return;
  }
  waits_.Note(sequence, now);
  ClimbLadder(sequence, now);
}

// A decode worker that has the KV answers each Rebind with tokens.
void RouterNode::ClimbLadder(SequenceState& sequence, Time now) {
  BATON_CHECK(sequence.state == State::kPrefilling && sequence.decode.call != 0);
  switch (recovery_.Climb(sequence, now)) {
    case Recovery::Rung::kSamePair:
      ++sequence.attempt;
      return RebindTo(sequence, sequence.prefill.incarnation, now);
    case Recovery::Rung::kOtherDecode:
      calls_.Drop(sequence.decode);
      return Enqueue(sequence, now);
    case Recovery::Rung::kOtherPrefill:
      calls_.Drop(sequence.prefill);
      return Enqueue(sequence, now);
    case Recovery::Rung::kDecodeAlone:
      if (sequence.prefilled || !sequence.owes_score) calls_.Drop(sequence.prefill);
      ++sequence.attempt;
      return RebindTo(sequence, 0, now);
  }
}

// ---- What does not come ------------------------------------------------------------------------

// What the other side does for others says nothing.
void RouterNode::CheckWatch(uint64_t counter, Time now) {
  SequenceState& sequence = sequences_.at(counter);
  const Side& owing = sequence.OwingSide();
  const Time moved = owing.call != 0 ? directory_.at(owing.worker).last_progress : Time{};
  switch (waits_.Check(sequence, moved, now)) {
    case Waits::Due::kNothing:
      return;
    case Waits::Due::kOverdue:
      return OnOverdue(sequence, now);
    case Waits::Due::kSilent:
      EndRequest(sequence.request, absl::UnavailableError(
                                       "the workers of this request stopped making progress"));
  }
}

void RouterNode::OnOverdue(SequenceState& sequence, Time now) {
  if (sequence.state == State::kPrefilling) {
    if (sequence.decode.call != 0) return ClimbLadder(sequence, now);
    return EndRequest(sequence.request,
                      absl::InternalError("a prefill worker ended a call too early"));
  }
  if (sequence.state != State::kQueued) {
    ++counters_.unanswered;
    return LoseDecode(sequence, absl::UnavailableError("a decode worker did not answer"), now);
  }
  BATON_CHECK(waits_.IsHeld(sequence) && sequence.Holds());
  ++counters_.holds_expired;
  calls_.Drop(sequence.decode);
  calls_.Drop(sequence.prefill);
  Enqueue(sequence, now);
}

}  // namespace baton
