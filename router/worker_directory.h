#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/node/message.h"
#include "router/reach_history.h"
#include "router/routing/routing_policy.h"
#include "router/sequence.h"

namespace baton {

// The router's knowledge of its workers: who is up, who pairs with whom, how much this router has
// given each. Workers come (List) and go (Forget); an index names one after the other. One thread
// (the node's).
class WorkerDirectory {
 public:
  struct Worker {
    Role role = Role::kPrefill;  // It was listed as one.
    std::string address;         // Tests may have none.
    bool listed = true;          // The index names a worker.
    bool is_alias = false;       // The same process is up under another index, which counts.
    bool up = false;
    bool known = false;                        // It has been up; `hello` says what it is.
    std::string reason = "not connected yet";  // Why it cannot be used, if so.
    bool is_gone = false;                      // Nobody listens there.
    HelloInfo hello;
    bool tells_kv_tls = false;  // Else `hello` has what is likely (FitPairs).
    WorkerStatus status;
    uint64_t group = 0, pair = 0;  // As in Candidate.
    // Of this router alone, as in Candidate. This and num_sides outlive the worker: a side that was
    // chosen and not opened yet may name the index until it learns that the worker is gone.
    int64_t pending_tokens = 0;
    int64_t taken_tokens = 0;    // Of those, since its last status.
    int64_t others_tokens = 0;   // As in Candidate, of other routers, by its last status.
    int32_t num_sides = 0;       // Of this router, there now.
    Time skip_until{};           // It refused for now.
    Time last_progress{};        // Its progress counter moved.
    Time stands_since{};         // It computes, and the counter has not moved since then.
    Time last_status{};          // It was heard of.
    int64_t connection = 0;      // To it, by a number of its own; 0 before the first.
    Time last_token{};           // As in WorkerView.
    Time last_prompt{};          // Likewise.
    bool hung = false;           // Fenced: see HungAt.
  };

  // `hang_limit` is T_hang.
  WorkerDirectory(const std::vector<Role>& roles, Duration hang_limit, Duration alone_after);

  // The index, new or free, names a worker from now on.
  void List(int32_t worker, Role role, std::string address);
  // It names none. No call is open there.
  void Forget(int32_t worker, Time now);

  // Returns true when the incarnation is new: what was cached there is gone.
  bool OnUp(int32_t worker, const HelloInfo& hello, Time now);
  void OnStatus(int32_t worker, const WorkerStatus& status, Time now);
  // `is_gone`: nobody listens there any more.
  void OnDown(int32_t worker, const std::string& reason, Time now, bool is_gone = false);
  // The worker refused, or was lost: not asked again until its next status or `until`.
  void Skip(int32_t worker, Time until) { workers_[worker].skip_until = until; }

  // A side of a sequence goes to the worker, which counts so many tokens for it until Release.
  void Take(SequenceState::Side& side, int32_t worker, int64_t tokens);
  void Release(SequenceState::Side& side);  // Nothing is done the second time.
  // Tokens that its decode worker computed, if it is still that process, have come. The first of
  // them proves the prefill worker and the handoff too, or that it computes prompts itself.
  void NoteTokens(const SequenceState& sequence, std::span<const TokenOutput> outputs, Time now);

  Worker& at(int32_t worker) {
    BATON_CHECK(worker >= 0 && worker < static_cast<int32_t>(workers_.size()));
    return workers_[worker];
  }
  const std::vector<Worker>& workers() const { return workers_; }
  bool Usable(int32_t worker) const {
    const Worker& w = workers_[worker];
    return w.up && !w.hung && !w.is_alias && !w.status.draining;
  }
  // Usable, and it has not just refused.
  bool MayAsk(int32_t worker, Time now) const {
    return Usable(worker) && workers_[worker].skip_until <= now;
  }
  // That incarnation runs there, as far as is known.
  bool IsUp(int32_t worker, Incarnation incarnation) const {
    BATON_CHECK(worker >= 0 && worker < static_cast<int32_t>(workers_.size()));
    const Worker& w = workers_[worker];
    return w.up && !w.hung && w.hello.incarnation == incarnation;
  }

