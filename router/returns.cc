#include "router/returns.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton {
namespace {

using State = SequenceState::State;

// The process of that side may still run, as far as is known.
bool MayLive(const WorkerDirectory::Worker& worker, const SequenceState::Side& side) {
  const bool is_it = worker.listed && worker.hello.incarnation == side.incarnation;
  return is_it && !worker.is_gone && !worker.hung && !worker.status.draining;
}

}  // namespace

bool Returns::MayBegin(const SequenceState& sequence, const absl::Status& why) const {
  // With no Prefill call left, what was prefilled was verified there.
  const bool was_there = sequence.state == State::kDecoding ||
                         (sequence.state == State::kPrefilling && sequence.prefilled) ||
                         (sequence.state == State::kReserving && sequence.returned);
  const bool may_be_down =
      absl::IsUnavailable(why) || absl::IsCancelled(why) || absl::IsDataLoss(why);
  // What a prefill worker still holds goes to any decode worker.
  if (!was_there || !may_be_down || sequence.prefill.call != 0) return false;
  return sequence.back.times < options_.max_returns &&
         MayLive(directory_.workers()[sequence.decode.worker], sequence.decode);
}

void Returns::Begin(SequenceState& sequence, const absl::Status& why, Time now) {
  BATON_CHECK(sequence.state == State::kQueued && !sequence.Holds() && sequence.losses.empty());
  sequence.back = {.until = now + options_.return_limit,
                   .connection = sequence.decode.connection,
                   .why = why,
                   .times = sequence.back.times + 1};
  Leave(sequence);
  waiting_.insert(sequence.id.counter);
}

void Returns::Again(const SequenceState& sequence) {
  Leave(sequence);
  waiting_.insert(sequence.id.counter);
  refused_over_[sequence.decode.worker] = sequence.decode.connection;
}

void Returns::Go(const SequenceState& sequence) {
  waiting_.erase(sequence.id.counter);
  asking_.emplace(sequence.decode.worker, sequence.id.counter);
}

void Returns::Taken(const SequenceState& sequence) { refused_over_.erase(sequence.decode.worker); }

void Returns::Forget(SequenceState& sequence) {
  sequence.back.until = {};
  Leave(sequence);
}

void Returns::Leave(const SequenceState& sequence) {
  waiting_.erase(sequence.id.counter);
  asking_.erase({sequence.decode.worker, sequence.id.counter});
}

bool Returns::MayAsk(int32_t worker, Time now) const {
  const WorkerDirectory::Worker& w = directory_.workers()[worker];
  if (w.skip_until > now) return false;
  const auto refused = refused_over_.find(worker);
  if (refused == refused_over_.end() || refused->second != w.connection) return true;
  const auto asking = asking_.lower_bound({worker, 0});
  return asking == asking_.end() || asking->first != worker;
}

void Returns::Restart(SequenceState& sequence, Time now) {
  if (sequence.back.until == Time{} || std::exchange(sequence.back.restarted, true)) return;
  sequence.back.until = now + options_.return_limit;
}

Returns::Turn Returns::Look(const SequenceState& sequence, Time now) const {
  BATON_CHECK(IsWaiting(sequence));
  const WorkerDirectory::Worker& worker = directory_.workers()[sequence.decode.worker];
  if (sequence.back.until <= now || !MayLive(worker, sequence.decode)) return Turn::kIsOver;
  if (!worker.up) return Turn::kWaits;
  if (worker.connection != sequence.back.connection) {
    return MayAsk(sequence.decode.worker, now) ? Turn::kGoes : Turn::kWaits;
  }
  // The call alone was lost, if the worker is heard of over the connection that it went over.
  const bool is_heard = worker.last_status > LostAt(sequence);
  return is_heard && JudgedAt(sequence) <= now ? Turn::kIsOver : Turn::kWaits;
}

Time Returns::NextLook(const SequenceState& sequence, Time now) const {
  Time next = sequence.back.until;
  const Time asks_at = directory_.workers()[sequence.decode.worker].skip_until;
  for (const Time at : {asks_at, JudgedAt(sequence)}) {
    if (at > now) next = std::min(next, at);
  }
  return next;
}

Time Returns::LostAt(const SequenceState& sequence) const {
  return sequence.back.until - options_.return_limit;
}

Time Returns::JudgedAt(const SequenceState& sequence) const {
  return LostAt(sequence) + options_.judge_delay;
}

}  // namespace baton
