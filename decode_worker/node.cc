#include "decode_worker/node.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/digest.h"
#include "common/base/fail_point.h"
#include "common/base/overloaded.h"
#include "common/base/status.h"

namespace baton {

template class WorkerNode<DecodeEntry, DecodeMail, DecodeCounters>;

namespace {

// A message that is damaged, and those behind it on their way, have a token of an answer each.
constexpr size_t kMostTold = 8;

// An answer that ran here until its router's session ended: the rest of it is no new load. It may
// have no token yet; what joins for the first time is a first attempt.
bool GoesOn(const DecodeRequest& request) {
  return request.prefill == 0 && !request.compute_prompt && request.attempt > 1;
}

}  // namespace

DecodeNode::DecodeNode(const WorkerParts& parts, const DecodeNodeOptions& options,
                       DecodeIdentity identity)
    : WorkerNode(parts), options_(options), identity_(std::move(identity)) {
  engine_.set_reclaim(
      [this](const AgeKey& needy, bool alone) { return RevokeReservation(needy, alone); });
}

void DecodeNode::Handle(DecodeMail mail, Time now) {
  std::visit(Overloaded{[&](DecodeOpened& opened) { OnOpened(std::move(opened), now); },
                        [&](RebindAsked& rebind) { OnRebind(rebind.request, now); },
                        [&](CallBroken& broken) { OnBroken(broken, now); },
                        [&](Drain& drain) {
                          On(drain, now);
                          while (!parked_.empty()) UnparkOf(parked_.begin()->first);
                        },
                        [&](LayerDone& layer) { OnMark(layer.step, now); },
                        [&](auto& shared) { On(shared, now); }},
             mail);
}

void DecodeNode::Step(Time now) {
  while (const std::optional<CallId> call = parked_limits_.Expired(now)) Unpark(calls_.at(*call));
  EndOverdue(now, absl::AbortedError("no other transfer came in time"),
             &counters_.unbound_expired);
  StartStep(now);
}

absl::Status DecodeNode::Admissible(const DecodeRequest& request) const {
  // RESOURCE_EXHAUSTED is the one answer that says: nothing was done, try elsewhere or later.
  if (draining_) return absl::ResourceExhaustedError("this decode worker is draining");
  // The last token's K/V is never needed.
  const int64_t longest =
      int64_t{request.prompt_length} + (request.score_only ? 0 : request.sampling.max_tokens - 1);
  const int64_t limit = MostTokens();
  if (request.tokens.empty() || longest > limit) {
    return absl::InvalidArgumentError(
        absl::StrFormat("prompt and max_tokens make %d tokens; this decode worker holds at most %d",
                        longest + 1, limit + 1));
  }
  const int64_t num_emitted = static_cast<int64_t>(request.tokens.size()) - request.prompt_length;
  if (num_emitted < 0 || num_emitted >= request.sampling.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tokens has %d beyond the prompt; max_tokens %d allows 0 to %d",
                        num_emitted, request.sampling.max_tokens, request.sampling.max_tokens - 1));
  }
  if (calls_.IsLive(request.sequence, request.attempt)) {
    return absl::AlreadyExistsError("this attempt of the sequence is being decoded");
  }
  return absl::OkStatus();
}

// Nobody brings the K/V of so many tokens.
absl::Status DecodeNode::CheckOwn(const DecodeRequest& request, int32_t num_missing,
                                  Time now) const {
  if (num_missing <= allocator_.block_size()) return absl::OkStatus();
  if (!request.compute_prompt) {
    return absl::FailedPreconditionError("nobody is to bring a prompt that is not here");
  }
  // Younger ones are computed behind it, and must not keep it out for ever.
  const int64_t ahead = engine_.own_prompt_tokens(now - request.age);
  const double most = engine_.own_prompt_tokens_per_s() * ToSeconds(options_.own_prompts_limit);
  const bool is_one_step = ahead + num_missing <= engine_.own_prompt_step_tokens();
  if (ahead == 0 || is_one_step) return absl::OkStatus();
  if (static_cast<double>(ahead + num_missing) <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "prompts of %d tokens are to be computed here already, with no prefill worker", ahead));
}

