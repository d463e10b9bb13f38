#include "router/worker_directory.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "router/pair_fit.h"

namespace baton {
namespace {

// A layer may take so many times the longest of late, but never more than so many hang limits; so
// much has the first of all, as nobody knows yet how long one takes.
constexpr int kLayerFactor = 20;
constexpr int kMostHangLimits = 8;

// Of a decode worker that computes prompts itself.
bool Gives(const HelloInfo& hello, const RouteNeed& need) {
  return hello.scores_prompts || !need.wants_scores;
}

// Tokens that so many blocks of a worker hold.
int64_t TokensIn(int64_t num_blocks, const HelloInfo& hello) {
  return num_blocks * hello.block_size / hello.layer_groups;
}

// From `now` on that is what is taken, and nothing else.
template <typename Key>
void SetAll(const std::map<Key, int32_t>& reach, Time now, std::map<Key, ReachHistory>& histories) {
  for (const auto& [key, length] : reach) histories[key].Set(length, now);
  for (auto& [key, history] : histories) {
    if (!reach.contains(key)) history.Set(0, now);
  }
}

}  // namespace

WorkerDirectory::WorkerDirectory(const std::vector<Role>& roles, Duration hang_limit,
                                 Duration alone_after)
    : hang_limit_(hang_limit), alone_after_(alone_after) {
  for (Role role : roles) workers_.push_back({.role = role});
}

void WorkerDirectory::List(int32_t worker, Role role, std::string address) {
  BATON_CHECK(worker >= 0);
  if (worker >= static_cast<int32_t>(workers_.size())) {
    // Between those that there are and this one nobody is listed yet.
    workers_.resize(worker + 1, {.listed = false});
  }
  Worker& w = workers_[worker];
  BATON_CHECK(!w.listed);
  w.role = role;
  w.address = std::move(address);
  w.listed = true;
}

void WorkerDirectory::Forget(int32_t worker, Time now) {
  Worker& w = workers_[worker];
  BATON_CHECK(w.listed);
  const Incarnation gone = w.up && !w.is_alias ? w.hello.incarnation : 0;
  w = {.listed = false, .pending_tokens = w.pending_tokens, .num_sides = w.num_sides};
  if (gone != 0) PromoteAliasOf(gone);
  UpdateReach(now);
}

bool WorkerDirectory::IsAlias(int32_t worker) const {
  const Worker& w = workers_[worker];
  return std::any_of(workers_.begin(), workers_.end(), [&w](const Worker& other) {
    return &other != &w && other.up && !other.is_alias && other.role == w.role &&
           other.hello.incarnation == w.hello.incarnation;
  });
}

void WorkerDirectory::PromoteAliasOf(Incarnation incarnation) {
  for (Worker& w : workers_) {
    if (w.up && w.is_alias && w.hello.incarnation == incarnation) {
      w.is_alias = false;
      return;
    }
  }
}

// All of a cluster are started alike: those of the release before have what the others tell.
void WorkerDirectory::FitPairs() {
  for (Worker& w : workers_) {
    if (!w.known) continue;
    if (!w.tells_kv_tls) {
      const auto teller = std::ranges::find_if(workers_, [&w](const Worker& other) {
        return other.up && other.tells_kv_tls && other.group == w.group;
      });
      w.hello.kv_tls = teller == workers_.end() ? DefaultKvTls(w.address) : teller->hello.kv_tls;
    }
    w.pair = PairOf(w.hello);
  }
}

bool WorkerDirectory::OnUp(int32_t worker, const HelloInfo& hello, Time now) {
  Worker& w = workers_[worker];
  BATON_CHECK(w.listed);
  BATON_CHECK(hello.layer_groups > 0);  // The conversion of Hello has seen to it.
  const bool is_new = w.hello.incarnation != hello.incarnation;
  if (is_new) w.last_token = w.last_prompt = {};
  w.hello = hello;
  w.tells_kv_tls = hello.kv_tls.has_value();
  w.group = GroupOf(w.hello);
  w.last_progress = now;
  w.stands_since = now;
  w.last_status = now;
  w.connection = ++num_connections_;
  w.hung = w.is_gone = false;
  w.skip_until = {};
  w.status = {.incarnation = hello.incarnation, .blocks = {.free = hello.num_blocks}};
  w.taken_tokens = w.others_tokens = 0;
  w.is_alias = IsAlias(worker);
  w.up = true;
  w.known = true;
  FitPairs();
  w.reason.clear();
  UpdateReach(now);
  return is_new;
}

void WorkerDirectory::OnStatus(int32_t worker, const WorkerStatus& status, Time now) {
  Worker& w = workers_[worker];
  BATON_CHECK(w.listed);
  if (status.incarnation != w.hello.incarnation) return;
  const bool was_usable = Usable(worker);
  if (status.progress != w.status.progress) w.last_progress = now;
  const bool moved = status.progress != w.status.progress || !status.computing;
  if (moved) w.stands_since = now;
  // A worker that was only silent is back with its first word, one that stood still with progress.
  if (w.hung && moved) {
    w.hung = false;
    w.reason.clear();
  }
  w.last_status = now;
  w.status = status;
  w.taken_tokens = 0;
  w.others_tokens = OthersTokens(w);
  w.skip_until = {};
  if (Usable(worker) != was_usable) UpdateReach(now);
}

// A prefill worker tells its queue. A decode worker tells its blocks and sequences: those that are
// not of this router hold as much as the others on average.
int64_t WorkerDirectory::OthersTokens(const Worker& worker) {
  const WorkerStatus& status = worker.status;
  if (worker.role == Role::kPrefill) {
    return std::max<int64_t>(0, status.queued_tokens - worker.pending_tokens);
  }
  const int64_t num = int64_t{status.running} + status.waiting + status.preempted;
  const int64_t used =
      int64_t{worker.hello.num_blocks} - status.blocks.free - status.blocks.cached;
  if (num <= worker.num_sides || used <= 0) return 0;
  const auto of_others = static_cast<double>(num - worker.num_sides);
  return static_cast<int64_t>(static_cast<double>(TokensIn(used, worker.hello)) * of_others /
                              static_cast<double>(num));
}

void WorkerDirectory::OnDown(int32_t worker, const std::string& reason, Time now, bool is_gone) {
  Worker& w = workers_[worker];
  BATON_CHECK(w.listed);
  w.is_gone = is_gone;
  const bool counted = std::exchange(w.up, false) && !std::exchange(w.is_alias, false);
  w.reason = reason;
  if (counted) PromoteAliasOf(w.hello.incarnation);
  UpdateReach(now);
}

Time WorkerDirectory::HungAt(int32_t worker) const {
  const Worker& w = workers_[worker];
  if (!w.up || w.hung) return kNever;
  const Time silent = w.last_status + hang_limit_;
  if (!w.status.computing) return silent;
  const Duration most = kMostHangLimits * hang_limit_;
  // Nobody knows yet how long a layer takes: the first step reads the weights into memory.
  const bool is_cold = w.status.longest_layer == Duration::zero();
  const Duration patience =
      is_cold ? most : std::clamp(kLayerFactor * w.status.longest_layer, hang_limit_, most);
  return std::min(silent, w.stands_since + patience);
}

void WorkerDirectory::Forgive(Time now) {
  for (Worker& w : workers_) {
    w.last_status = now;
    w.stands_since = now;
  }
}

void WorkerDirectory::OnLook(Time now) {
  if (last_look_ != kNever && now - last_look_ > hang_limit_ / 6) awake_since_ = now;
  last_look_ = now;
}

Time WorkerDirectory::FenceAt() const {
  Time hung = kNever;
  for (int32_t i = 0; i < static_cast<int32_t>(workers_.size()); ++i) {
    hung = std::min(hung, HungAt(i));
  }
  const bool looks_again = last_look_ != kNever && hung - hang_limit_ / 6 > last_look_;
  if (hung == kNever || !looks_again) return std::max(hung, awake_since_ + hang_limit_ / 24);
  return hung - hang_limit_ / 12;
}

void WorkerDirectory::MarkHung(int32_t worker, Time now) {
  Worker& w = workers_[worker];
  BATON_CHECK(w.up && !w.hung);
  w.hung = true;
  w.reason = "it stopped making progress";
  UpdateReach(now);
}

void WorkerDirectory::Take(SequenceState::Side& side, int32_t worker, int64_t tokens) {
  BATON_CHECK(side.call == 0 && side.tokens == 0 && tokens > 0);
  Worker& w = workers_[worker];
  BATON_CHECK(w.up && !w.hung);
  side.worker = worker;
  side.incarnation = w.hello.incarnation;
  side.pair = w.pair;
  side.connection = w.connection;
  side.tokens = tokens;
  w.pending_tokens += tokens;
  w.taken_tokens += tokens;
  ++w.num_sides;
}

void WorkerDirectory::Release(SequenceState::Side& side) {
  BATON_CHECK(side.tokens >= 0);
  if (side.tokens == 0) return;
  Worker& w = workers_[side.worker];
  w.pending_tokens -= std::exchange(side.tokens, 0);
  --w.num_sides;
  BATON_CHECK(w.num_sides >= 0);
  BATON_CHECK(w.num_sides > 0 ? w.pending_tokens > 0 : w.pending_tokens == 0);
}

void WorkerDirectory::NoteTokens(const SequenceState& sequence,
                                 std::span<const TokenOutput> outputs, Time now) {
  if (outputs.empty() || outputs.back().position <= sequence.base) return;
  const auto note = [&](const SequenceState::Side& side, Time Worker::* what) {
    if (IsUp(side.worker, side.incarnation)) workers_[side.worker].*what = now;
  };
  note(sequence.decode, &Worker::last_token);
  const bool is_first = outputs.front().position <= sequence.base + 1;
  if (!is_first || sequence.handoff_failures > 0) return;
  if (sequence.prefill.incarnation != 0) {
    note(sequence.prefill, &Worker::last_token);
  } else if (sequence.IsAlone()) {
    note(sequence.decode, &Worker::last_prompt);
  }
}

Candidate WorkerDirectory::CandidateOf(int32_t worker) const {
  const Worker& w = workers_[worker];
  const int64_t free_blocks = int64_t{w.status.blocks.free} + w.status.blocks.cached;
  return {.worker = worker,
          .group = w.group,
          .pair = w.pair,
          .incarnation = w.hello.incarnation,
          .pending_tokens = w.pending_tokens + w.others_tokens,
          .capacity_tokens = std::max<int64_t>(1, TokensIn(w.hello.num_blocks, w.hello)),
          .free_tokens = std::max<int64_t>(0, TokensIn(free_blocks, w.hello) - w.taken_tokens),
          .tokens_per_s = w.status.tokens_per_s,
          .matched_tokens = 0};
}

template <typename Counts>
std::map<WorkerDirectory::ReachKey, int32_t> WorkerDirectory::ReachOf(Counts counts) const {
  struct Longest {
    uint64_t group = 0;
    int32_t prefill = 0;
    int32_t decode = 0;
  };
  std::map<uint64_t, Longest> pairs;
  for (int32_t i = 0; i < static_cast<int32_t>(workers_.size()); ++i) {
    if (!counts(i)) continue;
    const Worker& w = workers_[i];
    Longest& longest = pairs[w.pair];
    longest.group = w.group;
    int32_t& side = w.role == Role::kPrefill ? longest.prefill : longest.decode;
    side = std::max(side, w.hello.max_model_len);
  }
  std::map<ReachKey, int32_t> reach;
  for (const auto& [pair_id, longest] : pairs) {
    for (const uint64_t key : {longest.group, uint64_t{0}}) {
      int32_t& alone = reach[{key, false}];
      alone = std::max(alone, longest.prefill);
      int32_t& pair = reach[{key, true}];
      pair = std::max(pair, std::min(longest.prefill, longest.decode));
    }
  }
  return reach;
}

void WorkerDirectory::UpdateReach(Time now) {
  SetAll(ReachOf([this](int32_t i) { return Usable(i); }), now, reach_);
  UpdateAlone(now);
}

void WorkerDirectory::UpdateAlone(Time now) {
  std::set<uint64_t> without;
  for (const Worker& w : workers_) {
    if (w.known) without.insert(w.pair);
  }
  for (int32_t i = 0; i < static_cast<int32_t>(workers_.size()); ++i) {
    if (workers_[i].role == Role::kPrefill && Usable(i)) without.erase(workers_[i].pair);
  }
  std::erase_if(no_prefill_since_, [&](const auto& item) { return !without.contains(item.first); });
  for (uint64_t pair : without) no_prefill_since_.try_emplace(pair, now);
  std::map<ReachKey, int32_t> reach;
  for (int32_t i = 0; i < static_cast<int32_t>(workers_.size()); ++i) {
    if (AloneFrom(i) == kNever) continue;
    const HelloInfo& hello = workers_[i].hello;
    for (const uint64_t group : {workers_[i].group, uint64_t{0}}) {
      for (const bool scores : {false, true}) {
        if (scores && !hello.scores_prompts) continue;
        int32_t& longest = reach[{group, scores}];
        longest = std::max(longest, hello.max_model_len);
      }
    }
  }
  SetAll(reach, now, alone_reach_);
}

Time WorkerDirectory::AloneFrom(int32_t worker) const {
  const Worker& w = workers_[worker];
  if (w.role != Role::kDecode || !w.hello.computes_prompts || !Usable(worker)) return kNever;
  const auto since = no_prefill_since_.find(w.pair);
  return since == no_prefill_since_.end() ? kNever : since->second + alone_after_;
}

std::vector<std::string> WorkerDirectory::WhyUnpaired() const {
  std::set<uint64_t> pairs[2];  // Of prefill and of decode workers.
  const auto of = [](Role role) { return role == Role::kPrefill ? 0 : 1; };
  for (int32_t i = 0; i < static_cast<int32_t>(workers_.size()); ++i) {
    if (Usable(i)) pairs[of(workers_[i].role)].insert(workers_[i].pair);
  }
  std::vector<std::string> why(workers_.size());
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& w = workers_[i];
    if (!Usable(static_cast<int32_t>(i)) || pairs[1 - of(w.role)].contains(w.pair)) continue;
    for (size_t k = 0; k < workers_.size() && why[i].empty(); ++k) {
      const Worker& other = workers_[k];
      const bool may_fit = Usable(static_cast<int32_t>(k)) && other.role != w.role;
      if (!may_fit || other.group != w.group) continue;
      why[i] = absl::StrCat("no K/V goes between it and ", other.address, ": ",
                            w.role == Role::kPrefill ? WhyNoPair(w.hello, other.hello)
                                                     : WhyNoPair(other.hello, w.hello));
    }
  }
  return why;
}

