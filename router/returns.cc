#include "router/returns.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton {

using State = SequenceState::State;

bool Returns::MayBegin(const SequenceState& sequence, const CallClosed& closed, Time now) const {
  BATON_CHECK(sequence.decode.call == 0 && !IsWaiting(sequence));
  // With no Prefill call left, what was prefilled was verified there.
  const bool was_there = sequence.state == State::kDecoding ||
                         (sequence.state == State::kPrefilling && sequence.prefilled) ||
                         (sequence.state == State::kReserving && sequence.returned);
  const absl::Status& why = closed.status;
  const bool may_be_down = closed.is_replaced || absl::IsUnavailable(why) ||
                           absl::IsCancelled(why) || absl::IsDataLoss(why);
  // What a prefill worker still holds goes to any decode worker.
  if (!was_there || !may_be_down || sequence.prefill.call != 0) return false;
  if (sequence.IsAlone() && sequence.LacksOnlyScores()) return false;  // Of which it keeps nothing.
  return sequence.back.times < options_.max_returns &&
         Find(sequence.decode.incarnation, now).lives_until > now;
}

void Returns::Begin(SequenceState& sequence, const CallClosed& closed, Time now) {
  BATON_CHECK(sequence.state == State::kQueued && !sequence.Holds() && sequence.losses.empty());
  Leave(sequence);
  sequence.back = {.lost_at = now,
                   .until = now + options_.return_limit,
                   .connection = sequence.decode.connection,
                   .known = directory_.workers()[sequence.decode.worker].connection,
                   .why = closed.status,
                   .times = sequence.back.times + 1,
                   .replaced = closed.is_replaced};
  Enter(sequence);
}

void Returns::Again(SequenceState& sequence) {
  BATON_CHECK(sequence.state == State::kQueued && !sequence.Holds());
  Leave(sequence);
  Enter(sequence);
  refused_over_[sequence.decode.worker] = sequence.decode.connection;
}

int32_t Returns::Go(const SequenceState& sequence, Time now) {
  const int32_t worker = Find(sequence.decode.incarnation, now).worker;
  BATON_CHECK(IsWaiting(sequence) && worker >= 0);
  Leave(sequence);
  BATON_CHECK(asking_.emplace(worker, sequence.id.counter).second);
  return worker;
}

void Returns::Taken(const SequenceState& sequence) {
  if (refused_over_.erase(sequence.decode.worker) > 0) LookAt(sequence.decode.incarnation);
}

void Returns::Forget(SequenceState& sequence) {
  Leave(sequence);
  sequence.back.until = {};
}

void Returns::Restart(SequenceState& sequence, Time now) {
  if (sequence.back.until == Time{} || std::exchange(sequence.back.restarted, true)) return;
  const bool waits = IsWaiting(sequence);
  if (waits) Leave(sequence);
  sequence.back.lost_at = now;
  sequence.back.until = now + options_.return_limit;
  if (waits) Enter(sequence);
}

// ---- Who waits ---------------------------------------------------------------------------------

void Returns::Enter(SequenceState& sequence) {
  const uint64_t counter = sequence.id.counter;
  BATON_CHECK(waiting_.emplace(counter, &sequence).second);
  ends_.Set(counter, sequence.back.until);
  BATON_CHECK(parties_[sequence.decode.incarnation].waiting.insert(counter).second);
  LookAt(sequence.decode.incarnation);
}

void Returns::Leave(const SequenceState& sequence) {
  const uint64_t counter = sequence.id.counter;
  if (waiting_.erase(counter) > 0) {
    ends_.Clear(counter, sequence.back.until);
    const auto party = parties_.find(sequence.decode.incarnation);
    BATON_CHECK(party != parties_.end() && party->second.waiting.erase(counter) == 1);
    if (party->second.waiting.empty()) parties_.erase(party);
  }
  // The next one may ask.
  if (asking_.erase({sequence.decode.worker, counter}) > 0) LookAt(sequence.decode.incarnation);
}

// ---- What is known of the worker ---------------------------------------------------------------

void Returns::Note(int32_t worker) { LookAt(directory_.workers()[worker].hello.incarnation); }

