// The half of WorkerLedger that judges, after each event.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/worker_ledger.h"

namespace baton::sim {

// ---- States ------------------------------------------------------------------------------------

void WorkerLedger::CompareOne(CallId call, Account& account, const HeldCall& held) {
  if (options_.role == Role::kPrefill) {
    if (account.state == State::kOpened && held.state != "WAITING") {
      admitted_.push_back(call);
      account.state = State::kRunning;
      account.has_blocks = true;
    }
    return;
  }
  static constexpr const char* kNames[] = {"",        "RESERVED", "RECEIVING",
                                           "UNBOUND", "RUNNING",  ""};
  if (held.attempt != account.attempt || held.state != kNames[static_cast<int>(account.state)]) {
    Violate(absl::StrCat("a call is ", held.state, " and should be ",
                         kNames[static_cast<int>(account.state)]));
  }
  if (account.state != State::kRunning) return;
  const bool has_blocks = held.num_blocks > 0;
  if (account.outgrown && !has_blocks) {
    outgrown_.push_back(call);
  } else if (account.has_blocks && !has_blocks) {
    preempted_.push_back(call);
  }
  if (!account.has_blocks && has_blocks) come_back_.push_back(call);
  account.has_blocks = has_blocks;
  account.outgrown = false;
}

void WorkerLedger::Compare(const WorkerAudit& audit, bool is_late) {
  auto at = accounts_.begin();
  for (const HeldCall& held : audit.calls) {
    if (held.state == "ENDING" || held.state == "PARKED") continue;
    if (at == accounts_.end() || at->second.sequence != held.sequence) {
      return Violate("a call is live that was not opened, or has ended");
    }
    CompareOne(at->first, at->second, held);
    ++at;
  }
  if (at != accounts_.end()) Violate("an open call is not live");
  if (options_.role == Role::kPrefill) CheckAdmission(is_late);
  // Youngest first, as they give way.
  const auto age = [this](CallId call) { return accounts_.at(call).age; };
  std::ranges::sort(preempted_, std::greater{}, age);
  std::ranges::sort(come_back_, std::less{}, age);
}

// What is parked ran in a session that ended, and is given up in time, or for somebody.
void WorkerLedger::ComparePark(const WorkerAudit& audit, Time now) {
  std::set<SequenceId> here;
  for (const HeldCall& held : audit.calls) {
    if (held.state != "PARKED") continue;
    if (!parked_.contains(held.sequence)) Violate("what is parked did not run, or went on");
    if (!here.insert(held.sequence).second) Violate("a sequence is parked twice");
  }
  for (auto it = parked_.begin(); it != parked_.end();) {
    Parked& parked = it->second;
    if (here.contains(it->first)) {
      parked.is_here = true;
      ++it;
      continue;
    }
    const auto has_it = [&](const Account& account) { return account.sequence == it->first; };
    const bool may_be_needed = opened_ || started_ != nullptr || in_flight_.step == 0;
    const bool may_go = draining_ || now >= parked.until || may_be_needed || Any(has_it);
    if ((parked.must_stay || parked.is_here) && !may_go) {
      Violate("an answer may return, and its blocks are given up for nobody");
    }
    it = parked_.erase(it);
  }
}

// ---- Order -------------------------------------------------------------------------------------

void WorkerLedger::CheckAdmission(bool is_late) {
  const Account* oldest = nullptr;
  int32_t computing = 0;
  for (const auto& [call, account] : accounts_) {
    computing += account.runs() ? 1 : 0;
    if (account.state != State::kOpened) continue;
    if (oldest == nullptr || account.age < oldest->age) oldest = &account;
  }
  if (oldest == nullptr) return;
  if (computing > options_.max_batch) Violate("more prompts are admitted than a step has rows");
  for (CallId call : admitted_) {
    if (oldest->age < accounts_.at(call).age) Violate("a younger call is admitted before an older");
  }
  const int32_t wanted = device_.BlocksFor(oldest->num_tokens) * device_.num_groups();
  if (!is_late && computing < options_.max_batch && device_.num_available() >= wanted) {
    Violate("the oldest call waits and there is room for it");
  }
}

void WorkerLedger::CheckGivingWay(const Counted& counted) {
  // One that becomes long may be preempted before it has blocks again, for one that is older.
  const auto preempted = static_cast<size_t>(counted.preemptions - last_.preemptions);
  if (preempted < preempted_.size() || preempted > preempted_.size() + outgrown_.size()) {
    Violate("a sequence that runs is not what has blocks");
  }
  CheckOutgrown();
  if (counted.revoked - last_.revoked != static_cast<int64_t>(revoked_.size())) {
    Violate("revoked reservations are not counted");
  }
  CheckNeedy();
  if (!(preempted_.empty() && revoked_.empty()) && !parked_.empty()) {
    Violate("blocks are taken from somebody while others are parked");
  }
  if (preempted_.empty()) return;
  if (was_revoking_ && revoking_) {
    Violate("a sequence is preempted while a reservation's blocks are coming back");
  }
  const AgeKey& oldest = accounts_.at(preempted_.back()).age;
  if (CountRunning() == 0) Violate("the last one that runs is preempted");
  for (const auto& [call, account] : accounts_) {
    if (account.runs() && oldest < account.age) {
      Violate("a sequence is preempted while a younger one keeps running");
    }
    if (account.is_reservation() && oldest < account.age) {
      Violate("a sequence is preempted before a younger reservation is revoked");
    }
  }
}

// Somebody older needs what was revoked, or somebody who runs alone.
void WorkerLedger::CheckNeedy() {
  for (const Revocation& revoked : revoked_) {
    const bool may_be_alone = CountRunning() <= 1 || ran_before_ == 0;
    if (revoked.state == State::kReceiving && !may_be_alone) {
      Violate("what is being written is revoked though somebody can be preempted");
    }
    const bool for_older = Any([&](const Account& account) {
      return account.state == State::kRunning && account.age < revoked.age;
    });
    const bool may_be_older = may_be_alone && revoked.state != State::kReceiving;
    if (!for_older && !may_be_older) Violate("a reservation is revoked for a younger sequence");
  }
}

void WorkerLedger::CheckComingBack() {
  for (CallId call : come_back_) {
    if (Any([&](const Account& account) {
          return account.waits() && account.age < accounts_.at(call).age;
        })) {
      Violate("a younger preempted sequence comes back before an older one");
    }
    NoteComeBack(call);
  }
}

// ---- Preemptions and moves ---------------------------------------------------------------------

// Youngest first; each is swapped out if the host has room for it.
void WorkerLedger::NotePreemptions() {
  if (preempted_.empty()) return;
  const bool is_known = std::ranges::all_of(
      preempted_, [this](CallId call) { return accounts_.at(call).computed.has_value(); });
  if (host_ != nullptr && host_is_known_ && is_known) {
    NoteMovesOut();
  } else if (host_ != nullptr) {
    // Until its process ends nothing tells whose copy is whose.
    host_is_known_ = false;
    totals_.unjudged += static_cast<int64_t>(preempted_.size());
  }
  for (CallId call : preempted_) {
    Account& account = accounts_.at(call);
    const int32_t held = account.computed.value_or(0);
    if (account.host_tokens == 0) totals_.may_recompute += held;
    account.computed.reset();
    account.least = 0;
    account.served.clear();
  }
}

void WorkerLedger::NoteMovesOut() {
  const std::vector<BlockMove> none;
  const std::vector<BlockMove>& moves = started_ == nullptr ? none : started_->swap_out;
  size_t at = 0;
  int32_t room = host_->num_available() + static_cast<int32_t>(moves.size());
  for (CallId call : preempted_) {
    Account& account = accounts_.at(call);
    const int32_t wanted = BlocksOf(*account.computed);
    // What leaves for the host frees its blocks with the step: until then nobody else gives way.
    if (in_flight_.moved_out.size() > 0) Violate("more sequences are preempted than needed");
    if (wanted == 0 || wanted > room) continue;
    room -= wanted;
    if (at + wanted > moves.size()) {
      return Violate("a preempted sequence is not swapped out and the host has room");
    }
    for (int32_t i = 0; i < wanted; ++i) account.host_blocks.push_back(moves[at++].destination);
    account.host_tokens = *account.computed;
    totals_.swapped_out += account.host_tokens;
    in_flight_.moved_out.push_back(call);
  }
  if (at != moves.size()) Violate("blocks are moved out that no preempted sequence had computed");
}

void WorkerLedger::NoteComeBack(CallId call) {
  Account& account = accounts_.at(call);
  const auto brings = [&](const BlockMove& move) {
    return !account.host_blocks.empty() && move.source == account.host_blocks.front();
  };
  const int32_t host_tokens = std::exchange(account.host_tokens, 0);
  account.least = host_tokens;
  if (started_ != nullptr && std::ranges::any_of(started_->swap_in, brings)) {
    account.computed = host_tokens;
    totals_.swapped_back += host_tokens;
    in_flight_.moved_in.push_back(call);
  } else {
    account.computed.reset();
    totals_.found_cached += host_tokens;
    // Else it may have come from the host, unseen.
    if (host_ == nullptr || host_is_known_) CheckStillCached(account);
  }
  account.host_blocks.clear();
}

// What it had computed and what nobody has taken since is found by its prefix.
void WorkerLedger::CheckStillCached(const Account& account) {
  if (AnyLeavesTokensOut(layout_, account.num_tokens) || (account.own && account.scores)) return;
  const auto most = static_cast<size_t>((account.num_tokens - 1) / device_.block_size());
  for (size_t i = 0; i < std::min(most, account.sealed.size()); ++i) {
    for (const BlockRef& ref : account.sealed[i]) {
      const BlockState state = device_.state(ref.block);
      if (device_.epochs()[ref.block].load() != ref.epoch) return;
      if (state != BlockState::kCached && state != BlockState::kReady) return;
    }
    // The first group sees all of it.
    if (device_.state(account.sealed[i].front().block) == BlockState::kCached) {
      return Violate("what is cached is computed again");
    }
  }
}

// A copy in host memory belongs to a sequence that waits, or to the step that brings it back.
void WorkerLedger::CheckHost() {
  if (host_ == nullptr || !host_is_known_) return;
  size_t wanted = in_flight_.num_arriving;
  for (const auto& [call, account] : accounts_) wanted += account.host_blocks.size();
  const auto held = static_cast<size_t>(host_->num_blocks() - host_->num_available());
  if (held == wanted) return;
  Violate(absl::StrCat("the host holds ", held, " blocks, and sequences have ", wanted, " there"));
}

// What the window has passed goes back, and nobody has more blocks than its tokens fill.
void WorkerLedger::CheckHeld(const WorkerAudit& audit) {
  auto at = accounts_.begin();
  for (const HeldCall& held : audit.calls) {
    if (held.state == "ENDING" || held.state == "PARKED") continue;
    const CallId call = at->first;
    const Account& account = (at++)->second;
    if (!account.runs()) continue;
    int32_t computed = account.computed.value_or(account.least);
    // What a copy brings is there when the step has ended.
    if (GetsCopies(call)) computed = (computed - 1) / device_.block_size() * device_.block_size();
    const bool has_next = follow_up_ != nullptr &&
                          std::ranges::find(follow_up_->rows, account.rows_as, [](const auto& row) {
                            return row.sampling.get();
                          }) != follow_up_->rows.end();
    // One that resumed may have had a follow-up.
    const bool may_have_next = has_next || account.had > 0;
    if (held.num_blocks > BlocksOf(account.num_tokens + (may_have_next ? 1 : 0), computed)) {
      Violate(absl::StrCat("a call holds ", held.num_blocks, " blocks of ", account.num_tokens,
                           " tokens, of which ", computed, " are computed"));
    }
  }
}

// ---- Rows --------------------------------------------------------------------------------------

// The call that a row computes for: attempts of one sequence may be here side by side. Of two that
// are new the older comes first, unless it has but one token left and the other has more.
CallId WorkerLedger::CallOf(const StepPlan& plan, const StepRow& row) {
  const auto end = row.context_len + static_cast<int32_t>(row.tokens.size());
  const auto is_same = [&](const StepRow& other) { return other.sequence == row.sequence; };
  auto rows_left = std::ranges::count_if(plan.rows, is_same);
  std::vector<CallId> fitting;
  for (auto& [call, account] : accounts_) {
    if (account.sequence != row.sequence || !account.runs()) continue;
    if (account.rows_as == row.sampling.get()) return call;
    --rows_left;
    if (account.rows_as != nullptr || end > account.num_tokens) continue;
    if (account.computed && account.computed != row.context_len && !IsCopied(row)) continue;
    fitting.push_back(call);
  }
  const auto is_ending = [&](CallId call) { return accounts_.at(call).num_tokens == end; };
  const auto comes_first = [&](CallId a, CallId b) {
    if (rows_left == 0 && is_ending(a) != is_ending(b)) return is_ending(a);
    return accounts_.at(a).age < accounts_.at(b).age;
  };
  const auto first = std::ranges::min_element(fitting, comes_first);
  if (first == fitting.end()) return 0;
  accounts_.at(*first).rows_as = row.sampling.get();
  return *first;
}

void WorkerLedger::NoteTable(Account& account, const StepRow& row) {
  account.sealed.clear();
  const int32_t num_full = row.context_len / device_.block_size();
  for (int32_t i = 0; i < num_full; ++i) {
    std::vector<BlockRef> entry;
    for (int32_t g = 0; g < NumGroups(layout_); ++g) {
      const BlockId block = RowOf(layout_, g, row.block_table)[i];
      if (block < 0) return;
      entry.push_back({block, device_.epochs()[block].load()});
    }
    account.sealed.push_back(std::move(entry));
  }
}

void WorkerLedger::NoteRow(CallId call, const StepRow& row) {
  const auto num_tokens = static_cast<int32_t>(row.tokens.size());
  const bool is_copied = IsCopied(row);
  in_flight_.rows.push_back({call, num_tokens, is_copied, IsSource(row)});
  if (call == 0) return Violate("a step computes for a call that does not run");
  Account& account = accounts_.at(call);
  if (is_copied) {
    const int32_t begin = (row.context_len - 1) / device_.block_size() * device_.block_size();
    const int32_t had = account.computed.value_or(begin);
    if (had < begin || had >= row.context_len) Violate("a step copies for a call what it has");
    totals_.copied += row.context_len - had;
  } else if (account.computed && *account.computed != row.context_len) {
    Violate(absl::StrCat("tokens from ", row.context_len, " on are computed and the first ",
                         *account.computed, " are there"));
  }
  if (row.context_len < account.least) Violate("what was swapped out is computed again");
  account.computed = row.context_len;
  if (!account.first_context) account.first_context = row.context_len;
  totals_.computed += num_tokens;
  totals_.recomputed +=
      std::clamp(account.most - row.context_len, 0, num_tokens);
  if (totals_.recomputed > totals_.may_recompute) {
    Violate(absl::StrCat(totals_.recomputed, " tokens are computed again and only ",
                         totals_.may_recompute, " were lost"));
  }
  NoteTable(account, row);
}

// The call of the row that it follows; 0: it has ended.
CallId WorkerLedger::CallOfFollowing(const StepRow& row) const {
  for (const auto& [call, account] : accounts_) {
    if (account.runs() && account.rows_as == row.sampling.get()) return call;
  }
  return 0;
}

// Whoever is left out of it came after it had started.
void WorkerLedger::NoteFollowUp() {
  in_flight_ = {.step = promoted_->step};
  for (const StepRow& row : promoted_->rows) {
    const CallId call = CallOfFollowing(row);
    if (call == 0) continue;
    NoteRow(call, row);
    accounts_.at(call).served.clear();
  }
}

// All that is here is in the step before, and goes on behind it.
void WorkerLedger::CheckFollowUp() {
  const auto has = [this](CallId call) {
    return std::ranges::find(in_flight_.rows, call, &Row::call) != in_flight_.rows.end();
  };
  for (const StepRow& row : follow_up_->rows) {
    const CallId call = CallOfFollowing(row);
    if (call == 0 || !has(call)) return Violate("a step follows another that does not compute it");
    if (row.context_len != accounts_.at(call).num_tokens) {
      return Violate("a step follows another at the wrong position");
    }
  }
  for (const auto& [call, account] : accounts_) {
    if (account.waits() || (account.runs() && !has(call))) {
      return Violate("a step follows another and passes somebody over");
    }
  }
}

// Prefills come first, by age: each takes all it has left before the next one gets any.
void WorkerLedger::CheckRows() {
  std::set<CallId> decodes;
  std::map<CallId, int32_t> prefills;  // Tokens that are left after this step.
  AgeKey youngest;
  for (const Row& row : in_flight_.rows) {
    const Account& account = accounts_.at(row.call);
    const int32_t left = account.num_tokens - *account.computed;
    if (row.is_copied) {  // Among the prefills by age, though its row is behind theirs.
      prefills[row.call] = 0;
      youngest = std::max(youngest, account.age);
      continue;
    }
    if (left == 1) {
      decodes.insert(row.call);
      continue;
    }
    if (!decodes.empty() || account.age < youngest) Violate("prefills are not first and by age");
    youngest = std::max(youngest, account.age);
    prefills[row.call] = left - row.num_tokens;
  }
  for (const auto& [call, account] : accounts_) {
    if (!account.runs() || !account.computed) continue;
    const int32_t left = account.num_tokens - *account.computed;
    if (left <= 1) continue;
    if (prefills.empty()) Violate("decodes leave no row for a prefill");
    if (youngest <= account.age || account.own) continue;  // Own prompts have a share.
    auto it = prefills.find(call);
    if (it == prefills.end() || it->second > (options_.finish_together ? 1 : 0)) {
      Violate("a younger prompt gets tokens that an older one has left");
    }
  }
  options_.finish_together ? CheckFinishing(decodes) : CheckTurns(decodes);
}

// Nobody is served twice while another is left out, unless that one lacks a block.
void WorkerLedger::CheckTurns(const std::set<CallId>& decodes) {
  for (auto& [call, account] : accounts_) {
    const bool is_due = account.runs() && account.computed && !GetsCopies(call) &&
                        account.num_tokens - *account.computed == 1 &&
                        *account.computed % device_.block_size() != 0;
    if (!is_due || decodes.contains(call)) {
      account.served.clear();
      continue;
    }
    for (CallId other : decodes) {
      if (!account.served.insert(other).second) Violate("a decode is served twice before another");
    }
  }
}

void WorkerLedger::CheckFinishing(const std::set<CallId>& decodes) {
  const int32_t tokens = options_.chunk_tokens - std::max(1, options_.chunk_tokens / 4);
  const int32_t least = std::min(std::max(1, tokens), options_.max_batch - 1);
  if (static_cast<int32_t>(decodes.size()) >= least) return;  // There may have been no room.
  int64_t num_tokens = 0;
  for (const Row& row : in_flight_.rows) num_tokens += row.num_tokens;
  for (auto& [call, account] : accounts_) {
    const bool waits = account.runs() && account.computed && !decodes.contains(call) &&
                       account.num_tokens - *account.computed == 1;
    if (!waits) continue;
    const auto finishes_too = [&](const Account& other) {
      return &other != &account && other.runs() && other.finishes_with == account.finishes_with;
    };
    if (account.finishes_with == 0 || !Any(finishes_too)) {
      Violate("a prompt waits to finish with nobody");
    }
    account.waited += num_tokens;
    const int64_t own = account.num_tokens - account.first_context.value_or(0);
    if (account.waited > FinishGate::kMostWaited * own + 1) {
      Violate("a prompt waits for others for longer than it may");
    }
  }
}

std::string WorkerLedger::Check(const WorkerAudit& audit, const Counted& counted, bool is_late,
                                Time now) {
  if (started_ != nullptr) {
    in_flight_ = {.step = started_->step};
    in_flight_.num_arriving = started_->swap_in.size();
  }
  ran_before_ = CountRunning();
  Compare(audit, is_late);
  ComparePark(audit, now);
  if (!violation_.empty()) return violation_;
  CheckGivingWay(counted);
  NotePreemptions();
  const auto num_swaps = static_cast<int64_t>(in_flight_.moved_out.size());
  if (host_is_known_ && started_ != nullptr && counted.swaps - last_.swaps != num_swaps) {
    Violate("a sequence is said to be swapped out that is not");
  }
  CheckComingBack();
  if (promoted_ != nullptr) NoteFollowUp();
  if (started_ != nullptr) {
    for (const StepRow& row : started_->rows) NoteRow(CallOf(*started_, row), row);
    if (violation_.empty()) CheckRows();
  }
  if (std::exchange(follows_now_, false) && violation_.empty()) CheckFollowUp();
  CheckHost();
  CheckHeld(audit);
  last_ = counted;
  was_revoking_ = revoking_.has_value();
  opened_ = false;
  started_ = promoted_ = nullptr;
  revoked_.clear();
  preempted_.clear();
  outgrown_.clear();
  come_back_.clear();
  admitted_.clear();
  return violation_;
}

}  // namespace baton::sim
