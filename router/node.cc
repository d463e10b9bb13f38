#include "router/node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/base/overloaded.h"
#include "router/event_checks.h"
#include "router/generation/error.h"

namespace baton {
namespace {

constexpr double kRetryBurst = 10;

// The worker did nothing for the call: it has no room, drains, is another process by now, or has
// this attempt twice.
bool IsRefusal(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status) ||
         absl::IsAlreadyExists(status);
}

absl::Status Gap(int32_t next, int32_t position) {
  return absl::DataLossError(
      absl::StrFormat("a worker skipped from position %d to %d", next, position));
}

// Says something of the request itself: another worker would say the same.
bool IsFinal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsUnimplemented(status);
}

}  // namespace

RouterNode::RouterNode(const RouterNodeOptions& options, const std::vector<Role>& worker_roles,
                       std::unique_ptr<RoutingPolicy> policy, RouterOutbox& outbox)
    : options_(options),
      directory_(worker_roles, options.hang_limit),
      policy_(std::move(policy)),
      prefixes_(options.max_directory_entries),
      outbox_(outbox),
      retry_credit_(kRetryBurst) {}

void RouterNode::Handle(RouterMail mail, Time now) {
  std::visit(
      Overloaded{
          [&](ClientSubmit& submit) { OnSubmit(std::move(submit), now); },
          [&](const ClientCancel& cancel) {
            EndRequest(cancel.request, absl::CancelledError("the client cancelled the request"));
          },
          [&](const ClientStop& stop) { OnStop(stop, now); },
          [&](WorkerEventReceived& event) { OnWorkerEvent(std::move(event), now); },
          [&](const CallClosed& closed) { OnCallClosed(closed, now); },
          [&](const WorkerUp& up) {
            if (directory_.OnUp(up.worker, up.hello, now)) prefixes_.Forget(up.worker);
          },
          [&](const WorkerStatusChanged& changed) {
            directory_.OnStatus(changed.worker, changed.status, now);
          },
          // Its calls end by themselves, each with a CallClosed.
          [&](const WorkerDown& down) { directory_.OnDown(down.worker, down.reason, now); },
          [&](const RouterAuditAsked& audit) { audit.answer(Audit(now)); }},
      mail);
}

void RouterNode::Step(Time now) {
  // Woken late, the router knows nothing of its workers' silence: answers may lie unread.
  if (wake_due_ != kNever && now - wake_due_ > options_.hang_limit / 6) {
    directory_.Forgive(now);
    RestartWaits(now);
  }
  while (auto request = deadlines_.Expired(now)) {
    EndRequest(*request, absl::DeadlineExceededError("the request's time limit has passed"));
  }
  FenceHungWorkers(now);
  while (auto counter = watches_.Expired(now)) CheckWatch(*counter, now);
  Dispatch(now);
  wake_due_ = NextDeadline();
}

Time RouterNode::NextDeadline() const {
  return std::min({deadlines_.Next(), watches_.Next(), retry_at_, directory_.NextHungAt()});
}

// ---- Clients -----------------------------------------------------------------------------------

absl::Status RouterNode::Admissible(const RequestState& request) const {
  const ValidRequest& body = request.body;
  const int64_t num_sequences = static_cast<int64_t>(body.prompts.size()) * body.num_choices;
  if (num_sequences < 1 || num_sequences > kMaxSequencesPerRequest) {
    return InvalidField("n", absl::StrFormat("prompts times n make %d sequences; allowed: 1 to %d.",
                                             num_sequences, kMaxSequencesPerRequest));
  }
  // What an empty queue would not hold is refused for good.
  if (request.prompt_tokens > options_.max_queued_tokens) {
    return InvalidField(
        body.prompt_param,
        absl::StrFormat("%s has %d tokens; this server takes at most %d in one request.",
                        body.prompt_param, request.prompt_tokens, options_.max_queued_tokens));
  }
  if (body.bytes > options_.max_queued_bytes) {
    return RequestTooLarge(body.bytes, options_.max_queued_bytes);
  }
  if (queued_requests_ + 1 > options_.max_queued_requests ||
      queued_tokens_ + request.prompt_tokens > options_.max_queued_tokens ||
      queued_bytes_ + body.bytes > options_.max_queued_bytes) {
    return absl::ResourceExhaustedError("the router's queue is full; try again later");
  }
  return absl::OkStatus();
}

