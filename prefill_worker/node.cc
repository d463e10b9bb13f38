#include "prefill_worker/node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/digest.h"
#include "common/base/fail_point.h"
#include "common/base/overloaded.h"

namespace baton {
namespace {

// Whether a decode worker shares this machine's cores and memory.
bool IsLocal(std::string_view endpoint) {
  return endpoint.starts_with("127.") || endpoint.starts_with("[::1]:") ||
         endpoint.starts_with("localhost:");
}

// Answers of one decode worker on this machine share its steps. 0 for a prompt whose log
// probabilities are wanted, and for one of whose answer somebody has seen a part.
uint64_t FinishGroup(const PrefillRequest& request) {
  const bool is_new = request.prompt_length == static_cast<int32_t>(request.tokens.size());
  const bool waits = request.handoff && IsLocal(request.handoff->ranks[0].endpoint) && is_new &&
                     !request.score_only && request.sampling.num_prompt_logprobs < 0;
  return waits ? request.handoff->decode : 0;
}

}  // namespace

template class WorkerNode<PrefillEntry, PrefillMail, PrefillCounters>;

PrefillNode::PrefillNode(const WorkerParts& parts, const PrefillNodeOptions& options)
    : WorkerNode(parts),
      options_(options),
      max_running_(static_cast<size_t>(parts.engine.max_batch_sequences)) {}

void PrefillNode::Handle(PrefillMail mail, Time now) {
  std::visit(Overloaded{[&](PrefillOpened& opened) { OnOpened(std::move(opened), now); },
                        [&](SendAsked& send) { OnSend(std::move(send.request), now); },
                        [&](LayerDone& layer) { OnLayerDone(layer, now); },
                        [&](auto& shared) { On(shared, now); }},
             mail);
}

void PrefillNode::Step(Time now) {
  EndOverdue(now, absl::AbortedError("the handoff failed and no other came about in time"),
             &counters_.kept_expired);
  AdmitWaiting();
  StartStep(now);
}

absl::Status PrefillNode::Admissible(const PrefillRequest& request) const {
  // RESOURCE_EXHAUSTED is the one answer that says: nothing was done, try elsewhere or later.
  if (draining_) return absl::ResourceExhaustedError("this prefill worker is draining");
  const int64_t num_tokens = static_cast<int64_t>(request.tokens.size());
  const int64_t limit = MostTokens();
  if (num_tokens < 1 || num_tokens > limit) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "prompt has %d tokens; this prefill worker takes 1 to %d", num_tokens, limit));
  }
  if (request.handoff &&
      (request.handoff->first_token < 0 || request.handoff->first_token >= num_tokens)) {
    return absl::InvalidArgumentError(absl::StrFormat("handoff.first_token is %d; allowed: 0 to %d",
                                                      request.handoff->first_token,
                                                      num_tokens - 1));
  }
  if (calls_.IsLive(request.sequence, request.attempt)) {
    return absl::AlreadyExistsError("this attempt of the sequence is being prefilled");
  }
  if (request.handoff && tickets_.contains(request.handoff->ticket)) {
    // No fault of the request: with another reservation it is taken.
    return absl::AbortedError("handoff.ticket is in use by another call");
  }
  if (static_cast<int32_t>(waiting_.size()) >= options_.max_waiting) {
    return absl::ResourceExhaustedError("this prefill worker's queue is full");
  }
  return absl::OkStatus();
}

void PrefillNode::OnOpened(PrefillOpened opened, Time now) {
  PrefillRequest& request = opened.request;
  if (Refuses(opened.call, Admissible(request))) return;
  const uint64_t finish_group = FinishGroup(request);
  Entry& entry = calls_.Open(opened.call, request, now);
  Sequence& sequence = *entry.sequence;
  sequence.prefill_only = true;
  sequence.score_only = request.score_only;
  sequence.finish_group = finish_group;
  sequence.wait_until = now + request.timeout / 2;
  entry.num_tokens = sequence.num_tokens();
  entry.handoff = std::move(request.handoff);
  waiting_.emplace(entry.age, entry.call);
  if (entry.handoff) tickets_.emplace(entry.handoff->ticket, entry.call);
  CheckHeld(entry);
  BATON_FAIL_POINT("prefill.queued");
}

void PrefillNode::AdmitWaiting() {
  // Strictly by age: a long prompt at the front is not starved by short ones behind it.
  while (!waiting_.empty() && engine_.num_running() < max_running_) {
    if (!Admit(calls_.at(waiting_.begin()->second))) return;
  }
}