absl::StatusOr<BlockTable> DecodeNode::Reserve(const DecodeRequest& request, Time now) {
  if (engine_.num_preempted() > 0) {
    return absl::ResourceExhaustedError("a preempted sequence waits for blocks");
  }
  const int32_t num_tokens = static_cast<int32_t>(request.tokens.size());
  const bool may_match = request.sampling.num_prompt_logprobs < 0;
  BlockTable table =
      allocator_.Match(PrefixSalt(request.tenant, engine_.IsLong(num_tokens)), request.tokens,
                       may_match ? num_tokens - 1 : 0,
                       request.prefill == 0 ? MatchFor::kCompute : MatchFor::kReceive);
  const int32_t num_here = table.num_sealed() * allocator_.block_size();
  if (request.prefill == 0) RETURN_IF_ERROR(CheckOwn(request, num_tokens - num_here, now));
  // What no query will see is not received; a cached prefix that ends before it is of no use.
  allocator_.Pass(table, request.prefill == 0 ? num_here : num_tokens);
  const int32_t missing = allocator_.BlocksFor(num_tokens) - table.size();
  const int32_t needed = allocator_.BlocksToGrow(table, missing);
  // Each running sequence may want an entry soon; a reservation leaves them one each.
  const int32_t headroom = static_cast<int32_t>(engine_.num_running()) * allocator_.num_groups();
  const bool needs_no_more = calls_.empty() || GoesOn(request);
  const int32_t wanted = needs_no_more ? needed : needed + headroom;
  while (allocator_.num_available() < wanted && ReclaimParked()) {
  }
  if (allocator_.num_available() < wanted || !allocator_.Grow(table, missing, /*reserved=*/true)) {
    return absl::ResourceExhaustedError("no blocks are free");
  }
  return table;
}

void DecodeNode::OnOpened(DecodeOpened opened, Time now) {
  DecodeRequest& request = opened.request;
  // Else the prefill worker gives them, or has.
  if (!request.compute_prompt) request.sampling.num_prompt_logprobs = -1;
  const absl::Status admissible = Admissible(request);
  if (Entry* parked = admissible.ok() ? FindParked(request) : nullptr) {
    return Resume(*parked, std::move(opened), now);
  }
  absl::StatusOr<BlockTable> reserved = admissible.ok() ? Reserve(request, now) : admissible;
  if (Refuses(opened.call, reserved.status())) return;
  UnparkOf(request.sequence);
  BlockTable& table = *reserved;
  const int32_t num_tokens = static_cast<int32_t>(request.tokens.size());
  counters_.prompt_tokens += num_tokens;
  counters_.cached_tokens +=
      std::max(0, table.num_sealed() - table.num_passed()) * allocator_.block_size();

  Entry& entry = calls_.Open(opened.call, request, now);
  entry.sequence->score_only = request.score_only;
  entry.sequence->num_computed = table.num_sealed() * allocator_.block_size();
  entry.sequence->blocks = std::move(table);
  reserved_.emplace(entry.age, entry.call);
  BATON_FAIL_POINT("decode.queued");
  if (request.prefill == 0) {
    CountOwn(request);
    return Run(entry, request.compute_prompt);
  }
  entry.sequence->num_computed =
      std::max(entry.sequence->num_computed, TokensLeftOut(model_.layout, num_tokens));
  Invite(entry, request.prefill);
}

void DecodeNode::CountOwn(const DecodeRequest& request) {
  if (request.compute_prompt) {
    ++counters_.computed_here;
  } else {
    ++(GoesOn(request) ? counters_.returned : counters_.joined);
  }
}

void DecodeNode::Invite(Entry& entry, Incarnation prefill) {
  BATON_CHECK(!entry.in_engine() && !entry.transfer_open());
  BATON_CHECK(reserved_.contains(entry.age));
  const Sequence& sequence = *entry.sequence;
  entry.state = State::kReserved;
  entry.open_ticket = identity_.new_ticket();
  tickets_.emplace(entry.open_ticket, entry.call);
  transport_.Expect({.ticket = entry.open_ticket,
                     .sender = prefill,
                     .blocks = allocator_.Refs(sequence.blocks),
                     .first_token = sequence.num_computed,
                     .num_tokens = sequence.num_tokens(),
                     .digests = {.layout = LayoutDigest(model_.layout),
                                 .model = model_.model_digest,
                                 .tokens = TokensDigest(sequence.tokens)}});
  outbox_.Emit(entry.call, ReservedEvent{.attempt = entry.attempt,
                                         .ticket = entry.open_ticket,
                                         .ranks = options_.ranks,
                                         .pair_key = identity_.key_of(prefill),
                                         .decode = incarnation_,
                                         .cached_tokens = sequence.num_computed});
  CheckHeld(entry);
}

// ---- Rebind ------------------------------------------------------------------------------------

void DecodeNode::OnRebind(const RebindRequest& request, Time now) {
  Entry* found = calls_.FindBefore(request.sequence, request.attempt);
  if (found == nullptr) {
    ++counters_.stale_mail;
    return;
  }
  Entry& entry = *found;
  CheckHeld(entry);
  ++counters_.rebinds;
  calls_.SetAttempt(entry, request.attempt);
  if (entry.state == State::kRunning) {
    // Verified before: says so, and goes on.
    outbox_.Emit(entry.call, TokensEvent{.attempt = entry.attempt});
    return;
  }
  entry.rebind = request.prefill;
  if (entry.transfer_open()) transport_.Abort(entry.open_ticket);
  Unbind(entry, now + options_.abort_limit);
  if (!entry.transfer_open()) Bind(entry);
  CheckHeld(entry);
}