void RouterNode::OnSubmit(ClientSubmit submit, Time now) {
  ++counters_.requests;
  if (requests_.contains(submit.request)) {
    ++counters_.stale_mail;
    return;
  }
  RequestState& request = requests_[submit.request];
  request.body = std::move(submit.body);
  request.arrival = now;
  request.deadline = now + request.body.timeout;
  deadlines_.Set(submit.request, request.deadline);
  for (const auto& prompt : request.body.prompts) {
    request.prompt_tokens += static_cast<int64_t>(prompt.size());
  }
  if (absl::Status status = Admissible(request); !status.ok()) {
    ++counters_.refused;
    EndRequest(submit.request, status);
    return;
  }
  request.cache_counted.resize(request.body.prompts.size());
  retry_credit_ = std::min(kRetryBurst, retry_credit_ + options_.retry_ratio);
  request.queued = true;
  ++queued_requests_;
  queued_tokens_ += request.prompt_tokens;
  queued_bytes_ += request.body.bytes;

  const bool wants_score = request.body.sampling.num_prompt_logprobs >= 0;
  const int32_t choices = request.body.score_only ? 1 : request.body.num_choices;
  for (int32_t p = 0; p < static_cast<int32_t>(request.body.prompts.size()); ++p) {
    const auto& prompt = request.body.prompts[p];
    const auto hashes = PrefixDirectory::Hashes(request.body.tenant, prompt);
    for (int32_t c = 0; c < choices; ++c) {
      const uint64_t counter = next_sequence_++;
      SequenceState& sequence = sequences_[counter];
      sequence.id = {options_.incarnation, counter};
      sequence.request = submit.request;
      sequence.choice = p * request.body.num_choices + c;
      sequence.prompt = p;
      sequence.owes_score = wants_score && c == 0 && prompt.size() > 1;
      sequence.prefix_hashes = hashes;
      sequence.queued_since = now;
      request.sequences.push_back(counter);
      queue_.insert(KeyOf(sequence));
    }
  }
  BATON_FAIL_POINT("router.queued");
}

void RouterNode::OnStop(const ClientStop& stop, Time now) {
  auto it = requests_.find(stop.request);
  if (it == requests_.end()) {
    ++counters_.stale_mail;
    return;
  }
  for (uint64_t counter : it->second.sequences) {
    SequenceState& sequence = sequences_.at(counter);
    if (sequence.choice != stop.choice) continue;
    sequence.finished = true;
    FinishIfDone(sequence, now);
    return;
  }
}

// The one place where a request ends: everything of it is let go, then the terminal event.
void RouterNode::EndRequest(uint64_t key, absl::Status status) {
  auto it = requests_.find(key);
  if (it == requests_.end()) {
    ++counters_.stale_mail;
    return;
  }
  BATON_FAIL_POINT("router.finishing");
  RequestState& request = it->second;
  for (uint64_t counter : request.sequences) {
    SequenceState& sequence = sequences_.at(counter);
    ReleaseAll(sequence);
    sequences_.erase(counter);
  }
  LeaveQueue(request);
  deadlines_.Clear(key, request.deadline);
  ++(status.ok()                 ? counters_.ok
     : absl::IsCancelled(status) ? counters_.cancelled
                                 : counters_.failed);
  RequestEnded ended{.status = std::move(status), .cached_tokens = request.cached_tokens};
  requests_.erase(it);
  outbox_.Emit(key, std::move(ended));
}

void RouterNode::LeaveQueue(RequestState& request) {
  if (!std::exchange(request.queued, false)) return;
  --queued_requests_;
  queued_tokens_ -= request.prompt_tokens;
  queued_bytes_ -= request.body.bytes;
}

