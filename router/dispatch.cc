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

bool IsReserved(const std::vector<uint64_t>& groups, uint64_t group) {
  return std::ranges::any_of(groups, [=](uint64_t g) { return g == 0 || g == group; });
}

}  // namespace

// First those that return to where they were, then those that hold something, each for itself, then
// the others in fair order.
void RouterNode::Dispatch(Time now) {
  retry_at_ = now;
  if (!DispatchReturning(now)) return;
  retry_at_ = kNever;
  reserved_ = {};
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
    if (!ReserveFor(sequence, now)) break;
  }
  return is_backlogged;
}

// What it lacks is not for those behind it. False if they can do nothing without.
bool RouterNode::ReserveFor(const SequenceState& sequence, Time now) {
  const RouteNeed kind = sequence.Need();
  queue_.waiting().Close({kind.group, kind.needs_decode});
  RouteNeed need = sequence.Need();
  if (!directory_.HasPair(need) && MayBeAlone(sequence, now)) need.needs_decode = need.alone = true;
  const RoutingSnapshot left = SnapshotFor(sequence, need, now);
  const bool has_prefill = need.alone || !left.prefill.empty();
  const bool has_decode = !need.needs_decode || !left.decode.empty();
  // Where both are there they do not pair.
  if (!has_prefill || has_decode) reserved_.prefill.push_back(need.group);
  if (!has_decode || (has_prefill && need.needs_decode)) reserved_.decode.push_back(need.group);
  const bool has_prefill_left = std::ranges::find(reserved_.prefill, 0u) == reserved_.prefill.end();
  return has_prefill_left || directory_.IsAnyAlone(now);
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
    if (alone_at == kNever && !AwaitWorkers(sequence, now)) {
      EndRequest(sequence.request, absl::UnavailableError(fits.message()));
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
  if (IsReserved(reserved_.decode, leader.group)) return false;
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
  Charge(sequence, /*prompt_tokens=*/1);
  ++sequence.attempt;
  ++counters_.joins;
  waits_.Note(sequence, now);
  sequence.base = need.prompt_tokens;
  sequence.group = leader.group;
  recovery_.Start(sequence);
  directory_.Take(sequence.decode, leader.decode.worker, need.total_tokens - leader.PromptLength());
  OpenDecode(sequence, now);
}

// No usable pair is there: false when it has been waited for long enough.
bool RouterNode::AwaitWorkers(SequenceState& sequence, Time now) {
  const Time since = std::max(sequence.queued_since, directory_.LostAt(sequence.Need()));
  const Time give_up = since +
                       (sequence.attempt > 0 ? options_.recovery_grace : options_.no_worker_grace);
  if (give_up <= now) return false;
  retry_at_ = std::min(retry_at_, give_up);
  return true;
}

// Whether it may go without a prefill worker, where no pair takes it. Only what holds nothing: a
// side that is held is given up soon enough.
bool RouterNode::MayBeAlone(const SequenceState& sequence, Time now) const {
  return !sequence.Holds() && directory_.AloneAt(sequence.Need()) <= now;
}

// The candidates for the sides that it lacks; the side that it holds is given.
RoutingSnapshot RouterNode::SnapshotFor(const SequenceState& sequence, const RouteNeed& need,
                                        Time now) const {
  RoutingSnapshot snapshot = directory_.Snapshot(need, options_.max_pending_prefill_tokens, now);
  std::erase_if(snapshot.prefill,
                [&](const Candidate& c) { return IsReserved(reserved_.prefill, c.group); });
  std::erase_if(snapshot.decode, [&](const Candidate& c) {
    return IsReserved(reserved_.decode, c.group) || !room_claims_.Admits(sequence, c.worker, now);
  });
  snapshot.prefix = PrefixDirectory::KeyOf(sequence.prefix_hashes);
  const auto held = [this](const Side& side) {
    Candidate candidate = directory_.CandidateOf(side.worker);
    candidate.pair = side.pair;  // By now another process may be there.
    return candidate;
  };
  if (sequence.prefill.call != 0) snapshot.prefill = {held(sequence.prefill)};
  if (sequence.decode.call != 0) snapshot.decode = {held(sequence.decode)};
  for (auto* side : {&snapshot.prefill, &snapshot.decode}) {
    for (Candidate& candidate : *side) {
      candidate.matched_tokens = prefixes_.MatchedTokens(sequence.prefix_hashes, candidate.worker);
    }
  }
  return snapshot;
}

// Away from processes that failed this sequence and from blamed pairs, if there is another choice.
std::optional<Route> RouterNode::Choose(const SequenceState& sequence, const RouteNeed& need,
                                        Time now) const {
  const RoutingSnapshot all = SnapshotFor(sequence, need, now);
  const std::vector<BlamedPair> blamed = recovery_.Blamed(now);
  if (blamed.empty() && sequence.lost.empty()) return policy_->Choose(all);
  RoutingSnapshot preferred = all;
  for (const BlamedPair& pair : blamed) preferred.blamed.push_back({pair.prefill, pair.decode});
  const auto has_failed = [&](const Candidate& candidate) {
    return recovery_.HasFailed(sequence,
                               directory_.workers()[candidate.worker].hello.incarnation);
  };
  if (sequence.prefill.call == 0) std::erase_if(preferred.prefill, has_failed);
  if (sequence.decode.call == 0) std::erase_if(preferred.decode, has_failed);
  const std::optional<Route> route = policy_->Choose(preferred);
  return route ? route : policy_->Choose(all);
}

bool RouterNode::Assign(SequenceState& sequence, Time now) {
  RouteNeed need = sequence.Need();
  std::optional<Route> route = Choose(sequence, need, now);
  if (!route && MayBeAlone(sequence, now)) {
    // Beside pairs that are only busy, for what it begins at once: none is to wait for it instead.
    const bool has_pair = directory_.HasPair(need);
    need.needs_decode = need.alone = true;
    route = Choose(sequence, need, now);
    if (route && has_pair && !directory_.IsIdle(route->decode, need.prompt_tokens)) return false;
  }
  if (!route) return false;

  queue_.Take(sequence, now);
  ++sequence.attempt;
  waits_.Note(sequence, now);
  BATON_CHECK(sequence.state == State::kQueued && sequence.losses.empty());
  if (need.alone) {
    StartAlone(sequence, need, route->decode, now);
    return true;
  }
  if (sequence.decode.call != 0) {
    BATON_CHECK(sequence.prefill.call == 0);
    directory_.Take(sequence.prefill, route->prefill, need.prompt_tokens);
    RebindTo(sequence, sequence.prefill.incarnation, now);
    return true;
  }
  if (sequence.prefill.call == 0) {
    sequence.base = need.prompt_tokens;
    sequence.group = directory_.at(route->prefill).group;
    recovery_.Start(sequence);
    if (sequence.charged == 0) {
      Charge(sequence, need.prompt_tokens -
                           prefixes_.MatchedTokens(sequence.prefix_hashes, route->prefill));
    }
    directory_.Take(sequence.prefill, route->prefill, need.prompt_tokens);
  }
  if (!need.needs_decode) {
    OpenPrefill(sequence, std::nullopt, now);
    return true;
  }
  directory_.Take(sequence.decode, route->decode, need.total_tokens);
  OpenDecode(sequence, now);
  return true;
}

// No prefill worker of that group is there: the decode worker computes the prompt itself, as it
// does on the last rung.
void RouterNode::StartAlone(SequenceState& sequence, const RouteNeed& need, int32_t worker,
                            Time now) {
  BATON_CHECK(!sequence.Holds() && sequence.leader == 0);
  sequence.prefill = {};
  sequence.base = need.prompt_tokens;
  sequence.group = directory_.at(worker).group;
  recovery_.Start(sequence);
  if (sequence.charged == 0) {
    Charge(sequence, need.prompt_tokens - prefixes_.MatchedTokens(sequence.prefix_hashes, worker));
  }
  room_claims_.Release(sequence);
  room_claims_.Keep(sequence, worker, now);  // One asks it at a time.
  directory_.Take(sequence.decode, worker, need.total_tokens);
  OpenDecode(sequence, now);
}

// What is computed of its prompt, as far as is known now.
void RouterNode::Charge(SequenceState& sequence, int64_t prompt_tokens) {
  const int64_t tokens = std::max<int64_t>(1, prompt_tokens);
  queue_.Charge(sequence.request, tokens - std::exchange(sequence.charged, tokens));
}

// A worker has computed nothing of it: it has not had its turn.
void RouterNode::GiveBack(SequenceState& sequence) {
  if (sequence.paid || !sequence.lost.empty()) return;
  queue_.Charge(sequence.request, -std::exchange(sequence.charged, 0));
}

CallId RouterNode::NewCall(const SequenceState& sequence) {
  BATON_CHECK(calls_.emplace(next_call_, sequence.id.counter).second);
  return next_call_++;
}

void RouterNode::OpenDecode(SequenceState& sequence, Time now) {
  BATON_CHECK(sequence.decode.call == 0 && sequence.decode.tokens > 0);
  const RequestState& request = requests_.at(sequence.request);
  sequence.state = State::kReserving;
  waits_.Await(sequence, now);
  sequence.decode.call = NewCall(sequence);
  outbox_.OpenDecode(sequence.decode.call, sequence.decode.worker,
                     DecodeRequest{.sequence = sequence.id,
                                   .attempt = sequence.attempt,
                                   .worker = sequence.decode.incarnation,
                                   .prefill = sequence.prefill.incarnation,
                                   .compute_prompt = sequence.IsAlone(),
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
  sequence.prefill.call = NewCall(sequence);
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
  Drop(sequence.decode);
  if (!waits_.IsHeld(sequence)) Drop(sequence.prefill);
  GiveBack(sequence);
  Enqueue(sequence, now);
}

// ---- What a sequence has of a worker -----------------------------------------------------------

void RouterNode::Drop(Side& side) {
  directory_.Release(side);
  if (side.call == 0) return;
  BATON_CHECK(calls_.erase(side.call) == 1);
  outbox_.Cancel(std::exchange(side.call, 0));
}

// Ends whatever is open of the sequence and gives back what was counted for it.
void RouterNode::ReleaseAll(SequenceState& sequence) {
  queue_.Remove(sequence);
  room_claims_.Release(sequence);
  returns_.Forget(sequence);
  Drop(sequence.decode);
  Drop(sequence.prefill);
  recovery_.End(sequence);
  waits_.Forget(sequence);
  BATON_CHECK(!sequence.Holds() && sequence.decode.tokens == 0 && sequence.prefill.tokens == 0);
}

}  // namespace baton
