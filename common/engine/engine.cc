#include "common/engine/engine.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton {
namespace {

// An answer of which at most a block is to be computed before it goes on.
bool LacksOnlyItsEnd(const Sequence& sequence, int32_t block_size) {
  const bool answers = sequence.num_emitted() > 0 && !sequence.prefill_only && !sequence.own_prompt;
  return answers && sequence.num_remaining() > 1 && sequence.num_remaining() <= block_size;
}

}  // namespace

Engine::Engine(const EngineOptions& options, const ModelInfo& model, BlockAllocator& allocator,
               ModelRunner& runner)
    : options_(options),
      eos_token_ids_(model.eos_token_ids),
      original_len_(model.original_len),
      allocator_(allocator),
      runner_(runner),
      finish_gate_(options.finish_together),
      budget_(options.step_budget, options.chunk_tokens),
      own_budget_(options.step_budget / 4, options.chunk_tokens) {
  BATON_CHECK(options.chunk_tokens > 0 && options.max_batch_sequences > 0);
  BATON_CHECK(options.steps_in_flight == 1 || options.steps_in_flight == 2);
  BATON_CHECK(NumGroups(model.layout) == allocator.num_groups());
  if (options.swap_blocks > 0) swap_.emplace(options.swap_blocks, allocator);
}

void Engine::Add(std::unique_ptr<Sequence> sequence) {
  BATON_CHECK(sequence->num_remaining() > 0 && sequence->num_computed >= 0);
  BATON_CHECK(sequence->blocks.size() * allocator_.block_size() >= sequence->num_computed);
  const AgeKey key = AgeOf(*sequence);
  BATON_CHECK(keys_.emplace(sequence->call, key).second);
  if (Outgrows(*sequence)) BecomeLong(*sequence);
  FinishGate::Enter(*sequence);
  if (sequence->blocks.size() == 0) {
    preempted_.emplace(key, std::move(sequence));
    return;
  }
  ReleasePassed(*sequence);
  running_.emplace(key, std::move(sequence));
}

void Engine::ReleasePassed(Sequence& sequence) {
  allocator_.Pass(sequence.blocks, sequence.num_computed);
}

bool Engine::IsInFlight(CallId call) const {
  return std::ranges::any_of(in_flight_, [call](const InFlight& step) {
    return std::ranges::find(step.calls, call) != step.calls.end();
  });
}

std::unique_ptr<Sequence> Engine::Remove(CallId call) {
  auto it = keys_.find(call);
  if (it == keys_.end()) return nullptr;
  const AgeKey key = it->second;
  keys_.erase(it);
  SequencesByAge& home = running_.contains(key) ? running_ : preempted_;
  auto node = home.extract(key);
  BATON_CHECK(!node.empty() && node.mapped()->call == call);
  if (IsInFlight(node.mapped()->in_place_of)) {
    GiveBack(*node.mapped());
    return std::move(node.mapped());
  }
  const bool in_step = IsInFlight(call) || (swap_ && swap_->IsMovingIn(call));
  if (!in_step) return std::move(node.mapped());
  // The runner may still write its blocks: hold them until its steps have ended. The sealed ones it
  // only reads, and the sequence may be back before.
  allocator_.MarkDraining(node.mapped()->blocks, /*stays_findable=*/true);
  BATON_CHECK(removed_.emplace(call, std::move(node.mapped())).second);
  return nullptr;
}

bool Engine::Decodes(CallId call) const {
  const auto key = keys_.find(call);
  if (key == keys_.end() || (swap_ && swap_->IsMovingIn(call))) return false;
  const auto it = running_.find(key->second);
  return it != running_.end() && it->second->num_remaining() == 1 && !it->second->own_prompt;
}

BlockTable Engine::TakeOver(CallId removed) {
  BATON_CHECK(IsInFlight(removed));
  BlockTable& blocks = removed_.at(removed)->blocks;
  allocator_.Revive(blocks);
  return std::move(blocks);
}

void Engine::GiveBack(Sequence& sequence) {
  BlockTable& blocks = removed_.at(sequence.in_place_of)->blocks;
  blocks = std::move(sequence.blocks);
  allocator_.MarkDraining(blocks, /*stays_findable=*/true);
}