// ---- Events of calls ---------------------------------------------------------------------------

void RouterNode::OnWorkerEvent(WorkerEventReceived received, Time now) {
  auto it = calls_.find(received.call);
  if (it == calls_.end()) {
    ++counters_.stale_mail;
    return;
  }
  SequenceState& sequence = sequences_.at(it->second);
  const bool is_decode = received.call == sequence.decode.call;
  const bool is_failure = std::holds_alternative<HandoffFailedEvent>(received.event);
  const bool is_reserved = std::holds_alternative<ReservedEvent>(received.event);
  const bool is_scores = std::holds_alternative<ScoresEvent>(received.event);
  const bool is_decode_event =
      !is_scores && !std::holds_alternative<PrefilledEvent>(received.event);
  const Attempt attempt = std::visit([](const auto& e) { return e.attempt; }, received.event);
  // What a call computed is right whatever attempt it names; tickets and failures go by attempt.
  const bool is_old = (is_failure || is_reserved) && attempt != sequence.attempt;
  const bool is_repeated =
      !is_decode_event && (sequence.prefilled || (is_scores && !sequence.owes_score));
  if (is_old || is_repeated || (!is_failure && is_decode != is_decode_event)) {
    ++counters_.stale_mail;
    return;
  }
  sequence.last_progress = now;
  if (auto* reserved = std::get_if<ReservedEvent>(&received.event)) {
    OnReserved(sequence, *reserved, now);
  } else if (is_scores) {
    OnScores(sequence, std::move(std::get<ScoresEvent>(received.event)), now);
  } else if (auto* prefilled = std::get_if<PrefilledEvent>(&received.event)) {
    OnPrefilled(sequence, std::move(*prefilled), now);
  } else if (is_failure) {
    OnHandoffFailed(sequence, now);
  } else {
    BATON_FAIL_POINT("router.decoding");
    NoteToken(sequence, std::get<TokensEvent>(received.event), now);
    OnDecoding(sequence);
    OnTokens(sequence, std::move(std::get<TokensEvent>(received.event)), now);
  }
}