bool WorkerDirectory::HasPair(const RouteNeed& need) const {
  const auto it = reach_.find({need.group, need.needs_decode});
  return it != reach_.end() && it->second.reach() >= need.total_tokens;
}

Time WorkerDirectory::AloneAt(const RouteNeed& need) const {
  Time at = kNever;
  for (int32_t i = 0; i < static_cast<int32_t>(workers_.size()); ++i) {
    const Worker& w = workers_[i];
    const bool takes_it = w.hello.max_model_len >= need.total_tokens && Gives(w.hello, need) &&
                          (need.group == 0 || w.group == need.group);
    if (takes_it) at = std::min(at, AloneFrom(i));
  }
  return at;
}

bool WorkerDirectory::IsAnyAlone(Time now) const {
  for (int32_t i = 0; i < static_cast<int32_t>(workers_.size()); ++i) {
    if (IsAlone(i, now)) return true;
  }
  return false;
}

bool WorkerDirectory::MayScore(int32_t worker) const {
  const Worker& w = workers_[worker];
  return w.hello.scores_prompts || !no_prefill_since_.contains(w.pair);
}

bool WorkerDirectory::IsIdle(int32_t worker, int32_t prompt_tokens) const {
  return workers_[worker].status.queued_tokens == 0 &&
         CandidateOf(worker).free_tokens >= prompt_tokens;
}

