#include "tests/sim/economy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::sim {
namespace {

bool IsRefusal(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status) ||
         absl::IsAlreadyExists(status);
}

}  // namespace

bool FaultLog::MayBeLost(int router, int worker, Time since) const {
  return Covers(workers_, worker, since) || Covers(routers_, router, since) ||
         Covers(links_, std::pair(router, worker), since);
}

void RouterLedger::Violate(std::string what) {
  if (violation_.empty()) violation_ = "economy: " + std::move(what);
}

RouterLedger::Account* RouterLedger::Find(CallId call) {
  auto it = calls_.find(call);
  return it == calls_.end() ? nullptr : &accounts_[it->second];
}

// ---- What comes in -----------------------------------------------------------------------------

void RouterLedger::OnMail(const RouterMail& mail, Time now) {
  if (auto* closed = std::get_if<CallClosed>(&mail)) {
    OnClosed(*closed, now);
  } else if (auto* event = std::get_if<WorkerEventReceived>(&mail)) {
    OnEvent(*event);
  } else if (auto* up = std::get_if<WorkerUp>(&mail)) {
    Incarnation& running = running_[up->worker];
    if (running != up->hello.incarnation) gone_.insert(running);
    running = up->hello.incarnation;
    ++connections_[up->worker];
    refused_.erase(up->worker);
    gone_.erase(running);
    worker_of_[running] = up->worker;
    kv_wire_of_[running] = up->hello.kv_wire_version;
  } else if (auto* news = std::get_if<WorkerStatusChanged>(&mail)) {
    if (running_[news->worker] == news->status.incarnation) refused_.erase(news->worker);
  } else if (auto* down = std::get_if<WorkerDown>(&mail)) {
    gone_.insert(running_[down->worker]);
  } else if (std::holds_alternative<ClientStop>(mail)) {
    // A score that is owed is then sought without the decode worker that was asked.
    for (auto& [counter, account] : accounts_) {
      if (account.asked_at != kNever) ++account.causes;
    }
  }
}

void RouterLedger::Lose(Account& account, const Side& side, bool gave_up) {
  const Loss first{.worker = side.worker, .at = world_.now()};
  Loss& loss = account.losses.emplace(side.incarnation, first).first->second;
  loss.connection = side.connection;  // A refusal may have been before, over another one.
  loss.gave_up |= gave_up;
  ++account.causes;
  if (&side == &account.prefill) account.kv_gone = true;
  LoseKept(account);
}

// Something failed: what no prefill worker keeps has to be computed again.
void RouterLedger::LoseKept(Account& account) {
  if (!account.prefill.open()) account.kv_gone = true;
}

void RouterLedger::OnClosed(const CallClosed& closed, Time now) {
  Account* account = Find(closed.call);
  if (account == nullptr) return;
  calls_.erase(closed.call);
  const bool is_decode = closed.call == account->decode.call;
  Side& side = is_decode ? account->decode : account->prefill;
  side.call = 0;
  if (is_decode) account->asked_at = kNever;
  const bool is_verified = account->decoding || account->verdict_since != kNever;
  const bool may_return = is_verified || (account->returns && !IsRefusal(closed.status));
  if (is_decode && may_return) account->lost_at = now;
  if (is_decode) account->returns = false;
  const bool is_needless = account->decoding && account->decode.open();
  if (closed.status.ok() && !is_decode && (account->prefilled || is_needless)) {
    // The decode worker has verified it: nothing failed, unless its tokens do not follow.
    if (!account->decoding) account->verdict_since = now;
    // It was a decode worker that is lost by now.
    if (!account->decode.open() || account->asked_at != kNever) account->kv_gone = true;
    // Everything that it told was lost on its way: a score that is owed is sought again.
    if (!account->prefilled) {
      ++account->causes;
      account->kv_gone = true;
      if (!world_.has_harmed()) Violate("a Prefill call ends well and has brought nothing");
    }
    account->verdict_of = {account->prefill.worker, account->decode.worker};
    account->verdict_attempt = account->attempt;
    return;
  }
  if (is_decode && IsRefusal(closed.status) && !account->decoding) {
    refused_[account->decode.worker] = now;
    // It begins from the start, unless the KV was held for that worker.
    const bool is_held = account->held_since != kNever;
    if (!is_held) account->kv_gone = true;
  }
  // A refusal of a running call is a loss too.
  Lose(*account, side, absl::IsAborted(closed.status));
  const bool says_why = IsRefusal(closed.status) || absl::IsDeadlineExceeded(closed.status);
  if (!says_why && !world_.has_harmed() && !MayFail(*account)) {
    Violate(absl::StrCat("a call fails without a fault: ", closed.status.ToString()));
  }
}