const BlockTable* Engine::FindTable(CallId call) const {
  if (auto it = removed_.find(call); it != removed_.end()) return &it->second->blocks;
  auto key = keys_.find(call);
  if (key == keys_.end()) return nullptr;
  auto it = running_.find(key->second);
  return it != running_.end() ? &it->second->blocks : &preempted_.at(key->second)->blocks;
}

std::vector<const BlockTable*> Engine::LeavingTables() const {
  std::vector<const BlockTable*> tables;
  if (!swap_) return tables;
  for (const BlockTable& table : swap_->leaving()) tables.push_back(&table);
  return tables;
}

int32_t Engine::CountUnownedHostBlocks() const {
  if (!swap_) return 0;
  std::vector<const BlockTable*> tables;
  for (const BlockTable& table : swap_->arriving()) tables.push_back(&table);
  for (const auto& [key, sequence] : preempted_) {
    // Without tokens in them nobody will read them.
    if (sequence->num_host_tokens > 0) tables.push_back(&sequence->host_blocks);
  }
  for (const auto& [call, sequence] : removed_) tables.push_back(&sequence->host_blocks);
  return swap_->host().CountUnowned(tables);
}

// Of prompts, and of what is computed again: an answer's newest token is no work that waits, every
// step has one of each.
int64_t Engine::queued_tokens() const {
  int64_t tokens = 0;
  for (const SequencesByAge* sequences : {&running_, &preempted_}) {
    for (const auto& [key, sequence] : *sequences) {
      const bool answers = sequence->num_emitted() > 0 && !sequence->prefill_only;
      tokens += sequence->num_remaining() - (answers ? 1 : 0);
    }
  }
  return tokens;
}

int64_t Engine::own_prompt_tokens(Time latest) const {
  int64_t tokens = 0;
  for (const SequencesByAge* home : {&running_, &preempted_}) {
    for (const auto& [key, sequence] : *home) {
      const bool counts = sequence->own_prompt && sequence->arrival <= latest;
      tokens += counts ? sequence->num_remaining() : 0;
    }
  }
  return tokens;
}

void Engine::ResumePreempted() {
  while (!preempted_.empty()) {
    auto oldest = preempted_.begin();
    if (OlderOneLacks(oldest->first)) return;  // It would be preempted straight away.
    Sequence& sequence = *oldest->second;
    while (!TakeBlocks(sequence)) {
      // Nobody overtakes: the oldest waits for enough blocks, and the younger behind it.
      if (!ReclaimNow(oldest->first, /*alone=*/running_.empty())) return;
    }
    BATON_CHECK(sequence.blocks.size() >= allocator_.BlocksFor(sequence.num_tokens()));
    running_.insert(preempted_.extract(oldest));
  }
}

// True if blocks came back at once: nothing else would tell that they have.
bool Engine::ReclaimNow(const AgeKey& needy, bool alone) {
  const int32_t available = allocator_.num_available();
  return reclaim_ && reclaim_(needy, alone) && allocator_.num_available() > available;
}

// Gives a preempted sequence blocks for all its tokens: with what is cached, or what was swapped
// out, in the leading ones.
bool Engine::TakeBlocks(Sequence& sequence) {
  BATON_CHECK(sequence.blocks.size() == 0);
  BlockTable table = allocator_.Match(sequence.salt(), sequence.tokens,
                                      sequence.OwesScores() ? 0 : sequence.num_tokens() - 1);
  const bool from_host = table.num_sealed() * allocator_.block_size() < sequence.num_host_tokens;
  if (from_host) {
    table.Release();
    // What the window had passed was not swapped out, or never here.
    allocator_.PassAs(table, sequence.host_blocks);
  }
  const int32_t missing = allocator_.BlocksFor(sequence.num_tokens()) - table.size();
  // Room for each running sequence's next entry, or the resumed one is preempted straight away.
  const int32_t headroom = static_cast<int32_t>(running_.size()) * allocator_.num_groups();
  const int32_t needed = allocator_.BlocksToGrow(table, missing);
  if (allocator_.num_available() < needed + headroom || !allocator_.Grow(table, missing)) {
    return false;
  }
  if (from_host) {
    sequence.blocks = std::move(table);
    swap_->MoveIn(sequence);
    return true;
  }
  sequence.num_computed = table.num_sealed() * allocator_.block_size();
  sequence.blocks = std::move(table);
  sequence.num_host_tokens = 0;
  sequence.host_blocks.Release();
  BATON_CHECK(sequence.num_remaining() > 0);
  ReleasePassed(sequence);
  return true;
}

