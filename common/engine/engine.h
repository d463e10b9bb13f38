#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/engine/finish_gate.h"
#include "common/engine/sequence.h"
#include "common/engine/step_budget.h"
#include "common/engine/swap_space.h"
#include "common/kv_cache/block_allocator.h"
#include "common/model/model_runner.h"

namespace baton {

struct EngineOptions {
  int32_t chunk_tokens = 2048;        // Cap of one step's tokens over all rows.
  int32_t max_batch_sequences = 256;  // Cap of one step's rows.
  Duration step_budget = std::chrono::milliseconds(250);  // Own prompts: a quarter of it.
  // Blocks in host memory for preempted sequences; 0 = they are computed again. Worth it when
  // copying K/V is faster than computing it: long contexts, large models.
  int32_t swap_blocks = 0;
  int32_t finish_together = 0;  // As FinishGate; 0, 1 = nobody waits.
  // At most so many, 1 or 2. The second starts so long before the first is predicted to end: who
  // comes in that time waits for both.
  int32_t steps_in_flight = 1;
  Duration follow_up_lead = std::chrono::milliseconds(2);
};

// What a step did to one sequence.
struct SequenceProgress {
  CallId call = 0;
  std::optional<TokenOutput> output;           // With its finish reason.
  std::vector<PromptLogprob> prompt_logprobs;  // Of this step's tokens.
  // Nothing more is computed for it: finished, failed or removed.
  bool ended = false;
  // The engine lets go of one that has ended: at once, or when the last step in flight that
  // computes it has ended.
  std::unique_ptr<Sequence> released;
  absl::Status status;  // Why it failed; nothing was produced then.
};

// The scheduler that both workers share: builds mixed batches of decode rows and prefill chunks,
// grows tables block by block, preempts the youngest when blocks run out: its K/V is swapped out to
// host memory while there is room, else computed again. After each step the blocks that a model's
// sliding window has passed go back. A step that computes own prompts (Sequence::own_prompt) beside
// rows that decode is predicted to last a quarter of its budget, so that answers do not wait for
// them. One thread (the node's).
//
// Choices of one prompt share its full blocks, which nobody writes; the block behind them a further
// choice copies, in its first step, from one that goes on there (shared_ends.cc).
//
// A sequence whose next token makes it long (ModelInfo::original_len) is computed again from its
// start, as transformers does with Phi-3, in other blocks; the younger give way for what it lacks
// (long_sequences.cc). So K/V is a function of the tokens alone, whoever computes it.
//
// While a step runs a second one may start behind it, its follow-up: of each sequence the token
// after the one that the first samples (StepRow::follows). Only when the first has one token of
// each sequence that is here, so that nobody is passed over; it takes blocks that are free, and
// never another's. A sequence that ends in the first is DRAINING until its row of the second, which
// is wasted, has ended too.
class Engine {
 public:
  // Asked when a sequence of age `needy` lacks blocks: true if some come back without preempting
  // anyone, because a reservation was revoked: at once, or the sequence sits out the step. `alone`:
  // nobody else runs, so nobody can be preempted for it.
  using Reclaim = std::function<bool(const AgeKey& needy, bool alone)>;

  Engine(const EngineOptions& options, const ModelInfo& model, BlockAllocator& allocator,
         ModelRunner& runner);

  void set_reclaim(Reclaim reclaim) { reclaim_ = std::move(reclaim); }

  // Whether K/V of a sequence of so many tokens is that of long ones (ModelInfo::original_len).
  bool IsLong(int64_t num_tokens) const { return original_len_ > 0 && num_tokens > original_len_; }

  // Takes a sequence whose blocks hold num_computed tokens. A prefill's blocks must cover all its
  // tokens; a decode's table grows here. One without any block waits for all of them, like a
  // preempted one.
  void Add(std::unique_ptr<Sequence> sequence);

  // Takes a sequence out. Null if a step in flight computes it: its table is DRAINING and it
  // comes back from OnStepDone; or if it is not here.
  std::unique_ptr<Sequence> Remove(CallId call);

  // All but the last token of a sequence that is here is computed, and its blocks hold it.
  bool Decodes(CallId call) const;

  // One that was removed amid a step in flight which has not ended.
  const Sequence& removed(CallId call) const { return *removed_.at(call); }
  // Its blocks, for a sequence to add that says so (Sequence::in_place_of). None starts before the
  // steps that touch them have ended. If it is removed before, they go back to where they were, and
  // it comes without any.
  BlockTable TakeOver(CallId removed);

  // From now on the sequence, if it is here, waits for no other to finish.
  void FinishAlone(CallId call);

  // Builds and starts a step if none is in flight and anything can be computed, or the follow-up of
  // the one that is once it is due.
  void StartStep(Time now);

  // When the follow-up is due; kNever: none is.
  Time follow_up_due() const { return follow_up_due_; }

  // Ends the oldest step in flight. In the order of the plan's rows.
  std::vector<SequenceProgress> OnStepDone(StepDone done, Time now);

  // The blocks of a sequence that is here, also of one that waits for the step's end; else null.
  const BlockTable* FindTable(CallId call) const;
  // Of swapped-out sequences, until the step that copies them has ended.
  std::vector<const BlockTable*> LeavingTables() const;
  // Blocks in host memory that neither a preempted sequence nor a move of this step holds.
  int32_t CountUnownedHostBlocks() const;
  // The pool in host memory, or null.
  const BlockAllocator* host_pool() const { return swap_ ? &swap_->host() : nullptr; }

