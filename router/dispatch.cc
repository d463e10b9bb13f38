// The half of RouterNode that gives sequences to workers and takes them back.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "router/node.h"

namespace baton {

RouterNode::QueueKey RouterNode::KeyOf(const SequenceState& sequence) const {
  return {requests_.at(sequence.request).body.priority, sequence.id.counter};
}

RouteNeed RouterNode::NeedOf(const SequenceState& sequence) const {
  const ValidRequest& body = requests_.at(sequence.request).body;
  const int32_t prompt = static_cast<int32_t>(body.prompts[sequence.prompt].size());
  const int32_t answer = body.score_only ? 0 : body.sampling.max_tokens;
  // One token is sampled from the prefill itself, a scored prompt needs none.
  return {.prompt_tokens = prompt, .total_tokens = prompt + answer, .needs_decode = answer > 1};
}

SamplingParams RouterNode::SamplingOf(const SequenceState& sequence) const {
  const ValidRequest& body = requests_.at(sequence.request).body;
  SamplingParams params = body.sampling;
  params.choice = static_cast<uint32_t>(sequence.choice % body.num_choices);
  if (!sequence.owes_score) params.num_prompt_logprobs = -1;
  return params;
}

// Strictly in queue order: when the first does not find a pair, the ones behind it wait too, so a
// large prompt is not overtaken for ever.
void RouterNode::Dispatch(Time now) {
  retry_at_ = kNever;
  while (!queue_.empty()) {
    SequenceState& sequence = sequences_.at(std::get<1>(*queue_.begin()));
    if (absl::Status fits = directory_.Fits(NeedOf(sequence)); !fits.ok()) {
      if (absl::IsUnavailable(fits)) {
        if (no_worker_since_ == kNever) no_worker_since_ = now;
        const Time give_up = no_worker_since_ + options_.no_worker_grace;
        if (now < give_up) {
          retry_at_ = give_up;
          return;
        }
      }
      Fail(sequence, fits);
      continue;
    }
    no_worker_since_ = kNever;
    if (!Assign(sequence, now)) {
      retry_at_ = directory_.NextRetry(now);
      return;
    }
  }
}

bool RouterNode::Assign(SequenceState& sequence, Time now) {
  const RouteNeed need = NeedOf(sequence);
  RoutingSnapshot snapshot = directory_.Snapshot(need, options_.max_pending_prefill_tokens, now);
  for (auto* side : {&snapshot.prefill, &snapshot.decode}) {
    for (Candidate& candidate : *side) {
      candidate.matched_tokens = prefixes_.MatchedTokens(sequence.prefix_hashes, candidate.worker);
    }
  }
  const std::optional<Route> route = policy_->Choose(snapshot);
  if (!route) return false;

  RequestState& request = requests_.at(sequence.request);
  queue_.erase(KeyOf(sequence));
  LeaveQueue(request);
  sequence.route = *route;
  sequence.prefill = directory_.at(route->prefill).hello.incarnation;
  sequence.prefilled = false;
  ++sequence.attempt;
  sequence.last_progress = now;
  Watch(sequence, now + options_.no_progress_limit);
  sequence.holds_prefill_tokens = true;
  directory_.at(route->prefill).pending_tokens += need.prompt_tokens;
  if (!need.needs_decode) {
    OpenPrefill(sequence, std::nullopt, now);
    return true;
  }
  directory_.at(route->decode).pending_tokens += need.total_tokens;
  sequence.state = State::kReserving;
  sequence.decode_call = next_call_++;
  calls_.emplace(sequence.decode_call, sequence.id.counter);
  outbox_.OpenDecode(sequence.decode_call, route->decode,
                     DecodeRequest{.sequence = sequence.id,
                                   .attempt = sequence.attempt,
                                   .prefill = sequence.prefill,
                                   .tokens = request.body.prompts[sequence.prompt],
                                   .prompt_length = need.prompt_tokens,
                                   .sampling = SamplingOf(sequence),
                                   .tenant = request.body.tenant,
                                   .age = now - request.arrival,
                                   .timeout = request.deadline - now});
  return true;
}

void RouterNode::OpenPrefill(SequenceState& sequence, std::optional<HandoffTarget> handoff,
                             Time now) {
  const RequestState& request = requests_.at(sequence.request);
  const RouteNeed need = NeedOf(sequence);
  sequence.state = State::kPrefilling;
  sequence.prefill_call = next_call_++;
  calls_.emplace(sequence.prefill_call, sequence.id.counter);
  outbox_.OpenPrefill(sequence.prefill_call, sequence.route.prefill,
                      PrefillRequest{.sequence = sequence.id,
                                     .attempt = sequence.attempt,
                                     .tokens = request.body.prompts[sequence.prompt],
                                     .prompt_length = need.prompt_tokens,
                                     .sampling = SamplingOf(sequence),
                                     .score_only = request.body.score_only,
                                     .tenant = request.body.tenant,
                                     .age = now - request.arrival,
                                     .timeout = request.deadline - now,
                                     .handoff = std::move(handoff)});
}

// A worker would not take it or gave it back: it waits for another turn under a new attempt.
void RouterNode::Requeue(SequenceState& sequence, int32_t refused_by, Time now) {
  ++counters_.requeued;
  ReleaseCalls(sequence);
  directory_.Skip(refused_by, now + options_.retry_delay);
  sequence.state = State::kQueued;
  queue_.insert(KeyOf(sequence));
}

void RouterNode::ReleasePrefillTokens(SequenceState& sequence) {
  if (!std::exchange(sequence.holds_prefill_tokens, false)) return;
  directory_.at(sequence.route.prefill).pending_tokens -= NeedOf(sequence).prompt_tokens;
}

// Ends whatever is open of the sequence's attempt and gives back what was counted for it.
void RouterNode::ReleaseCalls(SequenceState& sequence) {
  if (sequence.state == State::kQueued) return;
  ReleasePrefillTokens(sequence);
  for (CallId* call : {&sequence.decode_call, &sequence.prefill_call}) {
    if (*call != 0 && calls_.erase(*call) > 0) outbox_.Cancel(*call);
    *call = 0;
  }
  if (sequence.route.decode >= 0) {
    directory_.at(sequence.route.decode).pending_tokens -= NeedOf(sequence).total_tokens;
  }
  watches_.Clear(sequence.id.counter, sequence.watch_at);
  sequence.watch_at = kNever;
  sequence.verdict_until = kNever;
}

// The client has all of this choice: its workers are let go, and the request ends with its last.
void RouterNode::FinishIfDone(SequenceState& sequence) {
  if (!sequence.finished || sequence.owes_score) return;
  const uint64_t key = sequence.request;
  const uint64_t counter = sequence.id.counter;
  queue_.erase(KeyOf(sequence));
  ReleaseCalls(sequence);
  RequestState& request = requests_.at(key);
  std::erase(request.sequences, counter);
  sequences_.erase(counter);
  if (request.sequences.empty()) EndRequest(key, absl::OkStatus());
}

void RouterNode::Fail(const SequenceState& sequence, absl::Status status) {
  EndRequest(sequence.request, std::move(status));
}

void RouterNode::Watch(SequenceState& sequence, Time at) {
  watches_.Clear(sequence.id.counter, sequence.watch_at);
  sequence.watch_at = at;
  watches_.Set(sequence.id.counter, at);
}

// A sequence may be silent while its workers compute or have others before it; it fails when none
// of them moves either.
void RouterNode::CheckWatch(uint64_t counter, Time now) {
  SequenceState& sequence = sequences_.at(counter);
  if (sequence.verdict_until <= now && sequence.state != State::kDecoding) {
    Fail(sequence, absl::UnavailableError("the prompt's KV did not reach a decode worker"));
    return;
  }
  Time moved = sequence.last_progress;
  for (int32_t worker : {sequence.route.prefill, sequence.route.decode}) {
    if (worker >= 0) moved = std::max(moved, directory_.at(worker).last_progress);
  }
  const Time give_up = moved + options_.no_progress_limit;
  if (give_up <= now) {
    Fail(sequence, absl::UnavailableError("the workers of this request stopped making progress"));
    return;
  }
  Watch(sequence, give_up);
}

RouterView RouterNode::View() const {
  RouterView view;
  for (const WorkerDirectory::Worker& w : directory_.workers()) {
    const bool draining = w.up && w.status.draining;
    view.workers.push_back({.role = w.role,
                            .healthy = w.up && !draining,
                            .reason = draining ? "draining" : w.reason,
                            .hello = w.hello,
                            .status = w.status});
  }
  view.queued_requests = queued_requests_;
  view.queued_tokens = queued_tokens_;
  view.running_requests = static_cast<int64_t>(requests_.size()) - queued_requests_;
  return view;
}

}  // namespace baton