// Takes all blocks of the prompt or none.
bool PrefillNode::Admit(Entry& entry) {
  CheckHeld(entry);
  BATON_CHECK(entry.state == State::kWaiting);
  Sequence& sequence = *entry.sequence;
  const int32_t num_tokens = sequence.num_tokens();
  // Prompt log probabilities need every position computed here.
  const bool may_match = sequence.sampling->params.num_prompt_logprobs < 0;
  BlockTable table = allocator_.Match(sequence.salt(), sequence.tokens,
                                      may_match ? num_tokens - 1 : 0, MatchFor::kSend);
  if (!allocator_.Grow(table, allocator_.BlocksFor(num_tokens) - table.size())) return false;
  sequence.num_computed = table.num_sealed() * allocator_.block_size();
  sequence.blocks = std::move(table);
  entry.cached_tokens = sequence.num_computed;
  entry.state = State::kComputing;
  waiting_.erase(entry.age);
  counters_.prompt_tokens += num_tokens;
  counters_.cached_tokens += entry.cached_tokens;

  if (entry.handoff && !entry.send_due) {
    StartTransfer(entry, num_tokens);
    for (int32_t layer = 0; layer < NumLayers(model_.layout); ++layer) {
      PushRows(entry, layer, 0, entry.cached_tokens);
    }
  }
  engine_.Add(std::move(entry.sequence));
  CheckHeld(entry);
  return true;
}

void PrefillNode::StartTransfer(Entry& entry, int32_t num_tokens) {
  BATON_CHECK(!entry.in_engine() && !entry.transfer_open());
  BATON_CHECK(tickets_.at(entry.handoff->ticket) == entry.call);
  ++counters_.handoffs;
  entry.open_ticket = entry.handoff->ticket;
  // The decode worker asks for no more; what lies before may go while the transfer runs.
  entry.handoff->first_token =
      std::max(entry.handoff->first_token, TokensLeftOut(model_.layout, num_tokens));
  transport_.Start({.ticket = entry.open_ticket,
                    .endpoint = entry.handoff->ranks[0].endpoint,
                    .receivers = entry.handoff->ranks,
                    .key = entry.handoff->pair_key,
                    .sender = incarnation_,
                    .receiver = entry.handoff->decode,
                    .blocks = entry.sequence->blocks.Flat(entry.sequence->blocks.size()),
                    .first_token = entry.handoff->first_token,
                    .num_tokens = num_tokens});
}

// Of a target that cannot be sent to.
std::string PrefillNode::WhyBad(const HandoffTarget& target, const Entry& entry) const {
  if (tickets_.contains(target.ticket)) return "handoff.ticket is in use";
  if (target.first_token >= 0 && target.first_token < entry.num_tokens) return "";
  return absl::StrFormat("handoff.first_token is %d; allowed: 0 to %d", target.first_token,
                         entry.num_tokens - 1);
}

// Another target for the KV of a live call: whatever goes to the old one is called off first.
void PrefillNode::OnSend(SendRequest request, Time now) {
  Entry* found = calls_.FindBefore(request.sequence, request.attempt);
  if (found == nullptr || !found->handoff) {
    ++counters_.stale_mail;
    return;
  }
  Entry& entry = *found;
  CheckHeld(entry);
  const std::string bad = WhyBad(request.handoff, entry);
  if (!bad.empty()) return FailHandoff(entry, request.attempt, bad);
  ++counters_.sends;
  calls_.SetAttempt(entry, request.attempt);
  if (entry.transfer_open()) transport_.Abort(entry.open_ticket);
  // A target whose transfer never started, or has ended, is forgotten; one that runs at its end.
  auto old = tickets_.find(entry.handoff->ticket);
  const bool is_running = entry.open_ticket == entry.handoff->ticket;
  if (old != tickets_.end() && old->second == entry.call && !is_running) tickets_.erase(old);
  entry.handoff = std::move(request.handoff);
  entry.send_due = true;
  // It waited for others of a decode worker that is lost.
  engine_.FinishAlone(entry.call);
  if (!entry.in_engine()) entry.sequence->finish_group = 0;
  tickets_.emplace(entry.handoff->ticket, entry.call);
  StartSend(entry, now);
  CheckHeld(entry);
}

void PrefillNode::StartSend(Entry& entry, Time now) {
  const bool computed = entry.state == State::kSending || entry.state == State::kKept;
  if (!entry.send_due || !computed) return;
  entry.state = State::kSending;
  if (entry.transfer_open()) return calls_.SetStateLimit(entry, now + options_.abort_limit);
  entry.send_due = false;
  calls_.SetStateLimit(entry, kNever);
  StartTransfer(entry, entry.sequence->num_computed);
  for (int32_t layer = 0; layer < NumLayers(model_.layout); ++layer) {
    PushRows(entry, layer, 0, entry.sequence->num_computed);
  }
  Finish(entry);
}

// Sends tokens [begin, end) of a layer, without what the decode worker holds already.
void PrefillNode::PushRows(const Entry& entry, int32_t layer, int32_t begin, int32_t end) {
  BATON_CHECK(entry.open_ticket == entry.handoff->ticket);
  const KvLayerGroup& group = GroupOfLayer(model_.layout, layer);
  begin = std::max({begin, entry.handoff->first_token, TokensLeftOut(group, entry.num_tokens)});
  if (begin >= end) return;
  transport_.Push({.ticket = entry.handoff->ticket,
                   .layer = layer,
                   .first_token = begin,
                   .num_tokens = end - begin});
  BATON_FAIL_POINT("prefill.transferring");
}

