// The half of WorkerLedger that hears what crosses the worker's boundary.
#include "tests/sim/worker_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/transport/transfer_plan.h"

namespace baton::sim {

WorkerLedger::Totals& WorkerLedger::Totals::operator+=(const Totals& other) {
  computed += other.computed;
  recomputed += other.recomputed;
  may_recompute += other.may_recompute;
  swapped_out += other.swapped_out;
  swapped_back += other.swapped_back;
  found_cached += other.found_cached;
  copied += other.copied;
  unjudged += other.unjudged;
  ended_moving_out += other.ended_moving_out;
  ended_moving_in += other.ended_moving_in;
  resumed_amid_step += other.resumed_amid_step;
  ended_without_row += other.ended_without_row;
  return *this;
}

void WorkerLedger::Violate(std::string what) {
  if (violation_.empty()) violation_ = "worker economy: " + std::move(what);
}

int32_t WorkerLedger::CountRunning() const {
  return static_cast<int32_t>(
      std::ranges::count_if(accounts_, [](const auto& item) { return item.second.runs(); }));
}

// ---- Mail --------------------------------------------------------------------------------------

template <typename Request>
WorkerLedger::Account& WorkerLedger::Open(CallId call, const Request& request, Time now) {
  Account& account = accounts_[call];
  account.sequence = request.sequence;
  account.attempt = request.attempt;
  account.age = {.arrival = now - request.age, .id = request.sequence, .call = call};
  account.num_tokens = static_cast<int32_t>(request.tokens.size());
  return account;
}

void WorkerLedger::OnMail(const AnyWorkerMail& mail, Time now) {
  if (auto* decode = std::get_if<DecodeOpened>(&mail)) {
    opened_ = true;
    Account& account = Open(decode->call, decode->request, now);
    account.own = decode->request.compute_prompt;
    account.scores = decode->request.sampling.num_prompt_logprobs >= 0;
    account.joins = decode->request.prefill == 0 && !account.own;
    account.returns = account.joins && account.attempt > 1;
  } else if (auto* prefill = std::get_if<PrefillOpened>(&mail)) {
    const PrefillRequest& r = prefill->request;
    Account& account = Open(prefill->call, r, now);
    const bool is_whole = r.prompt_length == account.num_tokens && r.handoff && !r.score_only;
    // What was emitted before, or is owed to the client at once, waits for nobody.
    if (is_whole && r.sampling.num_prompt_logprobs < 0) account.finishes_with = r.handoff->decode;
  } else if (auto* broken = std::get_if<CallBroken>(&mail)) {
    if (broken->session_ended) NoteSessionEnd(broken->call, now);
    if (accounts_.erase(broken->call) > 0) NoteEnd(broken->call);
  } else if (auto* rebind = std::get_if<RebindAsked>(&mail)) {
    OnRebind(rebind->request);
  } else if (auto* transfer = std::get_if<TransferEvent>(&mail)) {
    OnTransfer(*transfer);
  } else if (auto* done = std::get_if<StepDone>(&mail)) {
    OnStepDone(*done);
  } else if (std::holds_alternative<Drain>(mail)) {
    draining_ = true;
  }
}

void WorkerLedger::OnTransfer(const TransferEvent& event) {
  if (!event.receiver) return;
  const bool has_begun = event.kind == TransferEvent::Kind::kBegun;
  if (!has_begun && revoking_ == event.ticket) revoking_.reset();
  for (auto& [call, account] : accounts_) {
    if (!account.transfer_open || account.ticket != event.ticket) continue;
    if (!has_begun) {
      account.transfer_open = false;
    } else if (account.state == State::kReserved) {
      account.state = State::kReceiving;
    }
  }
}

// To the last attempt before, unless a later one is here.
void WorkerLedger::OnRebind(const RebindRequest& request) {
  Account* last = nullptr;
  for (auto& [call, account] : accounts_) {
    if (account.sequence != request.sequence) continue;
    if (account.attempt >= request.attempt) return;
    if (last == nullptr || last->attempt < account.attempt) last = &account;
  }
  if (last == nullptr) return;
  last->attempt = request.attempt;
  last->may_compute = request.prefill == 0;
  if (last->state != State::kRunning) last->state = State::kUnbound;
}

void WorkerLedger::OnStepDone(const StepDone& done) {
  if (done.step != in_flight_.step) return;
  const InFlight ended = std::exchange(in_flight_, {});
  promoted_ = std::exchange(follow_up_, nullptr);
  for (const Row& row : ended.rows) {
    auto it = accounts_.find(row.call);
    if (!done.status.ok() || it == accounts_.end()) continue;
    Account& account = it->second;
    *account.computed += row.num_tokens;
    account.most = std::max(account.most, *account.computed);
  }
  if (done.status.ok()) return;
  for (CallId call : ended.moved_out) {
    auto it = accounts_.find(call);
    if (it == accounts_.end() || !it->second.waits()) continue;
    totals_.may_recompute += std::exchange(it->second.host_tokens, 0);
    it->second.host_blocks.clear();
  }
  for (CallId call : ended.moved_in) {
    auto it = accounts_.find(call);
    if (it == accounts_.end() || !it->second.runs()) continue;
    totals_.may_recompute += it->second.computed.value_or(0);
    it->second.has_blocks = false;
    it->second.sealed.clear();
  }
}

void WorkerLedger::NoteEnd(CallId call) {
  const auto has = [call](const std::vector<CallId>& calls) {
    return std::ranges::find(calls, call) != calls.end();
  };
  totals_.ended_moving_out += has(in_flight_.moved_out) ? 1 : 0;
  if (!has(in_flight_.moved_in)) return;
  ++totals_.ended_moving_in;
  const bool has_row =
      std::ranges::find(in_flight_.rows, call, &Row::call) != in_flight_.rows.end();
  totals_.ended_without_row += has_row ? 0 : 1;
}

// What has but its last token to compute stays, and nothing is computed for it.
void WorkerLedger::NoteSessionEnd(CallId call, Time now) {
  const auto it = accounts_.find(call);
  if (options_.role != Role::kDecode || draining_) return;
  if (it == accounts_.end() || !it->second.runs()) return;
  const Account& account = it->second;
  const auto is_sibling = [&](const Account& other) {
    return &other != &account && other.sequence == account.sequence;
  };
  if (Any(is_sibling)) return;
  const bool is_moving = std::ranges::count(in_flight_.moved_in, call) > 0 || GetsCopies(call);
  parked_[account.sequence] = {
      .call = call,
      .num_tokens = account.num_tokens,
      .told = account.told,
      .until = now + std::chrono::seconds(2),
      .must_stay = account.computed == account.num_tokens - 1 && !account.own && !is_moving};
}

// The call goes on with what is parked of its sequence, and is told what its router has not heard.
bool WorkerLedger::Resumes(Account& account) {
  const auto it = parked_.find(account.sequence);
  if (it == parked_.end() || !it->second.is_here) return false;
  const Parked& parked = it->second;
  const int32_t lacks = parked.num_tokens - account.num_tokens;
  if (lacks < 0 || lacks > parked.told) return false;
  const auto& rows = in_flight_.rows;
  const bool in_step = std::ranges::find(rows, parked.call, &Row::call) != rows.end();
  totals_.resumed_amid_step += in_step ? 1 : 0;
  account.computed = account.most = parked.num_tokens - 1;
  account.had = parked.num_tokens;
  parked_.erase(it);
  return true;
}

std::vector<SequenceId> WorkerLedger::Moving() const {
  std::vector<SequenceId> moving;
  for (const auto* calls : {&in_flight_.moved_out, &in_flight_.moved_in}) {
    for (CallId call : *calls) {
      auto it = accounts_.find(call);
      if (it != accounts_.end()) moving.push_back(it->second.sequence);
    }
  }
  // Either end of a copy, as the other goes on.
  const bool copied = in_flight_.step % 2 == 0;
  for (const Row& row : in_flight_.rows) {
    const auto it = accounts_.find(row.call);
    const bool moves = copied ? row.is_copied : row.is_source;
    if (moves && it != accounts_.end()) moving.push_back(it->second.sequence);
  }
  return moving;
}

// In the step in flight.
bool WorkerLedger::GetsCopies(CallId call) const {
  const auto has = [call](const Row& row) { return row.call == call && row.is_copied; };
  return std::ranges::any_of(in_flight_.rows, has);
}

// The step that starts brings the block that its one token goes to.
bool WorkerLedger::IsCopied(const StepRow& row) const {
  if (started_ == nullptr || row.tokens.size() != 1 || row.context_len == 0) return false;
  const int32_t entry = (row.context_len - 1) / device_.block_size();
  for (int32_t g = 0; g < NumGroups(layout_); ++g) {
    const BlockId block = RowOf(layout_, g, row.block_table)[entry];
    if (std::ranges::count(started_->copies, block, &BlockMove::destination) > 0) return true;
  }
  return false;
}

// The step that starts copies one of its blocks for another.
bool WorkerLedger::IsSource(const StepRow& row) const {
  if (started_ == nullptr) return false;
  return std::ranges::any_of(started_->copies, [&row](const BlockMove& copy) {
    return std::ranges::count(row.block_table, copy.source) > 0;
  });
}

// ---- Answers -----------------------------------------------------------------------------------

void WorkerLedger::OnSend(CallId call, const WorkerEvent& event) {
  auto it = accounts_.find(call);
  if (it == accounts_.end()) return Violate("an answer to a call that is not open");
  Account& account = it->second;
  if (auto* reserved = std::get_if<ReservedEvent>(&event)) {
    OnReserved(account, *reserved);
  } else if (auto* tokens = std::get_if<TokensEvent>(&event)) {
    OnTokens(account, *tokens);
  } else if (auto* prefilled = std::get_if<PrefilledEvent>(&event)) {
    account.state = State::kSent;
    if (account.computed != account.num_tokens ||
        account.first_context != prefilled->cached_tokens) {
      Violate("a prompt is not computed once from where its cached prefix ends");
    }
  } else if (std::holds_alternative<HandoffFailedEvent>(event) && options_.role == Role::kDecode) {
    account.state = State::kUnbound;
  }
}

// A call takes blocks for the first time.
void WorkerLedger::CheckTaking() {
  if (Any([](const Account& other) { return other.waits(); })) {
    Violate("blocks are reserved while a preempted sequence waits for some");
  }
  if (accounts_.size() > 1 && device_.num_available() < CountRunning() * device_.num_groups()) {
    Violate("a reservation leaves no block for each that runs");
  }
}

void WorkerLedger::OnReserved(Account& account, const ReservedEvent& reserved) {
  if (account.joins || account.own) Violate("nobody is to fill what is reserved");
  if (account.state == State::kOpened) CheckTaking();
  account.state = State::kReserved;
  account.cached = reserved.cached_tokens;
  account.ticket = reserved.ticket;
  account.transfer_open = true;
}

void WorkerLedger::OnTokens(Account& account, const TokensEvent& tokens) {
  if (account.state == State::kOpened && account.joins) {
    if (!account.returns) CheckTaking();
    account.state = State::kRunning;
    account.has_blocks = true;
    if (!Resumes(account)) {
      account.computed = (account.num_tokens - 1) / device_.block_size() * device_.block_size();
      account.most = *account.computed;
    }
  }
  if (account.state == State::kOpened && account.own) {
    CheckTaking();
    account.state = State::kRunning;
    account.has_blocks = true;
    account.computed = account.most = tokens.cached_tokens;
  } else if (account.state == State::kRunning && tokens.cached_tokens != 0) {
    Violate("what was cached of a prompt is told later than it is taken");
  }
  if (account.state != State::kRunning) {
    account.state = State::kRunning;
    const bool is_verified = !tokens.outputs.empty();
    if (!is_verified && !account.may_compute) {
      Violate("a decode worker computes a prompt that is to be handed over");
    }
    account.own = !is_verified;
    // What was reserved reaches back to the window alone; the prompt is computed from its start.
    const bool starts_over = !is_verified && AnyLeavesTokensOut(layout_, account.num_tokens);
    if (tokens.cached_tokens != (is_verified || starts_over ? 0 : account.cached)) {
      Violate("what was cached of a prompt is not what its reservation told");
    }
    account.has_blocks = !starts_over;
    if (!starts_over) account.computed = is_verified ? account.num_tokens : account.cached;
    account.most = account.computed.value_or(0);
  }
  if (!tokens.outputs.empty()) account.own = false;
  const auto is_long = [this](int32_t num_tokens) {
    return options_.original_len > 0 && num_tokens > options_.original_len;
  };
  // What is told again to one that returned was there before.
  const bool was_long = is_long(std::max(account.num_tokens, account.had));
  account.num_tokens += static_cast<int32_t>(tokens.outputs.size());
  account.told = std::min(8, account.told + static_cast<int32_t>(tokens.outputs.size()));
  const bool ends = !tokens.outputs.empty() && tokens.outputs.back().finish != FinishReason::kNone;
  if (is_long(account.num_tokens) && !was_long && !ends) Outgrow(account);
}

// What it holds is of no use any more.
void WorkerLedger::Outgrow(Account& account) {
  totals_.may_recompute += account.computed.value_or(0);
  account.outgrown = true;
  account.had = 0;
  account.computed.reset();
  account.least = 0;
  account.sealed.clear();
  account.served.clear();
}

// It goes on in its place by age, unless an older one waited too. Of one whose every block is
// sealed others may have them all.
void WorkerLedger::CheckOutgrown() {
  if (options_.original_len % device_.block_size() == 0) return;
  for (CallId call : outgrown_) {
    const AgeKey& age = accounts_.at(call).age;
    const bool older_waited =
        Any([&](const Account& other) { return other.waits() && other.age < age; }) ||
        std::ranges::any_of(come_back_, [&](CallId one) { return accounts_.at(one).age < age; });
    if (older_waited) continue;
    if (Any([&](const Account& other) { return other.runs() && age < other.age; })) {
      Violate("a sequence that becomes long waits while a younger one keeps running");
    }
  }
}

void WorkerLedger::OnClose(CallId call, const absl::Status& status) {
  auto it = accounts_.find(call);
  if (it == accounts_.end()) return Violate("a call is closed that is not open");
  const Account account = std::move(it->second);
  accounts_.erase(it);
  NoteEnd(call);
  if (!absl::IsResourceExhausted(status)) return;
  account.state == State::kOpened ? CheckRefusal(account) : CheckRevocation(account);
}

// Told "elsewhere or later" although there was room.
void WorkerLedger::CheckRefusal(const Account& account) {
  if (draining_) return;
  if (options_.role == Role::kPrefill) {
    const auto waits = [](const auto& item) { return item.second.state == State::kOpened; };
    if (std::ranges::count_if(accounts_, waits) < options_.max_waiting) {
      Violate("a call is refused and the queue is not full");
    }
    return;
  }
  if (account.joins) return;  // What is cached is not seen from outside.
  // Nor is how fast prompts are computed: behind others there may be too many.
  const auto is_ahead = [&](const Account& other) {
    return other.own && other.age.arrival <= account.age.arrival;
  };
  if (account.own && Any(is_ahead)) return;
  // A handoff brings no more than is seen of it.
  const int32_t computed = account.own ? 0 : account.num_tokens;
  const int32_t wanted =
      BlocksOf(account.num_tokens, computed) + CountRunning() * device_.num_groups();
  if (device_.num_available() >= wanted &&
      !Any([](const Account& other) { return other.waits(); })) {
    Violate("a reservation is refused and there is room");
  }
}

void WorkerLedger::CheckRevocation(const Account& account) {
  const bool is_written = account.state == State::kReceiving;
  if (!account.is_reservation() && !is_written) return Violate("what is no reservation is revoked");
  if (Any([&](const Account& other) {
        return other.is_reservation() && (is_written || account.age < other.age);
      })) {
    Violate("a reservation is revoked before a younger one that nobody writes to");
  }
  if (is_written && Any([&](const Account& other) {
        return other.state == State::kReceiving && account.age < other.age;
      })) {
    Violate("what is being written is revoked before a younger one");
  }
  if (revoking_) Violate("a second reservation is revoked while one is coming back");
  if (account.transfer_open) revoking_ = account.ticket;
  revoked_.push_back({account.age, account.state});
}

}  // namespace baton::sim
