#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "router/node.h"
#include "tests/sim/world.h"

namespace baton::sim {

// Which processes and links the nemesis has troubled, and until when that may show.
class FaultLog {
 public:
  // What trouble leaves behind: connections are made again, news of it is late.
  static constexpr Duration kAftermath = std::chrono::seconds(10);

  void TroubleWorker(int worker, Time until) { Extend(workers_[worker], until); }
  void TroubleRouter(int router, Time until) { Extend(routers_[router], until); }
  void TroubleLink(int router, int worker, Time until) { Extend(links_[{router, worker}], until); }
  // May `worker` have seemed lost to `router` at some moment since then?
  bool MayBeLost(int router, int worker, Time since) const;
  bool empty() const { return workers_.empty() && routers_.empty() && links_.empty(); }

 private:
  static void Extend(Time& time, Time until) { time = std::max(time, until + kAftermath); }
  template <typename Key>
  static bool Covers(const std::map<Key, Time>& times, const Key& key, Time since) {
    auto it = times.find(key);
    return it != times.end() && it->second >= since;
  }
  std::map<int, Time> workers_;
  std::map<int, Time> routers_;
  std::map<std::pair<int, int>, Time> links_;
};

// The books of one router process: what each of its sequences has spent, told by what crosses the
// router's boundary, against what justifies it, told by the same and by the log of injected faults.
// Knows nothing of the router's states but what its audit says.
class RouterLedger {
 public:
  // Over all sequences of the process.
  struct Totals {
    int64_t starts = 0;
    int64_t may_start = 0;  // Once, and after each failure and refusal.
    int64_t holds = 0;
    int64_t held_ms = 0;
    int64_t may_hold_ms = 0;  // Of so many holds, and of those that the node saw end too late.
    // Tokens that workers were asked to compute though one had been asked before, and those whose
    // KV was gone or could not be handed over.
    int64_t asked_again = 0;
    int64_t may_ask_again = 0;
    int64_t alone = 0;    // Prompts that decode workers were asked to compute from the start.
    int64_t crossed = 0;  // Answers that went on in a pair of another release.
    Totals& operator+=(const Totals& other) {
      starts += other.starts;
      may_start += other.may_start;
      holds += other.holds;
      held_ms += other.held_ms;
      may_hold_ms += other.may_hold_ms;
      asked_again += other.asked_again;
      may_ask_again += other.may_ask_again;
      alone += other.alone;
      crossed += other.crossed;
      return *this;
    }
  };
  RouterLedger(int router, const RouterNodeOptions& options, const FaultLog& faults, World& world)
      : router_(router), options_(options), faults_(faults), world_(world) {}

  // Before the node takes it.
  void OnMail(const RouterMail& mail, Time now);
  // As the node asks for it.
  void OnOpenDecode(CallId call, int32_t worker, const DecodeRequest& request, Time now);
  void OnOpenPrefill(CallId call, int32_t worker, const PrefillRequest& request);
  void OnRebind(CallId call, const RebindRequest& request, Time now);
  void OnSend(CallId call, const SendRequest& request);
  void OnCancel(CallId call);
  // The process stood still and holds what it holds from now on.
  void RestartHolds(Time now);
  // After each event: what was spent beyond what is justified; empty if nothing. `is_late`: the
  // node has not looked at the time yet.
  std::string Check(const RouterAudit& audit, const RouterView& view,
                    const RouterCounters& counters, bool is_late, Time now);
  const Totals& totals() const { return totals_; }