void PrefillNode::OnLayerDone(const LayerDone& done, Time now) {
  if (!OnMark(done.step, now)) return;
  BATON_FAIL_POINT("prefill.prefilling");
  const std::vector<StepRow>& rows = engine_.step_in_flight()->rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Entry& entry = calls_.at(engine_.step_calls()[i]);
    const bool sends = entry.transfer_open() && !entry.send_due;
    if (entry.state != State::kComputing || !sends) continue;
    PushRows(entry, done.layer, rows[i].context_len,
             rows[i].context_len + static_cast<int32_t>(rows[i].tokens.size()));
  }
}

void PrefillNode::OnProgress(Entry& entry, SequenceProgress& progress, Time now) {
  BATON_CHECK(entry.state == State::kComputing);
  if (!progress.status.ok()) return Close(entry, progress.status);
  EmitScores(entry, std::move(progress.prompt_logprobs));
  if (progress.ended) OnPrefilled(entry, std::move(progress.output), now);
}

void PrefillNode::OnPrefilled(Entry& entry, std::optional<TokenOutput> first, Time now) {
  BATON_CHECK(entry.state == State::kComputing);
  BATON_CHECK(entry.sequence->num_computed == entry.num_tokens);
  outbox_.Emit(entry.call, PrefilledEvent{.attempt = entry.attempt,
                                          .first = first,
                                          .cached_tokens = entry.cached_tokens});
  if (!entry.handoff) return Close(entry, absl::OkStatus());
  entry.state = State::kSending;
  entry.first = std::move(first);
  if (entry.send_due) {
    StartSend(entry, now);
  } else if (!entry.transfer_open()) {
    Keep(entry, now);
  } else {
    Finish(entry);
  }
  CheckHeld(entry);
}

// Also when the first token is the last one: the decode worker then verifies, repeats it and ends,
// so no abort races with what the router hears from the two workers.
void PrefillNode::Finish(const Entry& entry) {
  CheckHeld(entry);
  BATON_CHECK(entry.state == State::kSending && entry.first.has_value());
  const Sequence& sequence = *entry.sequence;
  transport_.Finish(
      {.ticket = entry.open_ticket,
       .digests = {.layout = LayoutDigest(model_.layout),
                   .model = model_.model_digest,
                   .tokens = TokensDigest(std::span(sequence.tokens).first(sequence.num_computed))},
       .first = *entry.first});
  BATON_FAIL_POINT("prefill.finishing");
}

void PrefillNode::OnTransferEnded(Entry& entry, const TransferEvent& event, Time now) {
  BATON_CHECK(entry.state == State::kComputing || entry.state == State::kSending);
  BATON_CHECK(entry.handoff.has_value());
  if (entry.send_due) {
    StartSend(entry, now);
  } else if (event.status.ok()) {
    BATON_FAIL_POINT("prefill.decoding");
    Close(entry, absl::OkStatus());
  } else {
    // The decode worker is the authority on what arrived; until the router has asked it, the KV
    // is kept, or computed to its end.
    FailHandoff(entry, entry.attempt, event.status.message());
    if (entry.state == State::kSending) Keep(entry, now);
  }
}

void PrefillNode::Keep(Entry& entry, Time now) {
  BATON_CHECK(entry.state == State::kSending && !entry.transfer_open());
  entry.state = State::kKept;
  calls_.SetStateLimit(entry, now + options_.keep_limit);
  CheckHeld(entry);
}

void PrefillNode::Forget(const Entry& entry) {
  if (!entry.handoff) return;
  // A repeated open may have brought the ticket again since this one's transfer ended.
  const auto it = tickets_.find(entry.handoff->ticket);
  if (it != tickets_.end() && it->second == entry.call) tickets_.erase(it);
}

void PrefillNode::CheckState(const Entry& entry) const {
  const bool is_waiting = entry.state == State::kWaiting;
  const bool awaits_send = entry.state == State::kSending && entry.send_due;
  BATON_CHECK(waiting_.contains(entry.age) == is_waiting);
  BATON_CHECK((entry.state_limit != kNever) == (entry.state == State::kKept || awaits_send));
  switch (entry.state) {
    case State::kWaiting:
      BATON_CHECK(!entry.in_engine() && entry.sequence->blocks.size() == 0);
      BATON_CHECK(!entry.transfer_open());
      break;
    case State::kComputing:
      BATON_CHECK(entry.in_engine());
      break;
    case State::kSending:
      BATON_CHECK(!entry.in_engine() && entry.transfer_open());
      break;
    case State::kKept:
      BATON_CHECK(!entry.in_engine() && !entry.transfer_open());
      break;
    case State::kEnding:
      break;
  }
}

WorkerStatus PrefillNode::Status() const {
  WorkerStatus status = WorkerNode::Status();
  // None of these has blocks, so all their tokens are to be computed.
  for (const auto& [age, call] : waiting_) status.queued_tokens += calls_.at(call).num_tokens;
  return status;
}

}  // namespace baton
