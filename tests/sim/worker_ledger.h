#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/engine.h"
#include "common/engine/sequence.h"
#include "common/kv_cache/block_allocator.h"
#include "common/model/model_runner.h"
#include "tests/sim/any_mail.h"

namespace baton::sim {

// The books of one worker process: in which order it serves its calls and what it computes for
// them, against what ARCHITECTURE.md promises (sections 5, 6 and 8). Told by what crosses the
// worker's boundary: mail, answers, the runner's steps, the allocators and the audit. Keeps each
// call's state by itself.
//
// Order is age. At a decode worker:
// - who waits for blocks gets them oldest first, and while somebody waits nothing is reserved;
// - who lacks a block takes it from the youngest younger reservation, one at a time, else from the
//   youngest that runs; the oldest goes on. Alone, it takes it from any reservation, then from the
//   youngest that is being written;
// - who becomes long goes on in its place by age, with other blocks;
// - a reservation leaves a free block for each that runs, and is refused only for want of blocks.
// At a prefill worker: calls are admitted strictly by age, as soon as the oldest fits.
// In a step of either: prefills by age, each with all its tokens before the next; at least one row
// for them; decodes in turn. A follow-up passes nobody over that was there when it started. A
// prompt leaves its last token only to finish with others for the same decode worker, and not for
// more than kMostWaited times its own tokens.
//
// Cost: what a call has computed is computed again only after a preemption that found no room in
// host memory or a move that failed, or once as it becomes long, and not where its blocks are still
// cached. What a step copies from another's block is not computed.
class WorkerLedger {
 public:
  struct Options {
    Role role = Role::kPrefill;
    int32_t max_batch = 0;
    int32_t max_waiting = 0;
    int32_t chunk_tokens = 0;
    bool finish_together = false;  // Prompts with one token left may wait.
    int32_t original_len = 0;      // As ModelInfo's.
  };
  // Over all calls of the process, in tokens.
  struct Totals {
    int64_t computed = 0;
    int64_t recomputed = 0;
    int64_t may_recompute = 0;  // Held at preemptions without a swap, or lost with a move.
    int64_t swapped_out = 0;
    int64_t swapped_back = 0;
    int64_t found_cached = 0;  // Of swapped ones: what a prefix held as well.
    int64_t copied = 0;        // From another's block in place of being computed.
    int64_t unjudged = 0;      // Preemptions of sequences whose length is not known from outside.
    // Calls that ended while their blocks were copied to the host, and from it.
    int64_t ended_moving_out = 0;
    int64_t ended_moving_in = 0;
    int64_t resumed_amid_step = 0;
    int64_t ended_without_row = 0;  // Of the latter: nothing else of the step held their blocks.
    Totals& operator+=(const Totals& other);
  };
  // Counters of the node.
  struct Counted {
    int64_t preemptions = 0;
    int64_t swaps = 0;
    int64_t revoked = 0;
  };

  // `host` is null without swapping.
  WorkerLedger(const Options& options, const KvLayout& layout, const BlockAllocator& device,
               const BlockAllocator* host)
      : options_(options), layout_(layout), device_(device), host_(host) {}

  // Before the node takes it.
  void OnMail(const AnyWorkerMail& mail, Time now);
  // As the node says it.
  void OnSend(CallId call, const WorkerEvent& event);
  void OnClose(CallId call, const absl::Status& status);
  // The plan lives until the step has ended.
  void OnStepStart(const StepPlan& plan) {
    follows_now_ = IsFollowUp(plan);
    (follows_now_ ? follow_up_ : started_) = &plan;
  }
  // After each event; empty, or the rule that was broken. `is_late`: the node's Step is still due.
  std::string Check(const WorkerAudit& audit, const Counted& counted, bool is_late, Time now);
  const Totals& totals() const { return totals_; }
  // Whose blocks the step in flight copies to or from the host, or for another or from another's.
  std::vector<SequenceId> Moving() const;