void Engine::Preempt(SequencesByAge::iterator victim) {
  Sequence& sequence = *victim->second;
  if (swap_ && swap_->MoveOut(sequence)) {
    ++num_swaps_;
  } else {
    sequence.blocks.Release();
    sequence.num_computed = 0;
  }
  BATON_CHECK(sequence.blocks.size() == 0);
  preempted_.insert(running_.extract(victim));
  ++num_preemptions_;
}

// True if the sequence's table covers its tokens. On false it sits out this step or was preempted
// itself. The youngest give way, the oldest always proceeds.
bool Engine::EnsureBlocks(Sequence& sequence) {
  while (!GrowToCover(sequence)) {
    if (swap_ && swap_->frees_soon()) return false;
    const bool alone = running_.size() == 1;
    const int32_t available = allocator_.num_available();
    if (reclaim_ && reclaim_(AgeOf(sequence), alone)) {
      // They are back at once, and no news would start a step later; or on their way.
      if (allocator_.num_available() > available) continue;
      return false;
    }
    // Alone: what it lacks is held by older or draining entries, and comes back with them.
    if (alone) return false;
    auto youngest = std::prev(running_.end());
    const bool itself = youngest->second.get() == &sequence;
    Preempt(youngest);
    if (itself) return false;
  }
  return true;
}

void Engine::FinishAlone(CallId call) {
  auto key = keys_.find(call);
  if (key == keys_.end()) return;
  auto it = running_.find(key->second);
  if (it != running_.end()) it->second->finish_group = 0;
}

// Decode rows of this step, oldest first; when there are more than fit, each step goes on behind
// the last one served.
std::vector<Sequence*> Engine::PickDecodes(int32_t budget, const FinishGate::Calls& waiting) {
  std::vector<AgeKey> keys;
  for (const auto& [key, sequence] : running_) {
    if (sequence->num_remaining() > 1 || waiting.contains(sequence->call)) continue;
    keys.push_back(key);
  }
  auto start = keys.begin();
  if (static_cast<int32_t>(keys.size()) > budget) {
    start = std::upper_bound(keys.begin(), keys.end(), last_decoded_);
    std::rotate(keys.begin(), start, keys.end());
  }
  std::vector<AgeKey> picked;
  for (const AgeKey& key : keys) {
    if (static_cast<int32_t>(picked.size()) == budget) break;
    auto it = running_.find(key);  // An earlier one may have preempted it.
    if (it != running_.end() && EnsureBlocks(*it->second)) picked.push_back(key);
  }
  BATON_CHECK(static_cast<int32_t>(picked.size()) <= budget);
  if (!picked.empty()) last_decoded_ = picked.back();
  std::vector<Sequence*> rows;
  for (const AgeKey& key : picked) {
    auto it = running_.find(key);  // A later one may have preempted it.
    if (it != running_.end()) rows.push_back(it->second.get());
  }
  return rows;
}

StepRow Engine::MakeRow(const Sequence& sequence, int32_t num_tokens) const {
  StepRow row;
  row.sequence = sequence.id;
  row.context_len = sequence.num_computed + sequence.num_copied;
  const auto first = sequence.tokens.begin() + row.context_len;
  row.tokens.assign(first, first + num_tokens);
  const int32_t covered = row.context_len + num_tokens;
  BATON_CHECK(num_tokens > 0 && covered <= sequence.num_tokens() && !Outgrows(sequence));
  BATON_CHECK(sequence.blocks.size() >= allocator_.BlocksFor(covered));
  row.block_table = sequence.blocks.Flat(allocator_.BlocksFor(covered));
  row.sample = covered == sequence.num_tokens() && !sequence.score_only;
  row.sampling = sequence.sampling;
  row.is_long = sequence.is_long;
  row.num_emitted = sequence.num_emitted();
  row.scores_from = sequence.scores_from;
  if (row.sample && NeedsHistory(sequence.sampling->params)) {
    row.emitted.assign(sequence.tokens.begin() + sequence.prompt_length, sequence.tokens.end());
  }
  return row;
}

void Engine::StartStep(Time now) {
  if (in_flight_.empty()) return StartFirst(now);
  if (now < follow_up_due_) return;
  follow_up_due_ = kNever;
  StartFollowUp();
}