void DecodeNode::Unbind(Entry& entry, Time until) {
  BATON_CHECK(entry.state != State::kRunning && entry.state != State::kEnding);
  entry.state = State::kUnbound;
  receiving_.erase(entry.age);
  reserved_.emplace(entry.age, entry.call);
  calls_.SetStateLimit(entry, until);
}

// Nobody writes to its blocks any more: the Rebind that was asked for takes effect.
void DecodeNode::Bind(Entry& entry) {
  BATON_CHECK(entry.state == State::kUnbound && entry.rebind.has_value());
  BATON_CHECK(!entry.transfer_open());
  calls_.SetStateLimit(entry, kNever);
  allocator_.Renew(entry.sequence->blocks);
  const Incarnation prefill = *std::exchange(entry.rebind, std::nullopt);
  if (prefill == 0) return ComputeHere(entry);
  Invite(entry, prefill);
}

void DecodeNode::ComputeHere(Entry& entry) {
  BATON_CHECK(entry.state == State::kUnbound && !entry.in_engine());
  ++counters_.computed_here;
  Sequence& sequence = *entry.sequence;
  if (AnyLeavesTokensOut(model_.layout, sequence.num_tokens())) {
    // Blocks were reserved for what the window still sees; the prompt is computed from its start.
    sequence.blocks.Release();
    sequence.num_computed = 0;
  }
  Run(entry, /*computes_prompt=*/true);
}

// From here on the engine computes what is missing; the empty event says so, and how much of a
// prompt was here.
void DecodeNode::Run(Entry& entry, bool computes_prompt) {
  reserved_.erase(entry.age);
  entry.sequence->own_prompt = computes_prompt;
  allocator_.MarkFilling(entry.sequence->blocks);
  entry.state = State::kRunning;
  TokensEvent event{.attempt = entry.attempt, .outputs = {}};
  if (computes_prompt) event.cached_tokens = entry.sequence->num_computed;
  outbox_.Emit(entry.call, std::move(event));
  engine_.Add(std::move(entry.sequence));
  CheckHeld(entry);
}

// ---- Transfers and steps -----------------------------------------------------------------------

absl::Status DecodeNode::CheckFirst(const Sequence& sequence, const TokenOutput& first) const {
  const SamplingParams& params = sequence.sampling->params;
  if (first.position != sequence.num_tokens()) {
    return absl::DataLossError(absl::StrFormat("the first token's position is %d; must be %d",
                                               first.position, sequence.num_tokens()));
  }
  const auto is_token = [&](int32_t token) { return token >= 0 && token < model_.vocab_size; };
  const auto is_logprob = [](float value) {
    return !std::isnan(value) && value != std::numeric_limits<float>::infinity();
  };
  const auto is_bad = [&](const TokenLogprob& one) {
    return !is_token(one.token) || !is_logprob(one.logprob);
  };
  if (!is_token(first.token) || !is_logprob(first.logprob) ||
      std::ranges::any_of(first.top, is_bad)) {
    return absl::DataLossError(absl::StrFormat(
        "the first token is %d, or one beside it is out of range; token ids are 0 to %d",
        first.token, model_.vocab_size - 1));
  }
  if (static_cast<int32_t>(first.top.size()) > std::max(params.num_logprobs, 0)) {
    return absl::DataLossError(absl::StrFormat("the first token has %d alternatives; asked for %d",
                                               first.top.size(), params.num_logprobs));
  }
  const int32_t num_emitted = sequence.num_tokens() + 1 - sequence.prompt_length;
  if (first.finish != FinishAfter(params, model_.eos_token_ids, first.token, num_emitted)) {
    return absl::DataLossError(absl::StrFormat("the first token's finish reason is %d for token %d",
                                               static_cast<int>(first.finish), first.token));
  }
  return absl::OkStatus();
}

void DecodeNode::OnTransferBegun(Entry& entry) {
  BATON_CHECK(entry.transfer_open() && entry.state != State::kRunning);
  BATON_FAIL_POINT("decode.prefilling");
  if (entry.state != State::kReserved) return;
  reserved_.erase(entry.age);
  receiving_.emplace(entry.age, entry.call);
  allocator_.MarkFilling(entry.sequence->blocks);
  entry.state = State::kReceiving;
  CheckHeld(entry);
}

