// The part of RouterNode that takes what the calls of its sequences tell and how they end.
#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "router/event_checks.h"
#include "router/node.h"

namespace baton {
namespace {

// The worker did nothing for the call: it has no room, drains, is another process by now, or has
// this attempt twice.
bool IsRefusal(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status) ||
         absl::IsAlreadyExists(status);
}

// Says something of the request itself: another worker would say the same.
bool IsFinal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsUnimplemented(status);
}

}  // namespace

// ---- Events of calls ---------------------------------------------------------------------------

void RouterNode::OnWorkerEvent(WorkerEventReceived received, Time now) {
  const std::optional<uint64_t> owner = calls_.OwnerOf(received.call);
  if (!owner) {
    ++counters_.stale_mail;
    return;
  }
  const uint64_t counter = *owner;
  SequenceState& sequence = sequences_.at(counter);
  const bool is_decode = received.call == sequence.decode.call;
  BATON_CHECK(is_decode || received.call == sequence.prefill.call);
  const bool is_failure = std::holds_alternative<HandoffFailedEvent>(received.event);
  const bool is_reserved = std::holds_alternative<ReservedEvent>(received.event);
  const bool is_scores = std::holds_alternative<ScoresEvent>(received.event);
  const bool is_decode_event =
      is_scores ? sequence.IsAlone() : !std::holds_alternative<PrefilledEvent>(received.event);
  const Attempt attempt = std::visit([](const auto& e) { return e.attempt; }, received.event);
  // What a call computed is right whatever attempt it names; tickets and failures go by attempt.
  const bool is_old = (is_failure || is_reserved) && attempt != sequence.attempt;
  const bool is_repeated =
      (!is_decode_event && sequence.prefilled) || (is_scores && !sequence.owes_score);
  if (is_old || is_repeated || (!is_failure && is_decode != is_decode_event)) {
    ++counters_.stale_mail;
    return;
  }
  if (auto* reserved = std::get_if<ReservedEvent>(&received.event)) {
    OnReserved(sequence, *reserved, now);
  } else if (is_scores) {
    OnScores(sequence, std::move(std::get<ScoresEvent>(received.event)), now);
  } else if (auto* prefilled = std::get_if<PrefilledEvent>(&received.event)) {
    OnPrefilled(sequence, std::move(*prefilled), now);
  } else if (is_failure) {
    OnHandoffFailed(sequence, now);
  } else {
    OnTokens(sequence, std::move(std::get<TokensEvent>(received.event)), now);
  }
  CheckInvariants(counter);
}

void RouterNode::OnReserved(SequenceState& sequence, const ReservedEvent& event, Time now) {
  if (sequence.state != State::kReserving && sequence.state != State::kRebinding) {
    ++counters_.stale_mail;
    return;
  }
  absl::Status bad = CheckReserved(event, sequence.decode.incarnation, sequence.base);
  if (sequence.state == State::kReserving && sequence.prefill.incarnation == 0) {
    bad = absl::DataLossError("a reservation that nobody is to fill");
  }
  if (!bad.ok()) return LoseDecode(sequence, std::move(bad), now);
  BATON_CHECK(sequence.decode.call != 0 && waits_.Awaits(sequence));
  waits_.Note(sequence, now);
  waits_.Clear(sequence);
  room_claims_.Release(sequence);
  HandoffTarget target{.ticket = event.ticket,
                       .ranks = event.ranks,
                       .pair_key = event.pair_key,
                       .decode = event.decode,
                       .first_token = event.cached_tokens};
  if (sequence.prefill.call != 0) {
    ++counters_.resends;
    sequence.state = State::kPrefilling;
    outbox_.Send(sequence.prefill.call, SendRequest{.sequence = sequence.id,
                                                    .attempt = sequence.attempt,
                                                    .handoff = std::move(target)});
    return;
  }
  const Side& prefill = sequence.prefill;
  if (!directory_.IsUp(prefill.worker, prefill.incarnation) ||
      recovery_.IsLost(sequence, prefill)) {
    // Since it was asked for; the ticket is for nobody else.
    LosePrefill(sequence, absl::UnavailableError("the prefill worker was lost"), now);
    return;
  }
  prefixes_.Add(sequence.prefix_hashes, sequence.decode.worker);
  OpenPrefill(sequence, std::move(target), now);
}

