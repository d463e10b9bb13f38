// The half of RouterNode that gives sequences to workers and takes them back.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "router/generation/error.h"
#include "router/node.h"

namespace baton {

RouterNode::QueueKey RouterNode::KeyOf(const SequenceState& sequence) const {
  return {requests_.at(sequence.request).body.priority, sequence.id.counter};
}

int32_t RouterNode::PromptLength(const SequenceState& sequence) const {
  return static_cast<int32_t>(requests_.at(sequence.request).body.prompts[sequence.prompt].size());
}

// The position of the next token that the client is to see.
int32_t RouterNode::NextPosition(const SequenceState& sequence) const {
  return PromptLength(sequence) + static_cast<int32_t>(sequence.emitted.size());
}

RouteNeed RouterNode::NeedOf(const SequenceState& sequence) const {
  const ValidRequest& body = requests_.at(sequence.request).body;
  const int32_t answer = body.score_only ? 0 : body.sampling.max_tokens;
  const int32_t total = PromptLength(sequence) + answer;
  const int32_t base = Holds(sequence) ? sequence.base : NextPosition(sequence);
  // One token is sampled from the prefill itself, a scored prompt needs none.
  // What the client has seen of an answer binds the rest of it to the same bits.
  const bool is_bound = Holds(sequence) || !sequence.emitted.empty();
  return {.prompt_tokens = base,
          .total_tokens = total,
          .needs_decode = !sequence.finished && total - base > 1,
          .group = is_bound ? sequence.group : 0};
}

// What is prefilled in this attempt: the prompt and, after a recovery, what the client has seen.
std::vector<int32_t> RouterNode::BaseTokens(const SequenceState& sequence) const {
  std::vector<int32_t> tokens = requests_.at(sequence.request).body.prompts[sequence.prompt];
  const auto num_emitted = sequence.base - static_cast<int32_t>(tokens.size());
  tokens.insert(tokens.end(), sequence.emitted.begin(), sequence.emitted.begin() + num_emitted);
  return tokens;
}

SamplingParams RouterNode::SamplingOf(const SequenceState& sequence) const {
  const ValidRequest& body = requests_.at(sequence.request).body;
  SamplingParams params = body.sampling;
  params.choice = static_cast<uint32_t>(sequence.choice % body.num_choices);
  if (!sequence.owes_score) params.num_prompt_logprobs = -1;
  return params;
}

// First those that hold something, each for itself. Then strictly in queue order: when the first
// does not find a pair, the ones behind it wait too, so a large prompt is not overtaken for ever.
// Passed over are only sequences that wait for what those behind them do not take away.
void RouterNode::Dispatch(Time now) {
  retry_at_ = kNever;
  for (auto* waiting : {&holders_, &queue_}) {
    QueueKey last{};
    for (auto it = waiting->begin(); it != waiting->end(); it = waiting->upper_bound(last)) {
      last = *it;
      SequenceState& sequence = sequences_.at(std::get<1>(last));
      if (!MayGo(sequence, now) || Assign(sequence, now)) continue;
      retry_at_ = std::min(retry_at_, directory_.NextRetry(now));
      if (waiting == &queue_) return;
    }
  }
}

// False when it is not its turn, or the request has ended because it never will be.
bool RouterNode::MayGo(SequenceState& sequence, Time now) {
  const Verdict verdict = sequence.ready_at > now ? Verdict::kWait : Judge(sequence, now);
  if (verdict == Verdict::kFailed) return false;
  if (verdict == Verdict::kWait) {
    retry_at_ = std::min(retry_at_, sequence.ready_at);
    return false;
  }
  if (Holds(sequence)) return true;
  const bool is_recovering = sequence.moves + sequence.retries > 0;
  if (is_recovering && num_recovering_ >= options_.max_recovering) return false;
  const absl::Status fits = directory_.Fits(NeedOf(sequence));
  if (fits.ok()) return true;
  if (absl::IsUnavailable(fits)) {
    if (!AwaitWorkers(sequence, now)) Fail(sequence, fits);
    return false;
  }
  const std::string& param = requests_.at(sequence.request).body.prompt_param;
  Fail(sequence, WithErrorCode(WithErrorParam(fits, param), "context_length_exceeded"));
  return false;
}

// No usable pair is there: false when it has been waited for long enough.
bool RouterNode::AwaitWorkers(SequenceState& sequence, Time now) {
  const Time since = std::max(sequence.queued_since, directory_.LostAt(NeedOf(sequence)));
  const Time give_up = since +
                       (sequence.attempt > 0 ? options_.recovery_grace : options_.no_worker_grace);
  if (give_up <= now) return false;
  retry_at_ = std::min(retry_at_, give_up);
  return true;
}

// The candidates for the sides that it lacks; the side that it holds is given.
RoutingSnapshot RouterNode::SnapshotFor(const SequenceState& sequence, const RouteNeed& need,
                                        Time now) const {
  RoutingSnapshot snapshot = directory_.Snapshot(need, options_.max_pending_prefill_tokens, now);
  if (sequence.prefill.call != 0) {
    snapshot.prefill = {directory_.CandidateOf(sequence.prefill.worker)};
  }
  if (sequence.decode.call != 0) {
    snapshot.decode = {directory_.CandidateOf(sequence.decode.worker)};
  }
  for (auto* side : {&snapshot.prefill, &snapshot.decode}) {
    for (Candidate& candidate : *side) {
      candidate.matched_tokens = prefixes_.MatchedTokens(sequence.prefix_hashes, candidate.worker);
    }
  }
  return snapshot;
}

// Away from processes that failed this sequence and from blamed pairs, if there is another choice.
std::optional<Route> RouterNode::Choose(const SequenceState& sequence, const RouteNeed& need,
                                        Time now) {
  const RoutingSnapshot all = SnapshotFor(sequence, need, now);
  std::erase_if(blamed_, [now](const auto& item) { return item.second <= now; });
  if (blamed_.empty() && sequence.lost.empty()) return policy_->Choose(all);
  RoutingSnapshot preferred = all;
  for (const auto& [route, until] : blamed_) preferred.blamed.push_back(route);
  const auto has_failed = [&](const Candidate& candidate) {
    const Incarnation incarnation = directory_.at(candidate.worker).hello.incarnation;
    return std::ranges::find(sequence.lost, incarnation) != sequence.lost.end();
  };
  if (sequence.prefill.call == 0) std::erase_if(preferred.prefill, has_failed);
  if (sequence.decode.call == 0) std::erase_if(preferred.decode, has_failed);
  const std::optional<Route> route = policy_->Choose(preferred);
  return route ? route : policy_->Choose(all);
}

bool RouterNode::Assign(SequenceState& sequence, Time now) {
  const RouteNeed need = NeedOf(sequence);
  const std::optional<Route> route = Choose(sequence, need, now);
  if (!route) return false;

  Unqueue(sequence);
  LeaveQueue(requests_.at(sequence.request));
  ++sequence.attempt;
  sequence.last_progress = now;
  if (sequence.decode.call != 0) {
    Take(sequence.prefill, route->prefill, need.prompt_tokens);
    RebindTo(sequence, sequence.prefill.incarnation, now);
    return true;
  }
  if (sequence.prefill.call == 0) {
    sequence.base = need.prompt_tokens;
    sequence.group = directory_.at(route->prefill).group;
    sequence.handoff_failures = 0;
    sequence.recovering = sequence.moves + sequence.retries > 0;
    num_recovering_ += sequence.recovering ? 1 : 0;
    Take(sequence.prefill, route->prefill, need.prompt_tokens);
  }
  if (!need.needs_decode) {
    OpenPrefill(sequence, std::nullopt, now);
    return true;
  }
  Take(sequence.decode, route->decode, need.total_tokens);
  OpenDecode(sequence, now);
  return true;
}

void RouterNode::OpenDecode(SequenceState& sequence, Time now) {
  const RequestState& request = requests_.at(sequence.request);
  sequence.state = State::kReserving;
  Await(sequence, now);
  sequence.decode.call = next_call_++;
  calls_.emplace(sequence.decode.call, sequence.id.counter);
  outbox_.OpenDecode(sequence.decode.call, sequence.decode.worker,
                     DecodeRequest{.sequence = sequence.id,
                                   .attempt = sequence.attempt,
                                   .worker = sequence.decode.incarnation,
                                   .prefill = sequence.prefill.incarnation,
                                   .tokens = BaseTokens(sequence),
                                   .prompt_length = PromptLength(sequence),
                                   .sampling = SamplingOf(sequence),
                                   .tenant = request.body.tenant,
                                   .age = now - request.arrival,
                                   .timeout = request.deadline - now});
}

void RouterNode::OpenPrefill(SequenceState& sequence, std::optional<HandoffTarget> handoff,
                             Time now) {
  const RequestState& request = requests_.at(sequence.request);
  sequence.state = State::kPrefilling;
  sequence.prefilled = false;
  sequence.call_score = 1;
  if (sequence.prefill.tokens == 0) Take(sequence.prefill, sequence.prefill.worker, sequence.base);
  sequence.act_by = kNever;
  Rewatch(sequence);
  sequence.prefill.call = next_call_++;
  calls_.emplace(sequence.prefill.call, sequence.id.counter);
  outbox_.OpenPrefill(sequence.prefill.call, sequence.prefill.worker,
                      PrefillRequest{.sequence = sequence.id,
                                     .attempt = sequence.attempt,
                                     .worker = sequence.prefill.incarnation,
                                     .tokens = BaseTokens(sequence),
                                     .prompt_length = PromptLength(sequence),
                                     .sampling = SamplingOf(sequence),
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
  ++counters_.requeued;
  directory_.Skip(refused_by, now + options_.retry_delay);
  Drop(sequence.decode);
  if (sequence.hold_until == kNever) Drop(sequence.prefill);
  Enqueue(sequence, now);
}

// ---- What a sequence has of a worker -----------------------------------------------------------

void RouterNode::Take(Side& side, int32_t worker, int64_t tokens) {
  side.worker = worker;
  side.incarnation = directory_.at(worker).hello.incarnation;
  side.tokens = tokens;
  directory_.at(worker).pending_tokens += tokens;
}

void RouterNode::ReleaseTokens(Side& side) {
  if (side.tokens == 0) return;
  directory_.at(side.worker).pending_tokens -= std::exchange(side.tokens, 0);
}

void RouterNode::Drop(Side& side) {
  ReleaseTokens(side);
  if (side.call != 0 && calls_.erase(side.call) > 0) outbox_.Cancel(side.call);
  side.call = 0;
}

// Ends whatever is open of the sequence and gives back what was counted for it.
void RouterNode::ReleaseAll(SequenceState& sequence) {
  Unqueue(sequence);
  Drop(sequence.decode);
  Drop(sequence.prefill);
  EndRecovering(sequence);
  Watch(sequence, kNever);
}

void RouterNode::EndRecovering(SequenceState& sequence) {
  if (std::exchange(sequence.recovering, false)) --num_recovering_;
}

// The client has all of this choice: its workers are let go, and the request ends with its last.
void RouterNode::FinishIfDone(SequenceState& sequence, Time now) {
  if (!sequence.finished) return;
  if (sequence.owes_score) return AwaitScore(sequence, now);
  const uint64_t key = sequence.request;
  const uint64_t counter = sequence.id.counter;
  ReleaseAll(sequence);
  RequestState& request = requests_.at(key);
  std::erase(request.sequences, counter);
  sequences_.erase(counter);
  if (request.sequences.empty()) EndRequest(key, absl::OkStatus());
}

// Only a Prefill call is needed any more, the one that is open or another.
void RouterNode::AwaitScore(SequenceState& sequence, Time now) {
  Drop(sequence.decode);
  if (sequence.prefill.call == 0) return Enqueue(sequence, now);
  Unqueue(sequence);
  sequence.state = State::kPrefilling;
  sequence.act_by = kNever;
  sequence.hold_until = kNever;
  Rewatch(sequence);
}

void RouterNode::Fail(const SequenceState& sequence, absl::Status status) {
  EndRequest(sequence.request, std::move(status));
}

// ---- Snapshots ---------------------------------------------------------------------------------

RouterView RouterNode::View() const {
  RouterView view;
  for (const WorkerDirectory::Worker& w : directory_.workers()) {
    const bool draining = w.up && w.status.draining;
    view.workers.push_back({.role = w.role,
                            .address = "",
                            .healthy = w.up && !w.hung && !draining,
                            .reason = draining && !w.hung ? "draining" : w.reason,
                            .hello = w.hello,
                            .status = w.status,
                            .last_token = w.last_token});
  }
  view.queued_requests = queued_requests_;
  view.queued_tokens = queued_tokens_;
  view.running_requests = static_cast<int64_t>(requests_.size()) - queued_requests_;
  return view;
}

RouterAudit RouterNode::Audit(Time now) const {
  static constexpr const char* kNames[] = {"QUEUED", "RESERVING", "REBINDING", "PREFILLING",
                                           "DECODING"};
  RouterAudit audit{.incarnation = options_.incarnation, .sequences = {}, .blamed = {}};
  for (const auto& [counter, sequence] : sequences_) {
    const auto open = [](const Side& side) { return side.call != 0 ? side.incarnation : 0; };
    audit.sequences.push_back({.sequence = sequence.id,
                               .label = requests_.at(sequence.request).body.label,
                               .attempt = sequence.attempt,
                               .state = kNames[static_cast<int>(sequence.state)],
                               .prefill = open(sequence.prefill),
                               .decode = open(sequence.decode),
                               .age = now - requests_.at(sequence.request).arrival,
                               .moves = sequence.moves,
                               .retries = sequence.retries,
                               .handoff_failures = sequence.handoff_failures,
                               .lost = sequence.lost});
  }
  for (const auto& [route, until] : blamed_) {
    if (until > now) audit.blamed.push_back({route.prefill, route.decode, until - now});
  }
  return audit;
}

}  // namespace baton
