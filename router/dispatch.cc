// The part of RouterNode that gives sequences to workers and takes them back.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "router/error.h"
#include "router/node.h"

namespace baton {
namespace {

// What one that returns costs a turn besides its tokens, as so many of them.
constexpr int64_t kReturnCost = 1024;

}  // namespace

// First those that return to where they were, then those that hold something, each for itself, then
// the others in fair order.
void RouterNode::Dispatch(Time now) {
  retry_at_ = now;
  if (!DispatchReturning(now)) return;
  retry_at_ = kNever;
  pairs_.BeginTurn();
  std::optional<QueueKey> last;
  while ((last = queue_.NextHolder(last))) {
    SequenceState& sequence = sequences_.at(std::get<1>(*last));
    if (!MayGo(sequence, now) || Assign(sequence, now)) continue;
    retry_at_ = std::min(retry_at_, directory_.NextRetry(now));
  }
  queue_.OnTurn(DispatchWaiting(now), now);
  retry_at_ = std::min(retry_at_, std::max(now, returns_.NextLook()));
}

// They have had their turn: nothing of the queue's order or bounds keeps them. False if some are
// left for the next turn, which comes at once; what queues does not overtake them.
bool RouterNode::DispatchReturning(Time now) {
  for (int64_t left = options_.max_return_tokens; left > 0;) {
    const std::optional<Returns::Due> due = returns_.Next(now);
    if (!due) return true;
    left -= kReturnCost + (due->goes ? due->sequence->NextPosition() : 0);
    if (due->goes) {
      Return(*due->sequence, now);
    } else {
      EndReturn(*due->sequence, due->sequence->back.why, now);
    }
  }
  return false;
}

// As a further choice joins: the decode worker has all of it but its end, or refuses.
void RouterNode::Return(SequenceState& sequence, Time now) {
  BATON_CHECK(sequence.state == State::kQueued && !sequence.Holds() && sequence.losses.empty());
  const RouteNeed need = sequence.Need();
  const int32_t worker = returns_.Go(sequence, now);
  recovery_.Resume(sequence);
  ++sequence.attempt;
  waits_.Note(sequence, now);
  sequence.prefill = {};
  sequence.base = need.prompt_tokens;
  directory_.Take(sequence.decode, worker, need.total_tokens);
  OpenDecode(sequence, now);
}

// When the first of a kind finds no pair, all of its kind wait behind it, so that a large prompt is
// not overtaken for ever; others go on with what it does not lack. Passed over are only sequences
// that wait for what those behind them do not take away. True if one found no pair.
bool RouterNode::DispatchWaiting(Time now) {
  FairQueue& waiting = queue_.waiting();
  bool is_backlogged = false;
  waiting.BeginPass(now);
  while (const std::optional<uint64_t> counter = waiting.Next()) {
    SequenceState& sequence = sequences_.at(*counter);
    if (!MayGo(sequence, now)) {
      if (waiting.Contains(*counter)) waiting.PassOver(*counter);  // Else it has ended.
      continue;
    }
    if (sequence.leader != 0) {
      Join(sequence, now);
      continue;
    }
    if (Assign(sequence, now)) continue;
    is_backlogged = true;
    retry_at_ = std::min({retry_at_, directory_.NextRetry(now), room_claims_.NextEnd(now)});
    const Time alone_at = directory_.AloneAt(sequence.Need());
    if (alone_at > now) retry_at_ = std::min(retry_at_, alone_at);
    waiting.Close(FairQueue::KindOf(sequence));
    if (!pairs_.Reserve(sequence, now)) break;
  }
  return is_backlogged;
}

// False when it is not its turn, or the request has ended because it never will be.
bool RouterNode::MayGo(SequenceState& sequence, Time now) {
  const absl::StatusOr<bool> judged = recovery_.Judge(sequence, now);
  if (!judged.ok()) {
    EndRequest(sequence.request, judged.status());
    return false;
  }
  if (!*judged) {
    retry_at_ = std::min(retry_at_, sequence.ready_at);
    return false;
  }
  if (sequence.Holds()) return true;
  if (!MayJoin(sequence, now)) return false;
  if (sequence.leader != 0) return true;  // Where that one runs there is room for this length.
  if (!recovery_.MayStart(sequence)) return false;
  const RouteNeed need = sequence.Need();
  const absl::Status fits = directory_.Fits(need);
  if (fits.ok()) return true;
  const Time alone_at = directory_.AloneAt(need);
  if (alone_at <= now) return true;
  // What has begun has been taken by someone, who may be back.
  const bool was_taken = sequence.attempt > 0 && directory_.LostAt(need) != Time{};
  if (absl::IsUnavailable(fits) || alone_at != kNever || was_taken) {
    retry_at_ = std::min(retry_at_, alone_at);
    const Time give_up = alone_at == kNever ? pairs_.GivesUpAt(sequence) : kNever;
    if (give_up <= now) {
      EndRequest(sequence.request, absl::UnavailableError(fits.message()));
    } else {
      retry_at_ = std::min(retry_at_, give_up);
    }
    return false;
  }
  const std::string& param = sequence.body->prompt_param;
  EndRequest(sequence.request,
             WithErrorCode(WithErrorParam(fits, param), "context_length_exceeded"));
  return false;
}

// Further choices of a prompt wait until a decode worker has its K/V, which is there once for all.
// When the first choice has ended before, or that worker takes nothing now, they go for themselves.
bool RouterNode::MayJoin(SequenceState& sequence, Time now) {
  if (sequence.leader == 0) return true;
  const auto it = sequences_.find(sequence.leader);
  if (it == sequences_.end() || it->second.finished) {
    sequence.leader = 0;
    return true;
  }
  const SequenceState& leader = it->second;
  // Where the decode worker computes the prompt itself, it is there with the first token.
  const bool has_prompt = leader.NextPosition() > leader.base;
  if (leader.state != State::kDecoding || !has_prompt) return false;
  const Side& decode = leader.decode;
  BATON_CHECK(decode.call != 0 && sequence.body == leader.body);
  if (pairs_.IsDecodeReserved(decode.worker)) return false;
  const bool may_ask = directory_.IsUp(decode.worker, decode.incarnation) &&
                       directory_.MayAsk(decode.worker, now) &&
                       room_claims_.Admits(sequence, decode.worker, now);
  if (!may_ask) sequence.leader = 0;
  return true;
}

// Without a prefill worker: the decode worker has all of the prompt but its end.
void RouterNode::Join(SequenceState& sequence, Time now) {
  const SequenceState& leader = sequences_.at(sequence.leader);
  BATON_CHECK(sequence.state == State::kQueued && sequence.attempt == 0 && !sequence.Holds());
  const RouteNeed need = sequence.Need();
  queue_.Take(sequence, now);
  charges_.Expect(sequence, /*prompt_tokens=*/1);
  ++sequence.attempt;
  ++counters_.joins;
  waits_.Note(sequence, now);
  sequence.base = need.prompt_tokens;
  sequence.group = leader.group;
  recovery_.Start(sequence);
  directory_.Take(sequence.decode, leader.decode.worker, need.total_tokens - leader.PromptLength());
  OpenDecode(sequence, now);
}

bool RouterNode::Assign(SequenceState& sequence, Time now) {
  const std::optional<PairChoice::Found> found = pairs_.Find(sequence, now);
  if (!found) return false;
  const auto& [need, route] = *found;

  queue_.Take(sequence, now);
  ++sequence.attempt;
  waits_.Note(sequence, now);
  BATON_CHECK(sequence.state == State::kQueued && sequence.losses.empty());
  if (need.alone) {
    StartAlone(sequence, need, route.decode, now);
    return true;
  }
  if (sequence.decode.call != 0) {
    BATON_CHECK(sequence.prefill.call == 0);
    directory_.Take(sequence.prefill, route.prefill, need.prompt_tokens);
    RebindTo(sequence, sequence.prefill.incarnation, now);
    return true;
  }
  if (sequence.prefill.call == 0) {
    sequence.base = need.prompt_tokens;
    sequence.group = directory_.at(route.prefill).group;
    recovery_.Start(sequence);
    if (sequence.charged == 0) {
      charges_.Expect(sequence, need.prompt_tokens -
                                    prefixes_.MatchedTokens(sequence.prefix_hashes, route.prefill));
    }
    directory_.Take(sequence.prefill, route.prefill, need.prompt_tokens);
  }
  if (!need.needs_decode) {
    OpenPrefill(sequence, std::nullopt, now);
    return true;
  }
  directory_.Take(sequence.decode, route.decode, need.total_tokens);
  OpenDecode(sequence, now);
  return true;
}

// No prefill worker of that group is there: the decode worker computes the prompt itself, as it
// does on the last rung.
void RouterNode::StartAlone(SequenceState& sequence, const RouteNeed& need, int32_t worker,
                            Time now) {
  BATON_CHECK(!sequence.Holds() && sequence.leader == 0);
  sequence.prefill = {};
  // Of one that lacks its scores alone, the prompt.
  sequence.base = sequence.finished ? sequence.PromptLength() : need.prompt_tokens;
  sequence.call_score = 1;
  sequence.group = directory_.at(worker).group;
  recovery_.Start(sequence);
  if (sequence.charged == 0) {
    charges_.Expect(sequence,
                    need.prompt_tokens - prefixes_.MatchedTokens(sequence.prefix_hashes, worker));
  }
  room_claims_.Release(sequence);
  room_claims_.Keep(sequence, worker, now);  // One asks it at a time.
  directory_.Take(sequence.decode, worker, need.total_tokens);
  OpenDecode(sequence, now);
}

void RouterNode::OpenDecode(SequenceState& sequence, Time now) {
  BATON_CHECK(sequence.decode.call == 0 && sequence.decode.tokens > 0);
  const RequestState& request = requests_.at(sequence.request);
  sequence.state = State::kReserving;
  const bool computes_prompt = sequence.IsAlone();
  waits_.Await(sequence, now);
  calls_.New(sequence, sequence.decode);
  outbox_.OpenDecode(sequence.decode.call, sequence.decode.worker,
                     DecodeRequest{.sequence = sequence.id,
                                   .attempt = sequence.attempt,
                                   .worker = sequence.decode.incarnation,
                                   .prefill = sequence.prefill.incarnation,
                                   .compute_prompt = computes_prompt,
                                   .score_only = computes_prompt && sequence.LacksOnlyScores(),
                                   .tokens = sequence.BaseTokens(),
                                   .prompt_length = sequence.PromptLength(),
                                   .sampling = sequence.Sampling(),
                                   .tenant = request.body.tenant,
                                   .age = now - request.arrival,
                                   .timeout = request.deadline - now});
}

void RouterNode::OpenPrefill(SequenceState& sequence, std::optional<HandoffTarget> handoff,
                             Time now) {
  BATON_CHECK(sequence.prefill.call == 0 && handoff.has_value() == (sequence.decode.call != 0));
  const RequestState& request = requests_.at(sequence.request);
  sequence.state = State::kPrefilling;
  sequence.prefilled = false;
  sequence.call_score = 1;
  if (sequence.prefill.tokens == 0) {
    directory_.Take(sequence.prefill, sequence.prefill.worker, sequence.base);
  }
  // Since it was chosen the worker may be connected anew.
  sequence.prefill.connection = directory_.at(sequence.prefill.worker).connection;
  waits_.Clear(sequence);
  calls_.New(sequence, sequence.prefill);
  outbox_.OpenPrefill(sequence.prefill.call, sequence.prefill.worker,
                      PrefillRequest{.sequence = sequence.id,
                                     .attempt = sequence.attempt,
                                     .worker = sequence.prefill.incarnation,
                                     .tokens = sequence.BaseTokens(),
                                     .prompt_length = sequence.PromptLength(),
                                     .sampling = sequence.Sampling(),
                                     .score_only = request.body.score_only,
                                     .tenant = request.body.tenant,
                                     .age = now - request.arrival,
                                     .timeout = request.deadline - now,
                                     .handoff = std::move(handoff)});
  BATON_FAIL_POINT("router.prefilling");
}

// A worker would not take it or gave it back: it waits for another turn under a new attempt. KV
// that a prefill worker holds for a new decode worker stays held.
void RouterNode::Requeue(SequenceState& sequence, int32_t refused_by, Time now) {
  BATON_CHECK(sequence.state != State::kQueued || waits_.IsHeld(sequence));
  ++counters_.requeued;
  directory_.Skip(refused_by, now + options_.retry_delay);
  calls_.Drop(sequence.decode);
  if (!waits_.IsHeld(sequence)) calls_.Drop(sequence.prefill);
  charges_.GiveBack(sequence);
  Enqueue(sequence, now);
}

// ---- What a sequence has of a worker -----------------------------------------------------------

// Ends whatever is open of the sequence and gives back what was counted for it.
void RouterNode::ReleaseAll(SequenceState& sequence) {
  queue_.Remove(sequence);
  room_claims_.Release(sequence);
  returns_.Forget(sequence);
  calls_.Drop(sequence.decode);
  calls_.Drop(sequence.prefill);
  recovery_.End(sequence);
  waits_.Forget(sequence);
  BATON_CHECK(!sequence.Holds() && sequence.decode.tokens == 0 && sequence.prefill.tokens == 0);
}

}  // namespace baton