absl::Status WorkerDirectory::Fits(const RouteNeed& need) const {
  if (HasPair(need)) return absl::OkStatus();
  const ReachKey key{need.group, need.needs_decode};
  const auto usable = reach_.find(key);
  const int32_t now = usable == reach_.end() ? 0 : usable->second.reach();
  const auto known = ReachOf([this](int32_t i) { return workers_[i].known; });
  const auto ever = known.find(key);
  const int32_t longest = ever == known.end() ? 0 : ever->second;
  if (longest > 0 && need.total_tokens > longest) {
    return absl::InvalidArgumentError(
        absl::StrFormat("prompt and max_tokens make %d tokens; the largest that fits is %d",
                        need.total_tokens, longest));
  }
  if (now > 0) {
    return absl::UnavailableError(
        absl::StrFormat("no worker that is connected now holds %d tokens, only up to %d; workers "
                        "of up to %d are known",
                        need.total_tokens, now, longest));
  }
  const auto prefill = reach_.find({need.group, false});
  if (need.wants_scores && (prefill == reach_.end() || prefill->second.reach() == 0)) {
    return absl::UnavailableError(
        "prompt log probabilities need a prefill worker, or a decode worker that computes them "
        "itself: none is connected, or those are of an earlier release");
  }
  return absl::UnavailableError(need.needs_decode
                                    ? "no prefill and decode worker that fit together are connected"
                                    : "no prefill worker is connected");
}

