// The part of RouterLedger that says what a failure may cost: fences, answers and holds given up,
// rungs, and KV that is computed again.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/economy.h"

namespace baton::sim {

// Decode workers compute prompts when there was no prefill worker for a while, and not before.
void RouterLedger::CheckAlone(const RouterView& view, Time now) {
  std::set<int32_t> prefill;  // Which frames healthy ones know.
  for (const WorkerView& worker : view.workers) {
    const int32_t wire = worker.hello.kv_wire_version;
    if (worker.healthy && worker.role == Role::kPrefill) prefill.insert(wire);
    no_prefill_since_.try_emplace(wire, now);
  }
  for (auto& [wire, since] : no_prefill_since_) {
    since = prefill.contains(wire) ? kNever : std::min(since, now);
  }
  for (const int32_t worker : std::exchange(alone_, {})) {
    const Time since = no_prefill_since_.at(view.workers[worker].hello.kv_wire_version);
    if (since == kNever || now - since < options_.alone_after) {
      Violate("a decode worker is to compute a prompt that a prefill worker could, or soon can");
    }
  }
}

// A fence needs a trouble, and loses what was open on that worker.
void RouterLedger::NoteFences(const RouterView& view) {
  std::set<int32_t> hung;
  for (int32_t w = 0; w < static_cast<int32_t>(view.workers.size()); ++w) {
    const auto& worker = view.workers[w];
    if (worker.healthy || worker.reason != "it stopped making progress") continue;
    hung.insert(w);
    if (hung_.contains(w)) continue;
    has_fenced_ = true;
    if (!faults_.MayBeLost(router_, w, world_.now() - FaultLog::kAftermath)) {
      Violate(absl::StrCat("healthy worker ", w, " is fenced"));
    }
    for (const Cancelled& cancelled : cancelled_) {
      Account& account = accounts_[cancelled.counter];
      const Side& side = cancelled.is_decode ? account.decode : account.prefill;
      if (side.worker == w) Lose(account, side);
    }
  }
  hung_ = std::move(hung);
}

// Answers that did not come and holds that ended: each after its whole time.
void RouterLedger::NoteGivenUp(const RouterAudit& audit, const RouterCounters& counters,
                               Time now) {
  std::set<uint64_t> live;
  for (const LiveSequence& told : audit.sequences) live.insert(told.sequence.counter);
  int64_t unanswered = counters.unanswered - last_.unanswered;
  int64_t expired = counters.holds_expired - last_.holds_expired;
  // First those that live on: a request may end in the same event, also for this.
  for (const bool lives : {true, false}) {
    for (const auto& [counter, is_decode] : cancelled_) {
      if (live.contains(counter) != lives) continue;
      Account& account = accounts_[counter];
      if (unanswered > 0 && account.asked_at != kNever &&
          now - account.asked_at >= options_.answer_limit) {
        --unanswered;
        account.asked_at = kNever;
        Lose(account, account.decode);
      } else if (expired > 0 && account.held_since != kNever &&
                 now - account.held_since >= options_.hold_limit) {
        --expired;
        account.held_since = kNever;
        ++account.causes;
        account.kv_gone = true;
      }
    }
  }
  if (unanswered > 0) Violate("an answer was given up before its time");
  if (expired > 0) Violate("a hold was given up before its time");
}

// One failed transfer, one rung: told by either side for the running attempt, or a verdict that did
// not come.
void RouterLedger::NoteRungs(const RouterAudit& audit, const RouterCounters& counters, Time now) {
  int64_t rungs = counters.handoff_failures - last_.handoff_failures;
  const auto climb = [&](Account& account, Attempt attempt, const Pair& pair) {
    if (!account.failed.insert(attempt).second) return;
    --rungs;
    ++account.causes;
    account.climbed = pair;
    LoseKept(account);
    account.verdict_since = kNever;
    blamed_.insert(pair);
    climbed_.push_back(pair);
  };
  if (rungs == 0 && failure_ && failure_->must_climb) {
    return Violate("the running transfer fails and no rung is climbed");
  }
  if (rungs > 0 && failure_) {
    climb(accounts_[failure_->sequence], failure_->attempt, failure_->pair);
  }
  for (const LiveSequence& told : audit.sequences) {
    auto it = accounts_.find(told.sequence.counter);
    if (rungs == 0 || it == accounts_.end()) continue;
    Account& account = it->second;
    const bool is_due = account.verdict_since != kNever &&
                        now - account.verdict_since >= options_.verdict_limit;
    const bool has_climbed = told.handoff_failures > static_cast<int32_t>(account.failed.size());
    if (is_due && has_climbed) climb(account, account.verdict_attempt, account.verdict_of);
  }
  if (rungs > 0) Violate("a rung is climbed without a failure of the running attempt");
}

// Another worker that could take its place beside the one that stays.
bool RouterLedger::HasOther(const RouterView& view, int32_t than, int32_t stays) const {
  const int32_t wire = view.workers[stays].hello.kv_wire_version;
  for (int32_t w = 0; w < static_cast<int32_t>(view.workers.size()); ++w) {
    const auto& worker = view.workers[w];
    const bool pairs = worker.healthy && worker.hello.kv_wire_version == wire;
    if (w != than && worker.role == view.workers[than].role && pairs) return true;
  }
  return false;
}

// The same pair once more; then another worker on one side, first beside KV that is kept; then the
// decode worker computes the prompt itself.
void RouterLedger::CheckRung(const Account& account, const RouterView& view) {
  const bool is_alone = account.rebound_to == Incarnation{0};
  if (is_alone && account.failed.size() < 2) {
    Violate("a decode worker is to compute a prompt that can be handed over");
  }
  if (!account.climbed || has_fenced_) return;
  if (account.failed.size() == 1) {
    const bool is_same = account.rebound_to == account.prefill.incarnation;
    if (!is_same || account.drops_prefill) Violate("a failed handoff is not tried once more");
    return;
  }
  const bool may_choose = account.failed.size() == 2;
  const bool was_kept = account.prefill.open() || account.drops_prefill;
  const auto [prefill, decode] = *account.climbed;
  if (may_choose && was_kept && HasOther(view, decode, prefill)) {
    if (!account.drops_decode || account.drops_prefill) {
      Violate("kept KV is not sent to another decode worker");
    }
  } else if (may_choose && HasOther(view, prefill, decode)) {
    if (account.drops_decode || is_alone) Violate("no other prefill worker is asked");
  } else if (!is_alone) {
    Violate("the last rung is another");
  }
}

// What a prefill worker keeps is not dropped, and what is kept or there is not computed again.
void RouterLedger::CheckKept(Account& account) {
  if (account.drops_prefill && !account.kv_gone && !account.decoding) {
    Violate("KV that a prefill worker keeps is dropped and nothing had happened to it");
  }
  const int32_t num_asked = std::exchange(account.num_asked, 0);
  if (num_asked == 0) return;
  const bool was_gone = std::exchange(account.kv_gone, false);
  if (num_asked > account.num_seen) Violate("more is prefilled than the client has seen");
  if (account.prefills == 1) return;
  totals_.asked_again += num_asked;
  totals_.may_ask_again += was_gone ? account.num_seen : 0;
  if (!was_gone) Violate("a prompt is prefilled again and its KV is not gone");
}

}  // namespace baton::sim
