#include "tests/bench/router/mock_nodes.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace baton::bench {
namespace {

// Ordinary words of a vocabulary: its first ids are often bytes or special.
constexpr int32_t kFirstToken = 300;
constexpr int32_t kNumTokens = 1000;

// Both workers tell the first token: they must say the same.
TokenOutput OutputAt(int32_t position, int32_t end) {
  return {.position = position,
          .token = kFirstToken + position % kNumTokens,
          .finish = position + 1 == end ? FinishReason::kLength : FinishReason::kNone};
}

template <typename Request>
int32_t EndOf(const Request& request) {
  return request.prompt_length + request.sampling.max_tokens;
}

}  // namespace

TicketId TicketOf(CallId call) { return {.hi = call, .lo = 0}; }

void MockDecodeNode::Handle(DecodeMail mail, Time now) {
  if (const auto* opened = std::get_if<DecodeOpened>(&mail)) {
    Open(*opened, now);
  } else if (const auto* event = std::get_if<TransferEvent>(&mail)) {
    Arrive(*event, now);
  } else if (const auto* broken = std::get_if<CallBroken>(&mail)) {
    Forget(broken->call);
  } else if (const auto* asked = std::get_if<WorkerAuditAsked>(&mail)) {
    asked->answer({.incarnation = options_.incarnation});
  }
}

void MockDecodeNode::Open(const DecodeOpened& opened, Time now) {
  if (num_sequences() >= options_.max_running) {
    return outbox_.Close(opened.call, absl::ResourceExhaustedError("no room"));
  }
  const DecodeRequest& request = opened.request;
  Sequence& sequence = sequences_[opened.call];
  sequence = {.attempt = request.attempt,
              .position = static_cast<int32_t>(request.tokens.size()),
              .end = EndOf(request)};
  if (request.prefill == 0) {  // It returns: its K/V is here.
    outbox_.Emit(opened.call, TokensEvent{.attempt = request.attempt});
    return Begin(sequence, now);
  }
  outbox_.Emit(opened.call,
               ReservedEvent{.attempt = request.attempt,
                             .ticket = TicketOf(opened.call),
                             .ranks = {{.endpoint = "127.0.0.1:1", .heads = {.count = 1}}},
                             .decode = options_.incarnation});
}

void MockDecodeNode::Begin(Sequence& sequence, Time now) {
  if (num_running_++ == 0) next_step_ = now + options_.pace;
  sequence.running = true;
}

void MockDecodeNode::Arrive(const TransferEvent& event, Time now) {
  const CallId call = event.ticket.hi;
  const auto it = sequences_.find(call);
  if (it == sequences_.end() || it->second.running) return;
  Begin(it->second, now);
  if (EmitNext(call, it->second)) Forget(call);
}

void MockDecodeNode::Forget(CallId call) {
  const auto it = sequences_.find(call);
  if (it == sequences_.end()) return;
  if (it->second.running) --num_running_;
  sequences_.erase(it);
}

bool MockDecodeNode::EmitNext(CallId call, Sequence& sequence) {
  const TokenOutput output = OutputAt(sequence.position++, sequence.end);
  outbox_.Emit(call, TokensEvent{.attempt = sequence.attempt, .outputs = {output}});
  if (output.finish == FinishReason::kNone) return false;
  outbox_.Close(call, absl::OkStatus());
  return true;
}

void MockDecodeNode::Step(Time now) {
  if (num_running_ == 0 || now < next_step_) return;
  // A step that came late is not made up for, as on a worker.
  next_step_ = std::max(next_step_ + options_.pace, now);
  std::vector<CallId> ended;
  for (auto& [call, sequence] : sequences_) {
    if (sequence.running && EmitNext(call, sequence)) ended.push_back(call);
  }
  for (const CallId call : ended) Forget(call);
}

void MockPrefillNode::Handle(PrefillMail mail, Time now) {
  if (auto* opened = std::get_if<PrefillOpened>(&mail)) {
    if (waiting_.empty()) ready_at_ = now + options_.prompt_time;
    waiting_.push_back(std::move(*opened));
  } else if (const auto* broken = std::get_if<CallBroken>(&mail)) {
    std::erase_if(waiting_, [&](const PrefillOpened& one) { return one.call == broken->call; });
  } else if (const auto* asked = std::get_if<WorkerAuditAsked>(&mail)) {
    asked->answer({.incarnation = options_.incarnation});
  }
}

void MockPrefillNode::Step(Time now) {
  while (!waiting_.empty() && ready_at_ <= now) {
    Answer(waiting_.front());
    waiting_.pop_front();
    ready_at_ += options_.prompt_time;
  }
}

void MockPrefillNode::Answer(PrefillOpened& opened) {
  const PrefillRequest& request = opened.request;
  const TokenOutput first =
      OutputAt(static_cast<int32_t>(request.tokens.size()), EndOf(request));
  outbox_.Emit(opened.call, PrefilledEvent{.attempt = request.attempt, .first = first});
  if (request.handoff.has_value()) {
    arrived_({.ticket = request.handoff->ticket, .receiver = true, .first = first});
  }
  outbox_.Close(opened.call, absl::OkStatus());
}

}  // namespace baton::bench