// One of its workers may be in trouble.
bool RouterLedger::MayFail(const Account& account) const {
  const auto may = [this](int32_t worker) {
    return worker >= 0 && faults_.MayBeLost(router_, worker, world_.now());
  };
  return may(account.prefill.worker) || may(account.decode.worker) || may(account.next_prefill);
}

void RouterLedger::OnEvent(const WorkerEventReceived& received) {
  Account* account = Find(received.call);
  if (account == nullptr) return;
  const uint64_t sequence = calls_.at(received.call);
  const bool is_decode = received.call == account->decode.call;
  if (auto* failed = std::get_if<HandoffFailedEvent>(&received.event)) {
    if (failed->attempt != account->attempt) return;
    failure_ = {.sequence = sequence,
                .attempt = failed->attempt,
                .pair = {account->prefill.worker, account->decode.worker},
                .must_climb = account->is_prefilling && account->decode.open()};
  } else if (auto* reserved = std::get_if<ReservedEvent>(&received.event)) {
    if (reserved->attempt != account->attempt || account->asked_at == kNever) return;
    account->asked_at = account->held_since = kNever;
    reserved_ = sequence;
  } else if (auto* prefilled = std::get_if<PrefilledEvent>(&received.event)) {
    account->prefilled = true;
    if (prefilled->first) Saw(*account, {&*prefilled->first, 1});
  } else if (auto* tokens = std::get_if<TokensEvent>(&received.event); tokens && is_decode) {
    Saw(*account, tokens->outputs);
    account->asked_at = account->held_since = account->verdict_since = kNever;
    account->losses.clear();
    account->recovering = false;
    account->decoding = true;
    account->returns = false;
  }
}

void RouterLedger::Saw(Account& account, std::span<const TokenOutput> outputs) {
  for (const TokenOutput& output : outputs) {
    account.num_seen = std::max(account.num_seen, output.position + 1);
  }
}

// ---- What goes out -----------------------------------------------------------------------------

void RouterLedger::Ask(Account& account, Time now) {
  account.asked_at = now;
  account.decoding = false;
  ++account.starts;
}

// Back to the process that had its answer, and soon; further choices come for the first time.
void RouterLedger::CheckReturn(Account& account, const DecodeRequest& request, Time now) {
  account.returns = request.prefill == 0 && !request.compute_prompt && account.attempt > 0;
  if (!account.returns) return;
  if (account.decode.incarnation != request.worker) {
    Violate("a sequence returns to a process that it was not on");
  }
  if (account.lost_at == kNever || now - account.lost_at > options_.return_limit) {
    Violate("a sequence returns too late");
  }
}

// 0: no prefill worker.
void RouterLedger::CheckPair(Incarnation prefill, Incarnation decode) {
  if (prefill != 0 && kv_wire_of_[prefill] != kv_wire_of_[decode]) {
    Violate("a decode worker is asked to take K/V in frames that it does not know");
  }
}