void DecodeNode::OnTransferEnded(Entry& entry, const TransferEvent& event, Time now) {
  const absl::Status status =
      event.status.ok() ? CheckFirst(*entry.sequence, event.first) : event.status;
  if (status.ok()) {
    OnVerified(entry, event);
  } else if (entry.rebind) {
    Bind(entry);
  } else {
    FailHandoff(entry, entry.attempt, status.message());
    Unbind(entry, now + options_.unbound_limit);
    CheckHeld(entry);
  }
}

// Every layer is here, verified: the sequence joins the running batch.
void DecodeNode::OnVerified(Entry& entry, const TransferEvent& event) {
  BATON_CHECK(!entry.in_engine() && !entry.transfer_open());
  ++counters_.handoffs;
  reserved_.erase(entry.age);
  receiving_.erase(entry.age);
  calls_.SetStateLimit(entry, kNever);
  entry.rebind.reset();
  Sequence& sequence = *entry.sequence;
  allocator_.MarkFilling(sequence.blocks);
  allocator_.Seal(sequence.blocks, sequence.salt(), sequence.tokens);
  sequence.num_computed = sequence.num_tokens();
  sequence.tokens.push_back(event.first.token);
  entry.state = State::kRunning;
  // The stream starts again at the first position; the router takes whichever copy comes first.
  EmitToken(entry, event.first);
  if (event.first.finish != FinishReason::kNone) return Close(entry, absl::OkStatus());
  engine_.Add(std::move(entry.sequence));
  CheckHeld(entry);
}

void DecodeNode::OnProgress(Entry& entry, SequenceProgress& progress, Time) {
  if (entry.state == State::kParked) return Settle(entry);
  BATON_CHECK(entry.state == State::kRunning);
  EmitScores(entry, std::move(progress.prompt_logprobs));
  if (progress.output) EmitToken(entry, *progress.output);
  BATON_FAIL_POINT("decode.decoding");
  if (!progress.ended) return;
  BATON_FAIL_POINT("decode.finishing");
  Close(entry, progress.status);
}

void DecodeNode::EmitToken(Entry& entry, const TokenOutput& output) {
  if (entry.told.size() == kMostTold) entry.told.erase(entry.told.begin());
  entry.told.push_back(output);
  outbox_.Emit(entry.call, TokensEvent{.attempt = entry.attempt, .outputs = {output}});
}

bool DecodeNode::RevokeReservation(const AgeKey& needy, bool alone) {
  if (ReclaimParked()) return true;
  if (revoked_ != 0) return true;
  auto is_younger = [&](const std::map<AgeKey, CallId>& held) {
    return !held.empty() && needy < std::prev(held.end())->first;
  };
  const std::map<AgeKey, CallId>* from = nullptr;
  if (is_younger(reserved_) || (alone && !reserved_.empty())) {
    from = &reserved_;
  } else if (alone && is_younger(receiving_)) {
    from = &receiving_;
  } else {
    return false;
  }
  Entry& youngest = calls_.at(std::prev(from->end())->second);
  BATON_CHECK(!youngest.in_engine() && youngest.sequence->blocks.num_held() > 0);
  ++counters_.revoked;
  revoked_ = youngest.call;
  Close(youngest,
        absl::ResourceExhaustedError("the reservation was revoked for a running sequence"));
  return true;
}

void DecodeNode::Leave(const Entry& entry) {
  reserved_.erase(entry.age);
  receiving_.erase(entry.age);
}

void DecodeNode::Forget(const Entry& entry) {
  if (entry.call == revoked_) revoked_ = 0;
}

void DecodeNode::CheckState(const Entry& entry) const {
  const bool is_unbound = entry.state == State::kUnbound;
  BATON_CHECK(reserved_.contains(entry.age) == (entry.state == State::kReserved || is_unbound));
  BATON_CHECK(receiving_.contains(entry.age) == (entry.state == State::kReceiving));
  BATON_CHECK((entry.state_limit != kNever) == is_unbound);
  const auto parked = parked_.find(entry.age.id);
  const bool is_parked = parked != parked_.end() && parked->second == entry.call;
  BATON_CHECK(is_parked == (entry.state == State::kParked));
  switch (entry.state) {
    case State::kReserved:
    case State::kReceiving:
      BATON_CHECK(!entry.in_engine() && entry.sequence->blocks.num_held() > 0);
      BATON_CHECK(entry.transfer_open() && !entry.rebind);
      break;
    case State::kUnbound:
      BATON_CHECK(!entry.in_engine() && entry.sequence->blocks.num_held() > 0);
      BATON_CHECK(entry.transfer_open() == entry.rebind.has_value());
      break;
    case State::kRunning:
      BATON_CHECK(entry.in_engine() && !entry.transfer_open() && !entry.rebind);
      break;
    case State::kParked:
      BATON_CHECK(entry.retired && !entry.transfer_open() && !entry.rebind);
      break;
    case State::kEnding:
      break;
  }
}

}  // namespace baton