void Engine::Launch(std::shared_ptr<StepPlan> plan, InFlight step) {
  plan->step = next_step_++;
  step.plan = std::move(plan);
  in_flight_.push_back(std::move(step));
  runner_.Start(in_flight_.back().plan);
}

void Engine::StartFirst(Time now) {
  BATON_CHECK(keys_.size() == running_.size() + preempted_.size());
  ResumePreempted();
  CoverOutgrown();
  int32_t budget = budget_.tokens();
  int32_t rows_left = options_.max_batch_sequences;
  const bool has_prefill = std::ranges::any_of(
      running_, [](const auto& item) { return item.second->num_remaining() > 1; });
  // Prefill keeps a quarter of the step and a row, so that decodes alone never starve a recompute.
  // Answers that have returned all stood still: their ends get up to three quarters.
  int32_t ends = 0;
  int32_t end_tokens = 0;
  for (const auto& [key, sequence] : running_) {
    if (!LacksOnlyItsEnd(*sequence, allocator_.block_size())) continue;
    ++ends;
    end_tokens += sequence->num_remaining();
  }
  const int32_t share = std::max(budget / 4, std::min(3 * budget / 4, end_tokens));
  const int32_t for_prefill = has_prefill ? std::max(1, share) : 0;
  const int32_t prefill_rows = std::max(1, std::min(3 * rows_left / 4, ends));
  const int32_t decode_rows = rows_left - (has_prefill ? prefill_rows : 0);
  const int32_t decode_budget = std::min(std::max(1, budget - for_prefill), decode_rows);
  const FinishGate::Calls waiting = finish_gate_.Waiting(running_, budget, now);
  std::vector<Sequence*> decodes = PickDecodes(decode_budget, waiting);
  budget -= static_cast<int32_t>(decodes.size());
  rows_left -= static_cast<int32_t>(decodes.size());
  if (has_prefill) budget = std::max(budget, 1);
  // With no answer beside them nobody waits for own prompts but those behind them.
  int32_t own_left = decodes.empty() ? budget : std::min(budget, own_budget_.tokens());

  auto plan = std::make_shared<StepPlan>();
  InFlight step;
  std::vector<Sequence*> copied;
  for (auto& [key, sequence] : running_) {
    if (sequence->num_remaining() == 1 || budget <= 0 || rows_left <= 0) continue;
    if (LacksBlocks(*sequence)) continue;
    if (TakeCopies(*sequence, decodes, plan.get())) {
      copied.push_back(sequence.get());
      own_left = std::min(--budget, own_left);
      --rows_left;
      continue;
    }
    const int32_t left = sequence->num_remaining() - (waiting.contains(sequence->call) ? 1 : 0);
    const int32_t chunk = std::min(sequence->own_prompt ? own_left : budget, left);
    if (chunk == 0) continue;
    plan->rows.push_back(MakeRow(*sequence, chunk));
    step.calls.push_back(sequence->call);
    budget -= chunk;
    own_left = std::min(budget, sequence->own_prompt ? own_left - chunk : own_left);
    step.own_tokens += sequence->own_prompt ? chunk : 0;
    --rows_left;
  }
  decodes.insert(decodes.begin(), copied.begin(), copied.end());
  for (Sequence* sequence : decodes) {
    plan->rows.push_back(MakeRow(*sequence, 1));
    step.calls.push_back(sequence->call);
  }
  const bool has_moves = swap_ && swap_->AddTo(*plan);
  if (plan->rows.empty() && !has_moves) return;
  FinishGate::Count(running_, waiting, CountTokens(*plan));
  BATON_CHECK(std::ssize(plan->rows) <= options_.max_batch_sequences);
  Launch(std::move(plan), std::move(step));
  PredictFollowUp(now);
}

// It has ended; if the follow-up computes it, its blocks are held until that has ended too.
void Engine::LetGo(SequencesByAge::iterator it, SequenceProgress* progress) {
  progress->ended = true;
  const CallId call = it->second->call;
  keys_.erase(call);
  if (IsInFlight(call)) {
    // The next turn of a conversation may be on its way.
    allocator_.MarkDraining(it->second->blocks, /*stays_findable=*/true);
    BATON_CHECK(removed_.emplace(call, std::move(it->second)).second);
  } else {
    progress->released = std::move(it->second);
  }
  running_.erase(it);
}