void RouterLedger::OnOpenDecode(CallId call, int32_t worker, const DecodeRequest& request,
                                Time now) {
  Account& account = accounts_[request.sequence.counter];
  calls_[call] = request.sequence.counter;
  auto refused = refused_.find(worker);
  if (refused != refused_.end() && now - refused->second < options_.retry_delay) {
    Violate("a worker is asked again right after it refused");
  }
  if (account.decode.open()) Violate("a second Decode call beside an open one");
  const Incarnation before = account.decode.incarnation;
  CheckReturn(account, request, now);
  totals_.crossed += before != 0 && kv_wire_of_[before] != kv_wire_of_[request.worker] ? 1 : 0;
  account.decode = {.call = call,
                    .worker = worker,
                    .incarnation = request.worker,
                    .connection = connections_[worker]};
  account.attempt = request.attempt;
  account.num_seen = std::max(account.num_seen, request.prompt_length);
  account.next_incarnation = request.prefill;
  account.next_prefill = request.prefill == 0 ? -1 : worker_of_[request.prefill];
  if (request.compute_prompt) alone_.insert(worker);
  CheckPair(request.prefill, request.worker);
  totals_.alone += request.compute_prompt ? 1 : 0;
  account.is_fresh = !account.prefill.open();
  if (account.is_fresh) account.failed.clear();
  if (!account.is_fresh) {
    // Held, and given to another decode worker, perhaps in one event.
    account.held_since = std::min(account.held_since, now);
    account.recovering = false;
  }
  const bool after_answer = request.score_only && account.starts > 0;
  Ask(account, now);
  if (!after_answer) return;
  --account.starts;
  ++account.score_starts;
}

void RouterLedger::OnOpenPrefill(CallId call, int32_t worker, const PrefillRequest& request) {
  Account& account = accounts_[request.sequence.counter];
  calls_[call] = request.sequence.counter;
  if (account.prefill.open()) Violate("a second Prefill call beside an open one");
  account.prefill = {.call = call,
                     .worker = worker,
                     .incarnation = request.worker,
                     .connection = connections_[worker]};
  account.attempt = request.attempt;
  NoteAsked(request.sequence.counter);
  account.verdict_since = kNever;
  account.prefilled = false;
  ++account.prefills;
  account.num_seen = std::max(account.num_seen, request.prompt_length);
  account.num_asked = static_cast<int32_t>(request.tokens.size());
  if (request.handoff) return;
  account.failed.clear();
  const bool wants_score = request.sampling.num_prompt_logprobs >= 0;
  ++(wants_score && account.starts > 0 ? account.score_starts : account.starts);
  account.is_fresh = true;
}

void RouterLedger::OnRebind(CallId call, const RebindRequest& request, Time now) {
  Account* account = Find(call);
  if (account == nullptr) return Violate("a Rebind of a call that is not open");
  account->attempt = request.attempt;
  CheckPair(request.prefill, account->decode.incarnation);
  account->next_incarnation = request.prefill;
  account->next_prefill = request.prefill == 0 ? -1 : worker_of_[request.prefill];
  account->is_rebound = request.prefill != 0;
  account->rebound_to = request.prefill;
  Ask(*account, now);
}

void RouterLedger::OnSend(CallId call, const SendRequest& request) {
  Account* account = Find(call);
  if (account == nullptr) return Violate("a Send of a call that is not open");
  NoteAsked(request.sequence.counter);
  account->attempt = request.attempt;
}

void RouterLedger::OnCancel(CallId call) {
  auto it = calls_.find(call);
  if (it == calls_.end()) return Violate("a call is cancelled that is not open");
  Account& account = accounts_[it->second];
  const bool is_decode = call == account.decode.call;
  cancelled_.push_back({it->second, is_decode});
  (is_decode ? account.drops_decode : account.drops_prefill) = true;
  (is_decode ? account.decode : account.prefill).call = 0;
  if (is_decode) account.returns = false;
  calls_.erase(it);
}

// ---- After each event --------------------------------------------------------------------------

// Whatever becomes of it in the same event.
void RouterLedger::NoteAsked(uint64_t counter) {
  if (reserved_ == counter) reserved_ = 0;
}