void RouterNode::OnReserved(SequenceState& sequence, const ReservedEvent& event, Time now) {
  if (sequence.state != State::kReserving && sequence.state != State::kRebinding) {
    ++counters_.stale_mail;
    return;
  }
  if (absl::Status bad = CheckReserved(event, sequence.decode.incarnation, sequence.base);
      !bad.ok()) {
    return LoseDecode(sequence, std::move(bad), now);
  }
  sequence.act_by = kNever;
  sequence.hold_until = kNever;
  Rewatch(sequence);
  HandoffTarget target{.ticket = event.ticket,
                       .endpoint = event.data_endpoint,
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
  if (!directory_.IsUp(prefill.worker, prefill.incarnation)) {
    // It was lost since; the ticket is for nobody else.
    LosePrefill(sequence, absl::UnavailableError("the prefill worker was lost"), now);
    return;
  }
  prefixes_.Correct(sequence.prefix_hashes, sequence.decode.worker, event.cached_tokens);
  prefixes_.Add(sequence.prefix_hashes, sequence.decode.worker);
  OpenPrefill(sequence, std::move(target), now);
}

absl::Status RouterNode::CheckScore(const SequenceState& sequence,
                                    const PromptLogprob& score) const {
  const ValidRequest& body = requests_.at(sequence.request).body;
  const std::vector<int32_t>& prompt = body.prompts[sequence.prompt];
  if (score.position > sequence.call_score) return Gap(sequence.call_score, score.position);
  if (score.position < 1 || score.position >= static_cast<int32_t>(prompt.size()) ||
      score.token != prompt[score.position] ||
      static_cast<int64_t>(score.top.size()) > body.sampling.num_prompt_logprobs) {
    return absl::DataLossError(absl::StrFormat(
        "a worker's score at position %d is not what it was asked for", score.position));
  }
  return absl::OkStatus();
}

// Each Prefill call begins at the first position; the client sees each once, as the bits are equal.
void RouterNode::OnScores(SequenceState& sequence, ScoresEvent event, Time now) {
  PromptScored fresh{.prompt = sequence.prompt, .logprobs = {}};
  absl::Status status;
  for (PromptLogprob& score : event.logprobs) {
    status = CheckScore(sequence, score);
    if (!status.ok()) break;
    sequence.call_score = std::max(sequence.call_score, score.position + 1);
    if (score.position < sequence.next_score) continue;
    sequence.next_score = score.position + 1;
    fresh.logprobs.push_back(std::move(score));
  }
  if (!fresh.logprobs.empty()) outbox_.Emit(sequence.request, std::move(fresh));
  sequence.owes_score = sequence.next_score < PromptLength(sequence);
  if (!status.ok()) return LosePrefill(sequence, std::move(status), now);
  if (sequence.owes_score) return;
  // Nothing else may be wanted of this call: it must not be sought again if it is lost now.
  sequence.finished = sequence.finished || requests_.at(sequence.request).body.score_only;
  FinishIfDone(sequence, now);
}

void RouterNode::OnPrefilled(SequenceState& sequence, PrefilledEvent event, Time now) {
  BATON_FAIL_POINT("router.transferring");
  if (sequence.owes_score) {
    return LosePrefill(sequence, Gap(sequence.call_score, PromptLength(sequence)), now);
  }
  if (absl::Status bad = CheckFirst(sequence, event); !bad.ok()) {
    return LosePrefill(sequence, std::move(bad), now);
  }
  sequence.prefilled = true;
  ReleaseTokens(sequence.prefill);
  RequestState& request = requests_.at(sequence.request);
  if (!request.cache_counted[sequence.prompt]) {
    request.cache_counted[sequence.prompt] = true;
    request.cached_tokens += std::min(event.cached_tokens, PromptLength(sequence));
  }
  prefixes_.Correct(sequence.prefix_hashes, sequence.prefill.worker, event.cached_tokens);
  prefixes_.Add(sequence.prefix_hashes, sequence.prefill.worker);
  if (request.body.score_only) sequence.finished = true;
  // The decode worker has the KV or computes it: this call brought the score and is not needed.
  if (sequence.state == State::kDecoding && sequence.handoff_failures > 0) Drop(sequence.prefill);
  if (event.first) {
    OnTokens(sequence, {.attempt = event.attempt, .outputs = {*std::move(event.first)}}, now);
  } else {
    FinishIfDone(sequence, now);
  }
}

// The first token that the decode worker computed proves the prefill worker and the handoff too.
void RouterNode::NoteToken(const SequenceState& sequence, const TokensEvent& event, Time now) {
  if (event.outputs.empty() || event.outputs.back().position <= sequence.base) return;
  const auto note = [&](const Side& side) {
    if (directory_.IsUp(side.worker, side.incarnation)) directory_.at(side.worker).last_token = now;
  };
  note(sequence.decode);
  const bool is_first = event.outputs.front().position <= sequence.base + 1;
  if (is_first && sequence.handoff_failures == 0) note(sequence.prefill);
}

// Before anything of the event counts.
absl::Status RouterNode::CheckFirst(const SequenceState& sequence,
                                    const PrefilledEvent& event) const {
  if (absl::Status bad = CheckPrefilled(event, sequence.base); !bad.ok()) return bad;
  if (event.first.has_value() == requests_.at(sequence.request).body.score_only) {
    return absl::DataLossError(event.first ? "a worker sampled a token of a prompt to be scored only"
                                           : "a worker computed a prompt and sampled no token");
  }
  return event.first ? CheckNext(sequence, *event.first) : absl::OkStatus();
}

// A position that the client has is no news, whatever else is said of it.
absl::Status RouterNode::CheckNext(const SequenceState& sequence, const TokenOutput& output) const {
  const int32_t next = NextPosition(sequence);
  if (sequence.finished || output.position < next) return absl::OkStatus();
  if (output.position > next) return Gap(next, output.position);
  return CheckOutput(output, requests_.at(sequence.request).body.sampling,
                     static_cast<int32_t>(sequence.emitted.size()) + 1);
}

// The decode worker has verified the KV, or computes it, and goes on, whatever the prefill call
// says.
void RouterNode::OnDecoding(SequenceState& sequence) {
  if (sequence.state == State::kQueued) Unqueue(sequence);
  sequence.state = State::kDecoding;
  sequence.act_by = kNever;
  sequence.hold_until = kNever;
  sequence.losses.clear();
  Rewatch(sequence);
  EndRecovering(sequence);
  // KV that is kept because its handoff seemed to fail is not needed any more.
  if (sequence.handoff_failures > 0 && sequence.prefilled) Drop(sequence.prefill);
  if (sequence.prefill.call == 0) ReleaseTokens(sequence.prefill);
}

// Both workers tell the first token: whichever copy comes first is emitted, each position once.
void RouterNode::OnTokens(SequenceState& sequence, TokensEvent event, Time now) {
  ChoiceTokens fresh{.choice = sequence.choice, .outputs = {}};
  absl::Status bad;
  for (TokenOutput& output : event.outputs) {
    if (sequence.finished || output.position < NextPosition(sequence)) {
      ++counters_.stale_tokens;
      continue;
    }
    if (bad = CheckNext(sequence, output); !bad.ok()) break;
    sequence.emitted.push_back(output.token);
    sequence.finished = output.finish != FinishReason::kNone;
    fresh.outputs.push_back(std::move(output));
  }
  if (!fresh.outputs.empty()) outbox_.Emit(sequence.request, std::move(fresh));
  if (!bad.ok()) return LoseDecode(sequence, std::move(bad), now);
  FinishIfDone(sequence, now);
}

// ---- Ends of calls -----------------------------------------------------------------------------

void RouterNode::OnCallClosed(const CallClosed& closed, Time now) {
  auto it = calls_.find(closed.call);
  if (it == calls_.end()) {
    ++counters_.stale_mail;
    return;
  }
  SequenceState& sequence = sequences_.at(it->second);
  calls_.erase(it);
  sequence.last_progress = now;
  if (closed.call == sequence.decode.call) {
    sequence.decode.call = 0;
    OnDecodeClosed(sequence, closed.status, now);
  } else {
    sequence.prefill.call = 0;
    OnPrefillClosed(sequence, closed.status, now);
  }
}

void RouterNode::OnDecodeClosed(SequenceState& sequence, const absl::Status& status, Time now) {
  if (IsRefusal(status) && sequence.state != State::kDecoding) {
    Requeue(sequence, sequence.decode.worker, now);
  } else if (status.ok()) {
    LoseDecode(sequence, absl::AbortedError("a decode worker ended a call before its last token"),
               now);
  } else if (IsFinal(status)) {
    Fail(sequence, status);
  } else {
    LoseDecode(sequence, status, now);
  }
}

void RouterNode::OnPrefillClosed(SequenceState& sequence, const absl::Status& status, Time now) {
  if (sequence.state == State::kDecoding) {
    // The decode worker has the KV. A score that is still owed is sought again at the end.
    ReleaseTokens(sequence.prefill);
  } else if (IsRefusal(status)) {
    Requeue(sequence, sequence.prefill.worker, now);
  } else if (IsFinal(status)) {
    Fail(sequence, status);
  } else if (status.ok() && !sequence.prefilled) {
    LosePrefill(sequence,
                absl::AbortedError("a prefill worker ended a call before its first token"), now);
  } else if (status.ok()) {
    // A decode worker has verified it: its tokens follow. A queued sequence has given that worker
    // up and holds nothing now; one that has asked for a Send to another is too late, and finds
    // out.
    if (sequence.state == State::kQueued) {
      Enqueue(sequence, now);
    } else if (sequence.state == State::kPrefilling) {
      Await(sequence, now);
    }
  } else {
    LosePrefill(sequence, status, now);
  }
}

}  // namespace baton