 private:
  enum class State : uint8_t { kOpened, kReserved, kReceiving, kUnbound, kRunning, kSent };
  // One call that was opened and has not ended.
  struct Account {
    State state = State::kOpened;
    SequenceId sequence;
    Attempt attempt = 0;
    AgeKey age;
    int32_t num_tokens = 0;  // The prompt, and what was emitted.
    int32_t cached = 0;      // As the reservation told.
    TicketId ticket;
    bool may_compute = false;  // It was told to compute its prompt itself.
    bool joins = false;        // No handoff: all full blocks before its last token are here.
    bool returns = false;      // Likewise, of an answer that was computed here before.
    bool own = false;          // No handoff: its prompt is computed here, and no token came yet.
    bool scores = false;       // Its prompt's tokens are scored, which is found in no cache.
    int32_t had = 0;           // Tokens of the call of its sequence whose K/V it goes on with.
    int32_t told = 0;          // Tokens of it that are said again if need be.
    bool transfer_open = false;
    bool has_blocks = false;  // While running: else it waits for all of them.
    // Tokens whose K/V it holds; none: not known before its next row, but not fewer than `least`.
    std::optional<int32_t> computed;
    int32_t least = 0;
    int32_t most = 0;                      // That it ever held.
    std::optional<int32_t> first_context;  // Where its first row began.
    std::vector<BlockId> host_blocks;      // While it waits: its copy.
    int32_t host_tokens = 0;
    // Its full entries, from the start, as its last row had them: a block of each group.
    std::vector<std::vector<BlockRef>> sealed;
    const SamplingContext* rows_as = nullptr;  // Rows of this call share it.
    std::set<CallId> served;                   // While it was left out of steps.
    Incarnation finishes_with = 0;             // Prompts for this decode worker; 0 = alone.
    int64_t waited = 0;                        // Tokens of steps that left out its last one.
    bool outgrown = false;  // Has become long, in this event: its blocks are others.
    bool is_reservation() const { return state == State::kReserved || state == State::kUnbound; }
    bool runs() const { return state == State::kRunning && has_blocks; }
    bool waits() const { return state == State::kRunning && !has_blocks; }
  };
  struct Row {
    CallId call = 0;
    int32_t num_tokens = 0;
    bool is_copied = false;
    bool is_source = false;  // Of copies.
  };
  // A call that ended with its session, and may be gone on with.
  struct Parked {
    CallId call = 0;
    int32_t num_tokens = 0;
    int32_t told = 0;
    Time until{};
    bool must_stay = false;  // Unless others need its blocks.
    bool is_here = false;    // By the last audit.
  };
  // The step in flight.
  struct InFlight {
    uint64_t step = 0;
    std::vector<Row> rows;
    std::vector<CallId> moved_out;
    std::vector<CallId> moved_in;
    size_t num_arriving = 0;  // Blocks that are copied from the host.
  };
  struct Revocation {
    AgeKey age;
    State state;
  };
  using Accounts = std::map<CallId, Account>;

  void Violate(std::string what);
  template <typename Predicate>
  bool Any(Predicate predicate) const {
    for (const auto& [call, account] : accounts_) {
      if (predicate(account)) return true;
    }
    return false;
  }
  template <typename Request>
  Account& Open(CallId call, const Request& request, Time now);
  int32_t CountRunning() const;
  void OnTransfer(const TransferEvent& event);
  void OnRebind(const RebindRequest& request);
  void OnStepDone(const StepDone& done);
  void NoteEnd(CallId call);
  void NoteSessionEnd(CallId call, Time now);
  bool Resumes(Account& account);
  void OnTokens(Account& account, const TokensEvent& tokens);
  void Outgrow(Account& account);
  void CheckTaking();
  void OnReserved(Account& account, const ReservedEvent& reserved);
  void CheckRefusal(const Account& account);
  void CheckRevocation(const Account& account);

  // Check, in worker_ledger_check.cc.
  void Compare(const WorkerAudit& audit, bool is_late);
  void CompareOne(CallId call, Account& account, const HeldCall& held);
  void ComparePark(const WorkerAudit& audit, Time now);
  void CheckAdmission(bool is_late);
  void CheckGivingWay(const Counted& counted);
  void CheckOutgrown();
  void CheckNeedy();
  void CheckComingBack();
  void NotePreemptions();
  void NoteMovesOut();
  void NoteComeBack(CallId call);
  void CheckStillCached(const Account& account);
  void CheckHost();
  void CheckHeld(const WorkerAudit& audit);
  CallId CallOf(const StepPlan& plan, const StepRow& row);
  bool IsCopied(const StepRow& row) const;
  bool IsSource(const StepRow& row) const;
  bool GetsCopies(CallId call) const;
  void NoteRow(CallId call, const StepRow& row);
  CallId CallOfFollowing(const StepRow& row) const;
  void NoteFollowUp();
  void CheckFollowUp();
  void NoteTable(Account& account, const StepRow& row);
  void CheckRows();
  void CheckTurns(const std::set<CallId>& decodes);
  void CheckFinishing(const std::set<CallId>& decodes);
  int32_t BlocksOf(int32_t num_tokens) const { return BlocksOf(num_tokens, num_tokens); }
  // With room for so many more than are computed.
  int32_t BlocksOf(int32_t num_tokens, int32_t computed) const {
    int32_t blocks = 0;
    for (const KvLayerGroup& group : layout_.groups) {
      blocks +=
          device_.BlocksFor(num_tokens) - TokensLeftOut(group, computed) / device_.block_size();
    }
    return blocks;
  }

  Options options_;
  const KvLayout& layout_;
  const BlockAllocator& device_;
  const BlockAllocator* host_;
  Accounts accounts_;
  std::map<SequenceId, Parked> parked_;
  bool draining_ = false;
  InFlight in_flight_;
  bool host_is_known_ = true;
  std::optional<TicketId> revoking_;  // Of a revoked reservation whose blocks are coming back.
  bool was_revoking_ = false;         // Before this event.
  Counted last_;
  Totals totals_;
  const StepPlan* follow_up_ = nullptr;  // Of the step in flight.
  // In this event.
  bool opened_ = false;  // A call.
  const StepPlan* started_ = nullptr;
  const StepPlan* promoted_ = nullptr;  // A follow-up whose turn it is.
  bool follows_now_ = false;            // One started.
  std::vector<Revocation> revoked_;
  std::vector<CallId> preempted_;
  std::vector<CallId> outgrown_;  // That have become long and have no blocks.
  std::vector<CallId> come_back_;
  std::vector<CallId> admitted_;
  int32_t ran_before_ = 0;  // When it looked for something to compute.

  std::string violation_;
};

}  // namespace baton::sim