// A reservation for a prefill worker that has gone or failed meanwhile is a loss of that one.
void RouterLedger::NoteReservation(const LiveSequence& told, Account& account) {
  if (reserved_ != told.sequence.counter || told.state != "QUEUED") return;
  if (!gone_.contains(account.next_incarnation) && !hung_.contains(account.next_prefill)) {
    if (account.losses.contains(account.next_incarnation)) return;  // It has failed meanwhile.
    return Violate("a reservation is answered and its prefill worker is not asked");
  }
  Lose(account, {.worker = account.next_prefill, .incarnation = account.next_incarnation});
}

void RouterLedger::RestartHolds(Time now) {
  for (auto& [counter, account] : accounts_) {
    if (account.lost_at != kNever) account.lost_at = now;
    if (account.held_since == kNever) continue;
    // What it held so far, it held because it stood still.
    if (account.hold_noted != kNever) EndHold(account, now - account.hold_noted, now);
    account.held_since = account.hold_noted = now;
  }
}

void RouterLedger::EndHold(Account& account, Duration late, Time now) {
  const Duration held = now - std::exchange(account.hold_noted, kNever);
  // An answer that is due when the limit passes is waited for.
  const Duration limit = options_.hold_limit + options_.answer_limit + late;
  totals_.held_ms += held / std::chrono::milliseconds(1);
  totals_.may_hold_ms += limit / std::chrono::milliseconds(1);
  if (held > limit) Violate("a side is held for longer than the limit");
}

// A hold begins with a failure or a refusal. One may end and another begin in the same event: a
// reservation is answered, and the prefill worker that it names has been lost meanwhile.
void RouterLedger::NoteHold(Account& account, bool is_late, Time now) {
  if (account.hold_noted != kNever && account.held_since > account.hold_noted) {
    const Duration late = now - account.hold_noted - options_.hold_limit - options_.answer_limit;
    EndHold(account, is_late ? std::max(late, Duration::zero()) : Duration::zero(), now);
  }
  if (account.held_since != kNever && account.hold_noted == kNever) {
    account.hold_noted = now;
    ++totals_.holds;
    if (++account.holds > account.causes) Violate("a side is held and nothing had failed");
  }
}

void RouterLedger::CheckHold(Account& account, const LiveSequence& told, bool is_late, Time now) {
  const bool has_side = told.prefill != 0 || told.decode != 0;
  if (told.state != "QUEUED") {
    // While a decode worker is asked it is the KV that is held, unless it is lost meanwhile.
    const bool goes_on =
        told.state == "REBINDING" || (told.state == "RESERVING" && told.prefill != 0);
    if (!goes_on) account.held_since = kNever;
    return;
  }
  account.recovering = false;
  account.asked_at = kNever;
  if (!has_side) {
    account.held_since = kNever;
  } else if (account.held_since == kNever) {
    account.held_since = now;
  } else if (!is_late && now - account.held_since > options_.hold_limit) {
    Violate("a side is held for longer than the limit since its first start");
  }
}

void RouterLedger::CheckLosses(Account& account, const LiveSequence& told) {
  const int32_t moves = told.moves - account.moves;
  if (told.moves + told.retries != static_cast<int32_t>(told.lost.size())) {
    Violate("moves and retries are not what was lost");
  }
  int32_t may_be_moves = 0;
  int32_t must_be_moves = 0;  // Its connection is another one by now.
  for (size_t i = account.num_lost; i < told.lost.size(); ++i) {
    auto it = account.losses.find(told.lost[i]);
    if (it == account.losses.end()) {
      Violate(absl::StrCat("worker ", worker_of_[told.lost[i]], " is lost to sequence ",
                           told.sequence.counter, " and had not failed it"));
      continue;
    }
    const Loss& loss = it->second;
    may_be_moves += loss.gave_up || faults_.MayBeLost(router_, loss.worker, loss.at) ? 1 : 0;
    const bool is_over = loss.connection != 0 && loss.connection != connections_[loss.worker];
    must_be_moves += is_over ? 1 : 0;
    account.losses.erase(it);
  }
  if (moves < must_be_moves) Violate("a call that is lost with its connection costs a retry");
  if (moves > may_be_moves) {
    Violate(absl::StrCat("sequence ", told.sequence.counter, " moves away from a healthy worker"));
  }
  if (account.returns && (moves != 0 || told.retries != account.retries)) {
    Violate("a return costs a move or a retry");
  }
  if (told.moves > options_.max_moves || told.retries > options_.max_retries) {
    Violate("a sequence has more moves or retries than allowed");
  }
  account.moves = told.moves;
  account.retries = told.retries;
  account.num_lost = told.lost.size();
}

