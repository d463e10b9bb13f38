#include "router/node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace baton {
namespace {

// The worker did nothing for the call: it has no room, drains, or is another process by now.
bool IsRefusal(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status);
}

}  // namespace

RouterNode::RouterNode(const RouterNodeOptions& options, const std::vector<Role>& worker_roles,
                       std::unique_ptr<RoutingPolicy> policy, RouterOutbox& outbox)
    : options_(options),
      directory_(worker_roles),
      policy_(std::move(policy)),
      prefixes_(options.max_directory_entries),
      outbox_(outbox) {}

void RouterNode::Handle(Message message, Time now) {
  if (auto* submit = std::get_if<ClientSubmit>(&message)) {
    OnSubmit(std::move(*submit), now);
  } else if (auto* cancel = std::get_if<ClientCancel>(&message)) {
    EndRequest(cancel->request, absl::CancelledError("the client cancelled the request"));
  } else if (auto* stop = std::get_if<ClientStop>(&message)) {
    OnStop(*stop);
  } else if (auto* event = std::get_if<WorkerEventReceived>(&message)) {
    OnWorkerEvent(std::move(*event), now);
  } else if (auto* closed = std::get_if<CallClosed>(&message)) {
    OnCallClosed(*closed, now);
  } else if (auto* up = std::get_if<WorkerUp>(&message)) {
    if (directory_.OnUp(up->worker, up->hello, now)) prefixes_.Forget(up->worker);
  } else if (auto* status = std::get_if<WorkerStatusChanged>(&message)) {
    directory_.OnStatus(status->worker, status->status, now);
  } else if (auto* down = std::get_if<WorkerDown>(&message)) {
    // Its calls end by themselves, each with a CallClosed.
    directory_.OnDown(down->worker, down->reason);
  } else {
    ++counters_.stale_mail;
  }
}

void RouterNode::Step(Time now) {
  while (auto request = deadlines_.Expired(now)) {
    EndRequest(*request, absl::DeadlineExceededError("the request's time limit has passed"));
  }
  while (auto counter = watches_.Expired(now)) CheckWatch(*counter, now);
  Dispatch(now);
}

Time RouterNode::NextDeadline() const {
  return std::min({deadlines_.Next(), watches_.Next(), retry_at_});
}

// ---- Clients -----------------------------------------------------------------------------------

absl::Status RouterNode::Admissible(const ValidRequest& body) const {
  const int64_t num_sequences = static_cast<int64_t>(body.prompts.size()) * body.num_choices;
  if (num_sequences < 1 || num_sequences > options_.max_sequences_per_request) {
    return absl::InvalidArgumentError(
        absl::StrFormat("prompts x n make %d sequences; allowed: 1 to %d", num_sequences,
                        options_.max_sequences_per_request));
  }
  int64_t tokens = 0;
  for (const auto& prompt : body.prompts) tokens += static_cast<int64_t>(prompt.size());
  if (queued_requests_ + 1 > options_.max_queued_requests ||
      queued_tokens_ + tokens > options_.max_queued_tokens ||
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
  if (absl::Status status = Admissible(request.body); !status.ok()) {
    ++counters_.refused;
    EndRequest(submit.request, status);
    return;
  }
  request.cache_counted.resize(request.body.prompts.size());
  for (const auto& prompt : request.body.prompts) {
    request.prompt_tokens += static_cast<int64_t>(prompt.size());
  }
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
      sequence.next_position = static_cast<int32_t>(prompt.size());
      sequence.owes_score = wants_score && c == 0;
      sequence.prefix_hashes = hashes;
      request.sequences.push_back(counter);
      queue_.insert(KeyOf(sequence));
    }
  }
}