void RouterNode::OnScores(SequenceState& sequence, ScoresEvent event, Time now) {
  BATON_CHECK(sequence.owes_score);
  const bool is_alone = sequence.IsAlone();
  BATON_CHECK((is_alone ? sequence.decode : sequence.prefill).call != 0);
  absl::Status status = output_.Scores(sequence, event.logprobs);
  const bool has_all = sequence.finished && !sequence.owes_score;  // Whatever else was said.
  if (!status.ok() && !has_all) {
    return is_alone ? LoseDecode(sequence, std::move(status), now)
                    : LosePrefill(sequence, std::move(status), now);
  }
  waits_.Note(sequence, now);
  if (sequence.owes_score) return;
  // Nothing else may be wanted of this call: it must not be sought again if it is lost now.
  sequence.finished = sequence.finished || sequence.body->score_only;
  FinishIfDone(sequence, now);
}

void RouterNode::OnPrefilled(SequenceState& sequence, PrefilledEvent event, Time now) {
  BATON_CHECK(sequence.prefill.call != 0 && !sequence.prefilled);
  BATON_FAIL_POINT("router.transferring");
  if (sequence.owes_score) {
    return LosePrefill(sequence, SkippedError(sequence.call_score, sequence.PromptLength()), now);
  }
  if (absl::Status bad = CheckFirst(event, sequence); !bad.ok()) {
    return LosePrefill(sequence, std::move(bad), now);
  }
  waits_.Note(sequence, now);
  sequence.prefilled = true;
  directory_.Release(sequence.prefill);
  NoteCached(sequence, event.cached_tokens);
  prefixes_.Add(sequence.prefix_hashes, sequence.prefill.worker);
  if (sequence.body->score_only) sequence.finished = true;
  // The decode worker has the KV or computes it: this call brought the score and is not needed.
  if (sequence.state == State::kDecoding && sequence.handoff_failures > 0) {
    calls_.Drop(sequence.prefill);
  }
  if (event.first) BATON_CHECK(output_.Tokens(sequence, {&*event.first, 1}).ok());
  FinishIfDone(sequence, now);
}

// Who computes a prompt has said what of it was cached. A prompt counts once for the client.
void RouterNode::NoteCached(SequenceState& sequence, int32_t cached_tokens) {
  charges_.Settle(sequence, cached_tokens);
  RequestState& request = requests_.at(sequence.request);
  BATON_CHECK(sequence.prompt < std::ssize(request.cache_counted));
  if (request.cache_counted[sequence.prompt]) return;
  request.cache_counted[sequence.prompt] = true;
  request.cached_tokens += std::min(cached_tokens, sequence.PromptLength());
}

// A decode worker that is alone has taken it.
void RouterNode::OnTaken(SequenceState& sequence, int32_t cached_tokens) {
  BATON_CHECK(sequence.IsAlone() && sequence.decode.call != 0);
  ++counters_.self_prefills;
  room_claims_.Release(sequence);
  NoteCached(sequence, cached_tokens);
  prefixes_.Add(sequence.prefix_hashes, sequence.decode.worker);
}

// The decode worker has verified the KV, or computes it, and goes on, whatever the prefill call
// says.
void RouterNode::OnDecoding(SequenceState& sequence) {
  BATON_CHECK(sequence.decode.call != 0 && sequence.attempt > 0);
  if (sequence.state == State::kQueued) queue_.Remove(sequence);
  sequence.state = State::kDecoding;
  waits_.Clear(sequence);
  recovery_.ForgetLosses(sequence);
  returns_.Forget(sequence);
  // KV that is kept because its handoff seemed to fail is not needed any more.
  if (sequence.handoff_failures > 0 && sequence.prefilled) calls_.Drop(sequence.prefill);
  if (sequence.prefill.call == 0) directory_.Release(sequence.prefill);
}