  // The step that runs, the oldest in flight, or null.
  const StepPlan* step_in_flight() const {
    return in_flight_.empty() ? nullptr : in_flight_.front().plan.get();
  }
  // The calls of its rows, in row order.
  const std::vector<CallId>& step_calls() const {
    BATON_CHECK(!in_flight_.empty());
    return in_flight_.front().calls;
  }
  size_t num_running() const { return running_.size(); }
  size_t num_preempted() const { return preempted_.size(); }
  // Whether an older one waits for blocks.
  bool WaitsBefore(const AgeKey& age) const {
    return !preempted_.empty() && preempted_.begin()->first < age;
  }
  int64_t num_preemptions() const { return num_preemptions_; }
  int64_t num_swaps() const { return num_swaps_; }  // Of the preemptions.
  int64_t num_outgrown() const { return num_outgrown_; }
  // Of prompts' further choices, in place of being computed once more.
  int64_t num_copied_tokens() const { return num_copied_tokens_; }
  // Tokens that wait to be computed, over all sequences.
  int64_t queued_tokens() const;
  // As StepBudget::rate.
  double tokens_per_s() const { return budget_.rate(); }
  // The same of own prompts: what is left of those that arrived until `latest`, their rate beside
  // what else ran, as StepBudget::least_rate, and how many the next step may compute beside it.
  int64_t own_prompt_tokens(Time latest) const;
  double own_prompt_tokens_per_s() const { return own_budget_.least_rate(); }
  int32_t own_prompt_step_tokens() const { return own_budget_.tokens(); }

 private:
  // A step that the runner has.
  struct InFlight {
    std::shared_ptr<const StepPlan> plan;
    std::vector<CallId> calls;  // Of its rows, in row order.
    int32_t own_tokens = 0;     // Of own prompts.
    Time began{};               // To run.
  };

  // All of it is rows of one token that sample: what a follow-up can follow.
  static bool IsDecode(const StepPlan& plan);
  bool IsInFlight(CallId call) const;
  // Undoes TakeOver.
  void GiveBack(Sequence& sequence);
  void StartFirst(Time now);
  void StartFollowUp();
  bool MayFollow(const InFlight& first) const;
  bool EndsWithNext(const Sequence& sequence) const;
  void Launch(std::shared_ptr<StepPlan> plan, InFlight step);
  void PredictFollowUp(Time now);
  void Record(const InFlight& step, bool is_ok, Duration took);
  void ResumePreempted();
  bool EnsureBlocks(Sequence& sequence);
  bool ReclaimNow(const AgeKey& needy, bool alone);
  void Preempt(SequencesByAge::iterator victim);
  // It has become long, and its K/V is still that of a short one.
  bool Outgrows(const Sequence& sequence) const {
    return sequence.is_long != IsLong(sequence.num_tokens());
  }
  void BecomeLong(Sequence& sequence);
  // All that its table lacks, or what there is of that.
  bool GrowToCover(Sequence& sequence);
  bool IsCovered(const Sequence& sequence) const {
    return sequence.blocks.size() >= allocator_.BlocksFor(sequence.num_tokens());
  }
  // It became long, and waits for blocks in its place.
  bool LacksBlocks(const Sequence& sequence) const {
    return sequence.is_long && sequence.num_remaining() > 1 && !IsCovered(sequence);
  }
  // A sequence that became long and is older waits for blocks.
  bool OlderOneLacks(const AgeKey& age) const;
  // Those that became long take what they lack, oldest first.
  void CoverOutgrown();
  bool TakeBlocks(Sequence& sequence);
  // Gives back the blocks that no later query of the sequence sees.
  void ReleasePassed(Sequence& sequence);
  void VoidMoves();
  // What the sequence lacks but for its last token, if a sequence of this step has it in one block:
  // the step copies that. Whoever it is from holds it until the step has ended, as its row does.
  bool TakeCopies(Sequence& sequence, const std::vector<Sequence*>& decodes, StepPlan* plan);
  std::vector<Sequence*> PickDecodes(int32_t budget, const FinishGate::Calls& waiting);
  StepRow MakeRow(const Sequence& sequence, int32_t num_tokens) const;
  StepRow MakeFollowing(const Sequence& sequence, int32_t row) const;
  SequenceProgress ApplyRow(const StepRow& row, CallId call, RowResult result);
  void LetGo(SequencesByAge::iterator it, SequenceProgress* progress);
  void ReleaseRemoved(CallId call, std::vector<SequenceProgress>* all);

  EngineOptions options_;
  std::vector<int32_t> eos_token_ids_;
  int32_t original_len_;
  BlockAllocator& allocator_;
  ModelRunner& runner_;
  Reclaim reclaim_;
  FinishGate finish_gate_;
  StepBudget budget_;
  StepBudget own_budget_;  // Of own prompts, a quarter.

  std::optional<SwapSpace> swap_;  // Outlives the sequences, which may hold its blocks.
  SequencesByAge running_;         // Oldest first.
  SequencesByAge preempted_;       // Hold no device blocks.
  absl::flat_hash_map<CallId, AgeKey> keys_;
  std::deque<InFlight> in_flight_;  // Oldest first; the second is the follow-up of the first.
  absl::flat_hash_map<CallId, std::unique_ptr<Sequence>> removed_;  // Of steps in flight.
  Duration last_decode_{};  // How long a step of one token each took of late.
  Time follow_up_due_ = kNever;
  uint64_t next_step_ = 1;
  AgeKey last_decoded_;  // Decode rows rotate when they exceed the budget.
  int64_t num_preemptions_ = 0;
  int64_t num_swaps_ = 0;
  int64_t num_outgrown_ = 0;
  int64_t num_copied_tokens_ = 0;
};

}  // namespace baton