 private:
  struct Side {
    CallId call = 0;
    int32_t worker = -1;
    Incarnation incarnation = 0;
    int64_t connection = 0;  // Of those to that worker, the one of its call.
    bool open() const { return call != 0; }
  };
  // A loss that the node may count, once.
  struct Loss {
    int32_t worker = 0;
    int64_t connection = 0;
    Time at{};  // Of the world.
    bool gave_up = false;  // It waited for a transfer in vain: a move, however healthy it is.
  };
  using Pair = std::pair<int32_t, int32_t>;  // Prefill and decode worker, by index.
  // One sequence.
  struct Account {
    Side prefill;
    Side decode;
    int32_t next_prefill = -1;  // The worker that the reservation is for, and its process.
    Incarnation next_incarnation = 0;
    Attempt attempt = 0;
    int64_t causes = 0;  // What may have made it necessary to begin something again.
    int64_t starts = 0;  // Decode calls, Rebinds, and Prefill calls without either.
    int64_t prefills = 0;
    int64_t score_starts = 0;  // Calls after the answer, for the score alone.
    // Nobody keeps what was prefilled last: its prefill worker is lost or has let it go, or handed
    // it to a decode worker that is lost. What happens to a decode worker beside it is no reason.
    bool kv_gone = true;
    int32_t num_seen = 0;         // Tokens of the prompt and those that workers have told.
    int32_t num_asked = 0;        // That the Prefill call of this event computes.
    bool is_prefilling = false;   // As its last audit said.
    bool drops_prefill = false;   // Its Prefill call was cancelled in this event,
    bool drops_decode = false;    // or its Decode call.
    std::optional<Pair> climbed;  // A rung, in this event: for these two.
    std::optional<Incarnation> rebound_to;  // In this event; 0 = the decode worker itself.
    bool is_fresh = false;          // It began from the start, in this event.
    bool returns = false;           // It asks to go on where its answer was.
    // Its last Decode call that had brought tokens, was to bring those of verified K/V, or asked
    // for them again.
    Time lost_at = kNever;
    bool is_rebound = false;        // Another prefill worker, in this event.
    bool prefilled = false;         // The Prefill call has brought its result.
    bool recovering = false;
    bool decoding = false;        // Tokens have come since an answer was last asked for.
    Time asked_at = kNever;       // An answer is due since then.
    Time verdict_since = kNever;  // The prefill worker says that all was sent.
    Pair verdict_of;
    Attempt verdict_attempt = 0;
    Time held_since = kNever;
    Time hold_noted = kNever;            // Of the hold that goes on: when it was first seen.
    int64_t holds = 0;
    std::set<Attempt> failed;            // Each counted as a rung.
    std::map<Incarnation, Loss> losses;  // That no token has made void.
    int32_t moves = 0;                   // As told last.
    int32_t retries = 0;
    size_t num_lost = 0;
  };
  struct Failure {
    uint64_t sequence = 0;
    Attempt attempt = 0;
    Pair pair;
    bool must_climb = false;  // It is the running transfer's.
  };
  struct Cancelled {
    uint64_t counter = 0;
    bool is_decode = false;
  };

  Account* Find(CallId call);
  void Ask(Account& account, Time now);
  void Lose(Account& account, const Side& side, bool gave_up = false);
  void LoseKept(Account& account);
  void Saw(Account& account, std::span<const TokenOutput> outputs);
  void OnClosed(const CallClosed& closed, Time now);
  bool MayFail(const Account& account) const;
  void OnEvent(const WorkerEventReceived& received);
  void CheckAlone(const RouterView& view, Time now);
  void CheckPair(Incarnation prefill, Incarnation decode);
  void CheckReturn(Account& account, const DecodeRequest& request, Time now);
  void NoteFences(const RouterView& view);
  void NoteGivenUp(const RouterAudit& audit, const RouterCounters& counters, Time now);
  void NoteRungs(const RouterAudit& audit, const RouterCounters& counters, Time now);
  bool HasOther(const RouterView& view, int32_t than, int32_t stays) const;
  void CheckRung(const Account& account, const RouterView& view);
  void CheckKept(Account& account);
  void NoteAsked(uint64_t counter);
  void NoteReservation(const LiveSequence& told, Account& account);
  void CheckHold(Account& account, const LiveSequence& told, bool is_late, Time now);
  void NoteHold(Account& account, bool is_late, Time now);
  void EndHold(Account& account, Duration late, Time now);
  void CheckLosses(Account& account, const LiveSequence& told);
  void CheckAccounts(const RouterAudit& audit, const RouterView& view, bool is_late, Time now);
  void EndEvent(Account& account, const LiveSequence& told);
  void CheckBlames(const RouterAudit& audit);
  void Violate(std::string what);

  int router_;
  const RouterNodeOptions& options_;
  const FaultLog& faults_;
  World& world_;
  std::map<uint64_t, Account> accounts_;  // By counter.
  std::map<CallId, uint64_t> calls_;      // Open ones -> counter.
  std::map<Incarnation, int32_t> worker_of_;
  std::map<Incarnation, int32_t> kv_wire_of_;
  std::set<Incarnation> gone_;  // Said to be down, or another process has come in its place.
  std::map<int32_t, Incarnation> running_;
  std::map<int32_t, int64_t> connections_;  // How many there were to each worker.
  std::set<int32_t> hung_;
  // When a decode worker would not take a call, and has told nothing since.
  std::map<int32_t, Time> refused_;
  Totals totals_;
  std::set<Pair> blamed_;  // A rung was climbed for them.
  // In this event.
  std::optional<Failure> failure_;
  std::vector<Cancelled> cancelled_;
  bool has_fenced_ = false;
  std::vector<Pair> climbed_;
  uint64_t reserved_ = 0;  // Answered, and no prefill worker asked yet.
  std::set<int32_t> alone_;                   // Decode workers that were asked to compute a prompt.
  std::map<int32_t, Time> no_prefill_since_;  // By K/V frames: no healthy prefill worker has them.

  RouterCounters last_;
  std::string violation_;
};

}  // namespace baton::sim