Time WorkerDirectory::LostAt(const RouteNeed& need) const {
  const auto pair = reach_.find({need.group, need.needs_decode});
  const Time at = pair == reach_.end() ? Time{} : pair->second.LostAt(need.total_tokens);
  const auto alone = alone_reach_.find({need.group, need.wants_scores});
  if (alone == alone_reach_.end()) return at;
  return std::max(at, alone->second.LostAt(need.total_tokens));
}

RoutingSnapshot WorkerDirectory::Snapshot(const RouteNeed& need, int64_t max_pending_tokens,
                                          Time now) const {
  RoutingSnapshot snapshot{.prompt_tokens = need.prompt_tokens,
                           .needs_decode = need.needs_decode,
                           .alone = need.alone};
  for (int32_t i = 0; i < static_cast<int32_t>(workers_.size()); ++i) {
    const Worker& w = workers_[i];
    if (need.group != 0 && w.group != need.group) continue;
    if (!MayAsk(i, now) || w.hello.max_model_len < need.total_tokens) continue;
    if (need.alone && !(IsAlone(i, now) && Gives(w.hello, need))) continue;
    const Candidate candidate = CandidateOf(i);
    if (w.role == Role::kPrefill) {
      const int64_t half_second = candidate.tokens_per_s / 2;
      const int64_t most = candidate.tokens_per_s > 0 ? std::min(max_pending_tokens, half_second)
                                                      : max_pending_tokens;
      const bool has_room = w.pending_tokens == 0 ||
                            candidate.pending_tokens + need.prompt_tokens <= most;
      if (has_room) snapshot.prefill.push_back(candidate);
    } else if (w.role == Role::kDecode && need.needs_decode) {
      snapshot.decode.push_back(candidate);
    }
  }
  return snapshot;
}

Time WorkerDirectory::NextRetry(Time now) const {
  Time next = kNever;
  for (const Worker& w : workers_) {
    if (w.up && !w.hung && w.skip_until > now) next = std::min(next, w.skip_until);
  }
  return next;
}

}  // namespace baton