// The tokens before a bad one stand; for more than that the event does not count.
void RouterNode::OnTokens(SequenceState& sequence, TokensEvent event, Time now) {
  BATON_CHECK(sequence.decode.call != 0);
  if (absl::Status bad = CheckCached("tokens", event.cached_tokens, sequence.base); !bad.ok()) {
    return LoseDecode(sequence, std::move(bad), now);
  }
  if (absl::Status bad = CheckAlone(event, sequence); !bad.ok()) {
    return LoseDecode(sequence, std::move(bad), now);
  }
  if (absl::Status bad = output_.Tokens(sequence, event.outputs); !bad.ok()) {
    return LoseDecode(sequence, std::move(bad), now);
  }
  BATON_FAIL_POINT("router.decoding");
  waits_.Note(sequence, now);
  directory_.NoteTokens(sequence, event.outputs, now);
  if (sequence.state == State::kReserving) {
    if (sequence.IsAlone()) OnTaken(sequence, event.cached_tokens);
    if (sequence.returned) {
      ++counters_.returns;
      returns_.Taken(sequence);
    }
  }
  OnDecoding(sequence);
  FinishIfDone(sequence, now);
}

// ---- Ends of calls -----------------------------------------------------------------------------

void RouterNode::OnCallClosed(const CallClosed& closed, Time now) {
  const std::optional<uint64_t> owner = calls_.OwnerOf(closed.call);
  if (!owner) {
    ++counters_.stale_mail;
    return;
  }
  const uint64_t counter = *owner;
  SequenceState& sequence = sequences_.at(counter);
  BATON_CHECK(closed.call == sequence.decode.call || closed.call == sequence.prefill.call);
  waits_.Note(sequence, now);
  if (closed.call == sequence.decode.call) {
    calls_.End(sequence.decode);
    OnDecodeClosed(sequence, closed, now);
  } else {
    calls_.End(sequence.prefill);
    OnPrefillClosed(sequence, closed.status, now);
  }
  CheckInvariants(counter);
}

void RouterNode::OnDecodeClosed(SequenceState& sequence, const CallClosed& closed, Time now) {
  BATON_CHECK(sequence.decode.call == 0 && sequence.decode.worker >= 0);
  const absl::Status& status = closed.status;
  // INVALID_ARGUMENT: one of before there were further choices without a prefill worker.
  const bool cannot_join =
      (sequence.leader != 0 || sequence.returned) && absl::IsInvalidArgument(status);
  if (returns_.MayBegin(sequence, closed, now)) return AwaitReturn(sequence, closed, now);
  if ((IsRefusal(status) || cannot_join) && sequence.state != State::kDecoding) {
    if (sequence.returned) return OnReturnRefused(sequence, status, now);
    if (absl::IsResourceExhausted(status) && sequence.leader == 0) {
      room_claims_.Keep(sequence, sequence.decode.worker, now);
    }
    Requeue(sequence, sequence.decode.worker, now);
  } else if (status.ok() && sequence.IsAlone() && sequence.LacksOnlyScores() &&
             !sequence.owes_score) {
    sequence.finished = true;  // The prompt has one token, and no scores.
    FinishIfDone(sequence, now);
  } else if (status.ok()) {
    LoseDecode(sequence, absl::UnknownError("a decode worker ended a call before its last token"),
               now);
  } else if (IsFinal(status)) {
    EndRequest(sequence.request, status);
  } else {
    LoseDecode(sequence, status, now);
  }
}

void RouterNode::OnPrefillClosed(SequenceState& sequence, const absl::Status& status, Time now) {
  BATON_CHECK(sequence.prefill.call == 0 && sequence.prefill.worker >= 0);
  if (sequence.state == State::kDecoding) {
    // The decode worker has the KV. A score that is still owed is sought again at the end.
    directory_.Release(sequence.prefill);
  } else if (IsRefusal(status)) {
    Requeue(sequence, sequence.prefill.worker, now);
  } else if (IsFinal(status)) {
    EndRequest(sequence.request, status);
  } else if (status.ok() && !sequence.prefilled) {
    LosePrefill(sequence,
                absl::UnknownError("a prefill worker ended a call before its first token"), now);
  } else if (status.ok()) {
    // A decode worker has verified it: its tokens follow. A queued sequence has given that worker
    // up and holds nothing now; one that has asked for a Send to another is too late, and finds
    // out.
    if (sequence.state == State::kQueued) {
      Enqueue(sequence, now);
    } else if (sequence.state == State::kPrefilling) {
      waits_.Await(sequence, now);
    }
  } else {
    LosePrefill(sequence, status, now);
  }
}

}  // namespace baton
