#include "router/pair_choice.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton {
namespace {

// Whether what is kept of `reserved` (0 = all groups) is kept of that group.
bool IsOf(uint64_t reserved, uint64_t group) { return reserved == 0 || reserved == group; }

}  // namespace

PairChoice::PairChoice(const RouterNodeOptions& options, Known known,
                       std::unique_ptr<RoutingPolicy> policy)
    : options_(options), known_(known), policy_(std::move(policy)) {
  BATON_CHECK(policy_ != nullptr);
}

void PairChoice::BeginTurn() {
  reserved_prefill_.clear();
  reserved_decode_.clear();
}

bool PairChoice::IsDecodeReserved(int32_t worker) const {
  const uint64_t group = known_.directory.workers()[worker].group;
  const bool may_score = known_.directory.MayScore(worker);
  return std::ranges::any_of(reserved_decode_, [&](const ReservedDecode& reserved) {
    return IsOf(reserved.group, group) && (may_score || !reserved.wants_scores);
  });
}

Time PairChoice::GivesUpAt(const SequenceState& sequence) const {
  const Time since = std::max(sequence.queued_since, known_.directory.LostAt(sequence.Need()));
  return since + (sequence.attempt > 0 ? options_.recovery_grace : options_.no_worker_grace);
}

std::optional<PairChoice::Found> PairChoice::Find(const SequenceState& sequence, Time now) const {
  RouteNeed need = sequence.Need();
  std::optional<Route> route = Choose(sequence, need, now);
  if (!route && MayBeAlone(sequence, now)) {
    // Beside pairs that are only busy, for what it begins at once: none is to wait for it instead.
    const bool has_pair = known_.directory.HasPair(need);
    need.needs_decode = need.alone = true;
    route = Choose(sequence, need, now);
    if (route && has_pair && !known_.directory.IsIdle(route->decode, need.prompt_tokens)) {
      return std::nullopt;
    }
  }
  if (!route) return std::nullopt;
  BATON_CHECK(need.alone || route->prefill >= 0);
  BATON_CHECK(!need.needs_decode || route->decode >= 0);
  return Found{.need = need, .route = *route};
}

bool PairChoice::Reserve(const SequenceState& sequence, Time now) {
  RouteNeed need = sequence.Need();
  if (!known_.directory.HasPair(need) && MayBeAlone(sequence, now)) {
    need.needs_decode = need.alone = true;
  }
  const RoutingSnapshot left = SnapshotFor(sequence, need, now);
  const bool has_prefill = need.alone || !left.prefill.empty();
  const bool has_decode = !need.needs_decode || !left.decode.empty();
  // Where both are there they do not pair.
  if (!has_prefill || has_decode) reserved_prefill_.push_back(need.group);
  if (!has_decode || (has_prefill && need.needs_decode)) {
    reserved_decode_.push_back({need.group, need.wants_scores});
  }
  const bool has_prefill_left = std::ranges::find(reserved_prefill_, 0u) == reserved_prefill_.end();
  return has_prefill_left || known_.directory.IsAnyAlone(now);
}

// Whether it may go without a prefill worker, where no pair takes it. Only what holds nothing: a
// side that is held is given up soon enough.
bool PairChoice::MayBeAlone(const SequenceState& sequence, Time now) const {
  return !sequence.Holds() && known_.directory.AloneAt(sequence.Need()) <= now;
}

// The candidates for the sides that it lacks; the side that it holds is given.
RoutingSnapshot PairChoice::SnapshotFor(const SequenceState& sequence, const RouteNeed& need,
                                        Time now) const {
  RoutingSnapshot snapshot =
      known_.directory.Snapshot(need, options_.max_pending_prefill_tokens, now);
  std::erase_if(snapshot.prefill, [&](const Candidate& c) {
    return std::ranges::any_of(reserved_prefill_, [&](uint64_t g) { return IsOf(g, c.group); });
  });
  std::erase_if(snapshot.decode, [&](const Candidate& c) {
    return IsDecodeReserved(c.worker) || !known_.claims.Admits(sequence, c.worker, now);
  });
  snapshot.prefix = PrefixDirectory::KeyOf(sequence.prefix_hashes);
  const auto held = [this](const SequenceState::Side& side) {
    Candidate candidate = known_.directory.CandidateOf(side.worker);
    candidate.pair = side.pair;  // By now another process may be there.
    return candidate;
  };
  if (sequence.prefill.call != 0) snapshot.prefill = {held(sequence.prefill)};
  if (sequence.decode.call != 0) snapshot.decode = {held(sequence.decode)};
  for (auto* side : {&snapshot.prefill, &snapshot.decode}) {
    for (Candidate& candidate : *side) {
      candidate.matched_tokens =
          known_.prefixes.MatchedTokens(sequence.prefix_hashes, candidate.worker);
    }
  }
  return snapshot;
}

// Away from processes that failed this sequence and from blamed pairs, if there is another choice.
std::optional<Route> PairChoice::Choose(const SequenceState& sequence, const RouteNeed& need,
                                        Time now) const {
  const RoutingSnapshot all = SnapshotFor(sequence, need, now);
  const std::vector<BlamedPair> blamed = known_.recovery.Blamed(now);
  if (blamed.empty() && sequence.lost.empty()) return policy_->Choose(all);
  RoutingSnapshot preferred = all;
  for (const BlamedPair& pair : blamed) preferred.blamed.push_back({pair.prefill, pair.decode});
  const auto has_failed = [&](const Candidate& candidate) {
    return known_.recovery.HasFailed(
        sequence, known_.directory.workers()[candidate.worker].hello.incarnation);
  };
  if (sequence.prefill.call == 0) std::erase_if(preferred.prefill, has_failed);
  if (sequence.decode.call == 0) std::erase_if(preferred.decode, has_failed);
  const std::optional<Route> route = policy_->Choose(preferred);
  return route ? route : policy_->Choose(all);
}

}  // namespace baton
