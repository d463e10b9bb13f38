#include "router/recovery.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton {
namespace {

constexpr double kRetryBurst = 10;

}  // namespace

Recovery::Recovery(const RouterNodeOptions& options, WorkerDirectory& directory,
                   RouterCounters& counters)
    : options_(options), directory_(directory), counters_(counters), retry_credit_(kRetryBurst) {}

void Recovery::OnRequest() {
  retry_credit_ = std::min(kRetryBurst, retry_credit_ + options_.retry_ratio);
}

// ---- Losses ------------------------------------------------------------------------------------

void Recovery::AddLoss(SequenceState& sequence, const SequenceState::Side& side, absl::Status why,
                       Time now) {
  BATON_CHECK(side.call == 0 && !why.ok());
  if (IsLost(sequence, side)) return;
  sequence.losses.push_back({.worker = side.worker,
                             .incarnation = side.incarnation,
                             .connection = side.connection,
                             .status = std::move(why),
                             .at = now});
}

bool Recovery::IsLost(const SequenceState& sequence, const SequenceState::Side& side) const {
  const auto is_it = [&](const auto& loss) { return loss.incarnation == side.incarnation; };
  return std::ranges::any_of(sequence.losses, is_it);
}

void Recovery::ForgetLosses(SequenceState& sequence) {
  sequence.losses.clear();
  End(sequence);
}

void Recovery::OnQueued(SequenceState& sequence, Time now) {
  BATON_CHECK(sequence.state == SequenceState::State::kQueued);
  End(sequence);
  sequence.ready_at = sequence.losses.empty() ? now : now + options_.judge_delay;
}

// A worker whose call broke is healthy once it was heard of again, over the connection of the call.
// No time tells which that was: a call's end, its connection's and the next one are often read in
// one turn, and in any order.
absl::StatusOr<bool> Recovery::Judge(SequenceState& sequence, Time now) {
  BATON_CHECK(sequence.state == SequenceState::State::kQueued && !sequence.recovering);
  if (sequence.ready_at > now) return false;
  while (!sequence.losses.empty()) {
    const SequenceState::Loss& loss = sequence.losses.back();
    BATON_CHECK(loss.at <= now);
    const WorkerDirectory::Worker& worker = directory_.at(loss.worker);
    const bool is_up = directory_.IsUp(loss.worker, loss.incarnation) && !worker.status.draining &&
                       worker.connection == loss.connection;  // Else that was lost with the call.
    const bool may_be_down = absl::IsUnavailable(loss.status) || absl::IsCancelled(loss.status) ||
                             absl::IsDataLoss(loss.status);
    if (is_up && may_be_down && worker.last_status <= loss.at) {
      sequence.ready_at = now + options_.judge_delay;
      return false;
    }
    // A worker that could not wait for a transfer says nothing against the sequence.
    const bool is_retry = is_up && !absl::IsAborted(loss.status);
    const bool in_bounds = is_retry
                               ? ++sequence.retries <= options_.max_retries && retry_credit_ >= 1
                               : ++sequence.moves <= options_.max_moves;
    if (!in_bounds) {
      // To a client it is all the same how the workers were lost; a bug of theirs is not.
      return absl::IsInternal(loss.status) ? absl::Status(loss.status)
                                           : absl::UnavailableError(loss.status.message());
    }
    ++(is_retry ? counters_.retries : counters_.moves);
    if (is_retry) retry_credit_ -= 1;
    if (is_up) directory_.Skip(loss.worker, now + options_.retry_delay);
    sequence.lost.push_back(loss.incarnation);
    sequence.losses.pop_back();
  }
  BATON_CHECK(sequence.lost.size() == static_cast<size_t>(sequence.moves + sequence.retries));
  BATON_CHECK(retry_credit_ >= 0);
  return true;
}

bool Recovery::HasFailed(const SequenceState& sequence, Incarnation incarnation) const {
  return std::ranges::find(sequence.lost, incarnation) != sequence.lost.end();
}

// ---- Starts ------------------------------------------------------------------------------------

bool Recovery::MayStart(const SequenceState& sequence) const {
  return !IsAgain(sequence) || num_recovering_ < options_.max_recovering;
}

void Recovery::Start(SequenceState& sequence) {
  BATON_CHECK(!sequence.Holds() && !sequence.recovering && sequence.losses.empty());
  sequence.handoff_failures = 0;
  sequence.returned = false;
  sequence.recovering = IsAgain(sequence);
  num_recovering_ += sequence.recovering ? 1 : 0;
  BATON_CHECK(num_recovering_ <= options_.max_recovering);
}

void Recovery::Resume(SequenceState& sequence) {
  BATON_CHECK(!sequence.Holds() && !sequence.recovering && sequence.losses.empty());
  sequence.handoff_failures = 0;
  sequence.returned = true;
}

void Recovery::End(SequenceState& sequence) {
  if (std::exchange(sequence.recovering, false)) --num_recovering_;
  BATON_CHECK(num_recovering_ >= 0);
}

// ---- Failed handoffs ---------------------------------------------------------------------------

Recovery::Rung Recovery::Climb(SequenceState& sequence, Time now) {
  BATON_CHECK(sequence.state == SequenceState::State::kPrefilling && sequence.decode.call != 0);
  ++counters_.handoff_failures;
  ++sequence.handoff_failures;
  blamed_[{sequence.prefill.worker, sequence.decode.worker}] = now + options_.blame_time;
  if (sequence.handoff_failures == 1) return Rung::kSamePair;
  if (sequence.handoff_failures == 2) {
    const bool is_kept = sequence.prefill.call != 0;
    if (is_kept && HasOther(sequence.decode, sequence.prefill)) return Rung::kOtherDecode;
    if (HasOther(sequence.prefill, sequence.decode)) return Rung::kOtherPrefill;
  }
  return Rung::kDecodeAlone;
}

// Another worker that could take the side's place beside the other side, which stays.
bool Recovery::HasOther(const SequenceState::Side& side, const SequenceState::Side& stays) const {
  const std::vector<WorkerDirectory::Worker>& workers = directory_.workers();
  const Role role = workers[side.worker].role;
  for (int32_t w = 0; w < static_cast<int32_t>(workers.size()); ++w) {
    if (w != side.worker && workers[w].role == role && workers[w].pair == stays.pair &&
        directory_.Usable(w)) {
      return true;
    }
  }
  return false;
}

std::vector<BlamedPair> Recovery::Blamed(Time now) const {
  std::vector<BlamedPair> pairs;
  for (const auto& [route, until] : blamed_) {
    if (until > now) pairs.push_back({route.prefill, route.decode, until - now});
  }
  return pairs;
}

}  // namespace baton