SequenceProgress Engine::ApplyRow(const StepRow& row, CallId call, RowResult result) {
  SequenceProgress progress;
  progress.call = call;
  auto it = running_.find(keys_.at(call));
  BATON_CHECK(it != running_.end());
  Sequence& sequence = *it->second;
  BATON_CHECK(sequence.num_computed + sequence.num_copied == row.context_len);
  if (!result.status.ok()) {
    progress.status = std::move(result.status);
    LetGo(it, &progress);
    return progress;
  }
  BATON_CHECK(result.sampled == row.sample);
  sequence.num_computed = row.context_len + static_cast<int32_t>(row.tokens.size());
  sequence.num_copied = 0;
  allocator_.Seal(sequence.blocks, sequence.salt(),
                  std::span(sequence.tokens).first(sequence.num_computed));
  // The step that read them has ended, and a handoff reads nothing behind the window.
  ReleasePassed(sequence);
  progress.prompt_logprobs = std::move(result.prompt_logprobs);
  if (!progress.prompt_logprobs.empty()) {
    BATON_CHECK(progress.prompt_logprobs.front().position == sequence.scores_from);
    sequence.scores_from = progress.prompt_logprobs.back().position + 1;
  }
  if (result.sampled) {
    sequence.tokens.push_back(result.output.token);
    sequence.own_prompt = false;
    result.output.finish = FinishAfter(sequence.sampling->params, eos_token_ids_,
                                       result.output.token, sequence.num_emitted());
    progress.output = std::move(result.output);
  }
  const bool finished =
      progress.output && (progress.output->finish != FinishReason::kNone || sequence.prefill_only);
  if (finished || (sequence.score_only && sequence.num_remaining() == 0)) {
    LetGo(it, &progress);
  } else if (Outgrows(sequence)) {
    // No follow-up computes it, and it waits for no move.
    BecomeLong(sequence);
    // Others share all that it had, and nothing is free, or an older one waits for it.
    if (sequence.blocks.size() == 0) preempted_.insert(running_.extract(it));
  }
  return progress;
}

// Of one that was removed, or had ended, amid a step that computes it: unless another still does.
void Engine::ReleaseRemoved(CallId call, std::vector<SequenceProgress>* all) {
  auto it = removed_.find(call);
  if (it == removed_.end() || IsInFlight(call)) return;
  all->push_back({.call = call, .ended = true, .released = std::move(it->second)});
  removed_.erase(it);
}

// The step failed: what it moved is computed again.
void Engine::VoidMoves() {
  const auto find = [this](CallId call, SequencesByAge& home) {
    auto key = keys_.find(call);
    return key == keys_.end() ? home.end() : home.find(key->second);
  };
  for (CallId call : swap_->moving_out()) {
    auto it = find(call, preempted_);
    if (it == preempted_.end()) continue;
    it->second->host_blocks.Release();
    it->second->num_host_tokens = 0;
  }
  for (CallId call : swap_->moving_in()) {
    auto it = find(call, running_);
    if (it == running_.end()) continue;
    // Its table may begin behind what has to be computed now.
    it->second->blocks.Release();
    it->second->num_computed = 0;
    preempted_.insert(running_.extract(it));
  }
}

std::vector<SequenceProgress> Engine::OnStepDone(StepDone done, Time now) {
  std::vector<SequenceProgress> all;
  if (in_flight_.empty() || done.step != in_flight_.front().plan->step) return all;
  const InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  const StepPlan& plan = *step.plan;
  BATON_CHECK(!done.status.ok() || done.rows.size() == plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const CallId call = step.calls[i];
    if (removed_.contains(call)) {
      ReleaseRemoved(call, &all);
      continue;
    }
    RowResult result = done.status.ok() ? std::move(done.rows[i]) : RowResult{};
    if (!done.status.ok()) result.status = done.status;
    all.push_back(ApplyRow(plan.rows[i], call, std::move(result)));
  }
  if (swap_) {
    // Removed while it was moved in, and no row of the step.
    for (CallId call : swap_->moving_in()) ReleaseRemoved(call, &all);
    if (!done.status.ok()) VoidMoves();
    swap_->OnStepDone();
  }
  BATON_CHECK(!in_flight_.empty() || removed_.empty());
  Record(step, done.status.ok(), now - step.began);
  follow_up_due_ = kNever;
  if (!in_flight_.empty()) PredictFollowUp(now);
  return all;
}

}  // namespace baton