void Returns::LookAt(Incarnation incarnation) {
  const auto it = parties_.find(incarnation);
  if (it == parties_.end()) return;
  it->second.look_at = {};
  it->second.looked = 0;
  it->second.again_at = kNever;
}

// Where its connection was lost it may be silent for no longer than where that stands. Which of its
// addresses it is asked by does not matter, but the load is counted by one.
Returns::Process Returns::Find(Incarnation incarnation, Time now) const {
  Process found;
  const auto& workers = directory_.workers();
  for (int32_t i = 0; i < static_cast<int32_t>(workers.size()); ++i) {
    const WorkerDirectory::Worker& w = workers[i];
    if (!w.listed || w.hello.incarnation != incarnation) continue;
    if (w.status.draining) return {};
    if (w.is_gone || w.hung) continue;
    found.lives_until =
        std::max(found.lives_until, w.up ? kNever : w.last_status + options_.hang_limit);
    if (w.up && (found.worker < 0 || !w.is_alias)) found.worker = i;
  }
  if (found.lives_until <= now) return {};
  return found;
}

bool Returns::MayAsk(int32_t worker, Time now) const {
  const WorkerDirectory::Worker& w = directory_.workers()[worker];
  if (w.skip_until > now) return false;
  const auto refused = refused_over_.find(worker);
  if (refused == refused_over_.end() || refused->second != w.connection) return true;
  const auto asking = asking_.lower_bound({worker, 0});
  return asking == asking_.end() || asking->first != worker;
}

bool Returns::IsUnsure(const SequenceState& sequence) const {
  const SequenceState::Side& side = sequence.decode;
  return !sequence.back.replaced && directory_.IsUp(side.worker, side.incarnation) &&
         directory_.workers()[side.worker].connection == sequence.back.known;
}

Time Returns::JudgedAt(const SequenceState& sequence) const {
  return sequence.back.lost_at + options_.judge_delay;
}

// ---- What is to be done ------------------------------------------------------------------------

std::optional<Returns::Due> Returns::Next(Time now) {
  if (const std::optional<uint64_t> over = ends_.Expired(now)) {
    return Due{.sequence = waiting_.at(*over), .goes = false};
  }
  for (auto& [incarnation, party] : parties_) {
    if (party.look_at > now) continue;
    if (const std::optional<Due> due = NextOf(incarnation, party, now)) return due;
  }
  return std::nullopt;
}

// While the worker cannot be asked, there is nothing to see at each of them.
std::optional<Returns::Due> Returns::NextOf(Incarnation incarnation, Party& party, Time now) {
  const Process process = Find(incarnation, now);
  const bool lives = process.lives_until > now;
  const bool may_ask = process.worker >= 0 && MayAsk(process.worker, now);
  auto next = lives && !may_ask ? party.waiting.end() : party.waiting.upper_bound(party.looked);
  for (; next != party.waiting.end(); ++next) {
    party.looked = *next;
    SequenceState* sequence = waiting_.at(*next);
    if (!lives) return Due{.sequence = sequence, .goes = false};
    if (!IsUnsure(*sequence)) return Due{.sequence = sequence, .goes = true};
    const WorkerDirectory::Worker& worker = directory_.workers()[sequence->decode.worker];
    if (JudgedAt(*sequence) > now) {
      party.again_at = std::min(party.again_at, JudgedAt(*sequence));
    } else if (worker.connection != sequence->back.connection) {
      return Due{.sequence = sequence, .goes = true};  // It went over the one before.
    } else if (worker.last_status > sequence->back.lost_at) {
      return Due{.sequence = sequence, .goes = false};  // The call alone was lost.
    }
  }
  party.look_at = std::min(process.lives_until, std::exchange(party.again_at, kNever));
  party.looked = 0;
  if (process.worker < 0) return std::nullopt;
  const Time asks_at = directory_.workers()[process.worker].skip_until;
  if (asks_at > now) party.look_at = std::min(party.look_at, asks_at);
  return std::nullopt;
}

Time Returns::NextLook() const {
  Time next = ends_.Next();
  for (const auto& [incarnation, party] : parties_) next = std::min(next, party.look_at);
  return next;
}

}  // namespace baton