  // When the worker counts as hung unless something is heard of it before: work runs and its
  // progress counter stands for T_hang or 20 times its longest layer of late, 8 times T_hang at
  // most and for the first layer; or no status comes for T_hang. kNever if it is down or hung
  // already.
  Time HungAt(int32_t worker) const;
  // The router looks at its workers. More than a sixth of T_hang after it last did, its own thread
  // stood still.
  void OnLook(Time now);
  // When the first of them may be fenced: not before the router was awake for long enough to read
  // its mail. So that this does not make it late, it is to look a little before.
  Time FenceAt() const;
  // The router itself stood still: what it has not heard meanwhile says nothing.
  void Forgive(Time now);
  // Fences it until it moves again. The router's own calls there are the caller's to cancel.
  void MarkHung(int32_t worker, Time now);

  // OK if some usable pair could ever take it. UNAVAILABLE: none can now, but workers that are gone
  // for the moment could, or nothing is known. INVALID_ARGUMENT: too long for all that have ever
  // said hello, with the largest that fits.
  absl::Status Fits(const RouteNeed& need) const;

  // Since when no usable pair could take it, nor a decode worker without one, whoever looked
  // meanwhile: kNever if one can, the epoch if none ever could.
  Time LostAt(const RouteNeed& need) const;

  // Some usable pair takes it.
  bool HasPair(const RouteNeed& need) const;
  // Where no usable pair takes it: when the first decode worker takes it without a prefill worker.
  // kNever: none will.
  Time AloneAt(const RouteNeed& need) const;
  // It computes prompts itself.
  bool IsAlone(int32_t worker, Time now) const { return AloneFrom(worker) <= now; }
  bool IsAnyAlone(Time now) const;
  // Prompts of a decode worker's answers can be scored: by a prefill worker that pairs with it, or
  // by itself.
  bool MayScore(int32_t worker) const;
  // A decode worker without a prompt to compute, and with room for one of so many tokens.
  bool IsIdle(int32_t worker, int32_t prompt_tokens) const;

  // By worker, of usable ones that pair with none: what keeps another, that computes the same bits,
  // from pairing with it; empty if there is none.
  std::vector<std::string> WhyUnpaired() const;

  // The worker as a candidate, whatever its state.
  Candidate CandidateOf(int32_t worker) const;

  // The candidates that may take it now, without matched_tokens. A prefill worker takes at most
  // `max_pending_tokens` ahead, of all routers, or what it computes in half a second: what waits
  // there waits in no fair order. But always one prompt of each.
  RoutingSnapshot Snapshot(const RouteNeed& need, int64_t max_pending_tokens, Time now) const;

  // The earliest moment a skipped worker may be asked again; kNever if none is skipped.
  Time NextRetry(Time now) const;

 private:
  // Group (0 = any), and RouteNeed::needs_decode or what is said.
  using ReachKey = std::pair<uint64_t, bool>;

  // What others than this router gave it, by its status.
  static int64_t OthersTokens(const Worker& worker);

  // The longest sequence for each kind of need, by the workers that `counts` names.
  template <typename Counts>
  std::map<ReachKey, int32_t> ReachOf(Counts counts) const;
  // Of several up under one incarnation one counts: the first that said hello.
  bool IsAlias(int32_t worker) const;
  void FitPairs();
  void PromoteAliasOf(Incarnation incarnation);
  // Since when, or from when on, a usable decode worker computes prompts itself; kNever: a prefill
  // worker that it pairs with is usable, or it cannot.
  Time AloneFrom(int32_t worker) const;
  // After each change of who is usable.
  void UpdateReach(Time now);
  void UpdateAlone(Time now);

  const Duration hang_limit_;
  const Duration alone_after_;
  std::vector<Worker> workers_;
  int64_t num_connections_ = 0;
  Time last_look_ = kNever;  // kNever: there was none.
  Time awake_since_{};       // No two looks lay far apart since then.
  std::map<ReachKey, ReachHistory> reach_;  // Of the usable workers.
  // By Worker::pair, of known workers without a usable prefill worker: since when, whatever their
  // decode workers did meanwhile.
  std::map<uint64_t, Time> no_prefill_since_;
  // By group (0 = any) and RouteNeed::wants_scores: what decode workers of such groups take, those
  // whose time is to come too.
  std::map<ReachKey, ReachHistory> alone_reach_;
};

}  // namespace baton