void RouterNode::OnStop(const ClientStop& stop) {
  auto it = requests_.find(stop.request);
  if (it == requests_.end()) {
    ++counters_.stale_mail;
    return;
  }
  for (uint64_t counter : it->second.sequences) {
    SequenceState& sequence = sequences_.at(counter);
    if (sequence.choice != stop.choice) continue;
    sequence.finished = true;
    FinishIfDone(sequence);
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
  RequestState& request = it->second;
  for (uint64_t counter : request.sequences) {
    SequenceState& sequence = sequences_.at(counter);
    queue_.erase(KeyOf(sequence));
    ReleaseCalls(sequence);
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
  const bool is_decode = received.call == sequence.decode_call;
  const Attempt attempt = std::visit([](const auto& e) { return e.attempt; }, received.event);
  const bool is_decode_event = !std::holds_alternative<PrefilledEvent>(received.event);
  if (attempt != sequence.attempt || is_decode != is_decode_event) {
    ++counters_.stale_mail;
    return;
  }
  sequence.last_progress = now;
  if (auto* reserved = std::get_if<ReservedEvent>(&received.event)) {
    OnReserved(sequence, *reserved, now);
  } else if (auto* prefilled = std::get_if<PrefilledEvent>(&received.event)) {
    OnPrefilled(sequence, std::move(*prefilled));
  } else {
    // The decode worker has verified the KV and goes on with it, whatever the prefill call says.
    sequence.state = State::kDecoding;
    OnTokens(sequence, std::move(std::get<TokensEvent>(received.event)));
  }
}

void RouterNode::OnReserved(SequenceState& sequence, const ReservedEvent& event, Time now) {
  if (sequence.state != State::kReserving) {
    ++counters_.stale_mail;
    return;
  }
  if (directory_.at(sequence.route.prefill).hello.incarnation != sequence.prefill) {
    Requeue(sequence, sequence.route.prefill,
            now);  // It restarted since; the ticket is not for it.
    return;
  }
  prefixes_.Correct(sequence.prefix_hashes, sequence.route.decode, event.cached_tokens);
  prefixes_.Add(sequence.prefix_hashes, sequence.route.decode);
  OpenPrefill(sequence,
              HandoffTarget{.ticket = event.ticket,
                            .endpoint = event.data_endpoint,
                            .pair_key = event.pair_key,
                            .decode = event.decode,
                            .first_token = event.cached_tokens},
              now);
}

void RouterNode::OnPrefilled(SequenceState& sequence, PrefilledEvent event) {
  if (sequence.prefilled) {
    ++counters_.stale_mail;
    return;
  }
  sequence.prefilled = true;
  ReleasePrefillTokens(sequence);
  RequestState& request = requests_.at(sequence.request);
  if (!request.cache_counted[sequence.prompt]) {
    request.cache_counted[sequence.prompt] = true;
    request.cached_tokens += event.cached_tokens;
  }
  prefixes_.Correct(sequence.prefix_hashes, sequence.route.prefill, event.cached_tokens);
  prefixes_.Add(sequence.prefix_hashes, sequence.route.prefill);
  if (std::exchange(sequence.owes_score, false)) {
    outbox_.Emit(sequence.request, PromptScored{.prompt = sequence.prompt,
                                                .logprobs = std::move(event.prompt_logprobs)});
  }
  if (request.body.score_only) sequence.finished = true;
  if (event.first) {
    OnTokens(sequence, {.attempt = event.attempt, .outputs = {*std::move(event.first)}});
  } else {
    FinishIfDone(sequence);
  }
}

// Both workers tell the first token: whichever copy comes first is emitted, each position once.
void RouterNode::OnTokens(SequenceState& sequence, TokensEvent event) {
  ChoiceTokens fresh{.choice = sequence.choice};
  for (TokenOutput& output : event.outputs) {
    if (sequence.finished || output.position < sequence.next_position) {
      ++counters_.stale_tokens;
      continue;
    }
    if (output.position > sequence.next_position) {
      Fail(sequence, absl::InternalError(absl::StrFormat("a worker skipped from position %d to %d",
                                                         sequence.next_position, output.position)));
      return;
    }
    ++sequence.next_position;
    sequence.finished = output.finish != FinishReason::kNone;
    fresh.outputs.push_back(std::move(output));
  }
  if (!fresh.outputs.empty()) outbox_.Emit(sequence.request, std::move(fresh));
  FinishIfDone(sequence);
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
  if (closed.call == sequence.decode_call) {
    sequence.decode_call = 0;
    OnDecodeClosed(sequence, closed.status, now);
  } else {
    sequence.prefill_call = 0;
    OnPrefillClosed(sequence, closed.status, now);
  }
}

void RouterNode::OnDecodeClosed(SequenceState& sequence, const absl::Status& status, Time now) {
  if (sequence.finished) return;  // It owes a score that the prefill call brings.
  const bool refused =
      IsRefusal(status) || (sequence.state == State::kReserving && absl::IsUnavailable(status));
  if (refused) {
    Requeue(sequence, sequence.route.decode, now);
  } else if (status.ok()) {
    Fail(sequence, absl::InternalError("a decode worker ended a call before its last token"));
  } else {
    Fail(sequence, status);
  }
}

void RouterNode::OnPrefillClosed(SequenceState& sequence, const absl::Status& status, Time now) {
  if (status.ok() && sequence.prefilled) return;
  const bool is_decoding = sequence.state == State::kDecoding;
  if (absl::IsAborted(status) && !(is_decoding && sequence.owes_score)) {
    // The decode worker knows whether the KV is there, or that it revoked the reservation: it goes
    // on, or ends its call.
    ++counters_.handoff_aborts;
    if (is_decoding) return;
    sequence.verdict_until = now + options_.verdict_limit;
    Watch(sequence, sequence.verdict_until);
  } else if (IsRefusal(status)) {
    Requeue(sequence, sequence.route.prefill, now);
  } else if (status.ok()) {
    Fail(sequence, absl::InternalError("a prefill worker ended a call before its first token"));
  } else if (!is_decoding || sequence.owes_score) {
    Fail(sequence, status);
  }
}

}  // namespace baton