// What it did of itself in this event, when all that happened is known.
void RouterLedger::EndEvent(Account& account, const LiveSequence& told) {
  if (told.handoff_failures != static_cast<int32_t>(account.failed.size())) {
    Violate("a sequence stands on another rung than its failures explain");
  }
  account.is_prefilling = told.state == "PREFILLING";
  account.drops_prefill = account.drops_decode = false;
  account.climbed.reset();
  account.rebound_to.reset();
}

void RouterLedger::CheckAccounts(const RouterAudit& audit, const RouterView& view, bool is_late,
                                 Time now) {
  int32_t recovering = 0;
  auto at = accounts_.begin();
  const auto forget_until = [&](uint64_t counter) {
    while (at != accounts_.end() && at->first < counter) {
      if (at->second.prefill.open() || at->second.decode.open()) {
        Violate("a sequence has ended and its call is open");
      }
      totals_.starts += at->second.starts;
      totals_.may_start += 1 + at->second.causes;
      at->second.held_since = kNever;
      NoteHold(at->second, is_late, now);
      at = accounts_.erase(at);
    }
  };
  for (const LiveSequence& told : audit.sequences) {
    const uint64_t counter = told.sequence.counter;
    forget_until(counter);
    if (at == accounts_.end() || at->first != counter) continue;  // It was given to nobody yet.
    Account& account = (at++)->second;
    NoteReservation(told, account);
    CheckLosses(account, told);
    CheckHold(account, told, is_late, now);
    NoteHold(account, is_late, now);
    if (std::exchange(account.is_fresh, false)) {
      account.recovering =
          !account.returns && told.state != "QUEUED" && account.moves + account.retries > 0;
    }
    // The second rung goes through the queue, perhaps in one event.
    if (std::exchange(account.is_rebound, false) && told.handoff_failures >= 2) {
      account.recovering = false;
    }
    recovering += account.recovering ? 1 : 0;
    if (account.starts > 1 + account.causes || account.score_starts > account.causes) {
      Violate(absl::StrCat("sequence ", counter, " begins ", account.starts, " times after ",
                           account.causes, " failures and refusals"));
    }
    CheckRung(account, view);
    CheckKept(account);
    EndEvent(account, told);
  }
  forget_until(UINT64_MAX);
  if (recovering > options_.max_recovering) Violate("more recoveries at once than allowed");
}

void RouterLedger::CheckBlames(const RouterAudit& audit) {
  for (const Pair& pair : climbed_) {
    const auto is_it = [&](const BlamedPair& told) {
      return told.prefill == pair.first && told.decode == pair.second;
    };
    if (std::ranges::none_of(audit.blamed, is_it)) Violate("a failed pair is not blamed");
  }
  for (const BlamedPair& pair : audit.blamed) {
    if (!blamed_.contains({pair.prefill, pair.decode}) || pair.left > options_.blame_time) {
      Violate(absl::StrCat("workers ", pair.prefill, " and ", pair.decode,
                           " are blamed without a failure between them, or for too long"));
    }
  }
}

std::string RouterLedger::Check(const RouterAudit& audit, const RouterView& view,
                                const RouterCounters& counters, bool is_late, Time now) {
  CheckAlone(view, now);
  NoteFences(view);
  NoteGivenUp(audit, counters, now);
  NoteRungs(audit, counters, now);
  CheckAccounts(audit, view, is_late, now);
  CheckBlames(audit);
  failure_.reset();
  cancelled_.clear();
  climbed_.clear();
  has_fenced_ = false;
  reserved_ = 0;
  last_ = counters;
  return violation_;
}

}  // namespace baton::sim
