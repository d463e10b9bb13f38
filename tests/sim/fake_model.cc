#include "tests/sim/fake_model.h"

#include <algorithm>
#include <utility>

#include "common/engine/sequence.h"

namespace baton::sim {

uint64_t TagOf(int32_t layer, int32_t head, int32_t token, int32_t position, uint64_t previous,
               bool is_long) {
  return Random::Mix(previous ^ Random::Mix((uint64_t(is_long) << 63) ^ (uint64_t(head) << 56) ^
                                            (uint64_t(layer) << 48) ^ (uint64_t(position) << 24) ^
                                            uint64_t(token)));
}

int32_t NextToken(uint64_t folded, const SamplingParams& params, int32_t position) {
  const uint64_t draw =
      Random::Mix(folded ^ Random::Mix(params.seed + 7919 * params.choice) ^ uint64_t(position));
  return static_cast<int32_t>(draw % kVocab);
}

namespace {

void CheckTouched(const TagMemory& memory, BlockId block, uint32_t epoch, std::string_view by) {
  memory.CheckHeld(block, by);
  memory.CheckEpoch(block, epoch, by);
}

// The first position that the query at `position` reads. The tag before its own is always one of
// them: TagOf needs it.
int32_t FirstSeen(int32_t window, int32_t position) {
  return window == 0 ? 0 : std::max(0, position - std::max(1, window - 1));
}

}  // namespace

PromptLogprob FakeScore(const std::vector<int32_t>& prompt, int32_t position) {
  const uint64_t hash =
      TagOf(0, 0, prompt[position], position, static_cast<uint64_t>(prompt[position - 1]), false);
  return {.position = position,
          .token = prompt[position],
          .logprob = -static_cast<float>(hash % 1024) / 64,
          .rank = 1};
}

std::vector<int32_t> ExpectedTokens(const std::vector<int32_t>& prompt,
                                    const SamplingParams& params, const FakeArch& arch) {
  std::vector<int32_t> tokens;
  std::vector<std::vector<uint64_t>> tags(size_t{1} * arch.num_layers() * arch.kv_heads);
  bool is_long = false;
  auto feed = [&](int32_t token, int32_t position) {
    for (size_t i = 0; i < tags.size(); ++i) {
      const auto layer = static_cast<int32_t>(i) / arch.kv_heads;
      const auto head = static_cast<int32_t>(i) % arch.kv_heads;
      const uint64_t previous = position == 0 ? 0 : tags[i].back();
      tags[i].push_back(TagOf(layer, head, token, position, previous, is_long));
    }
  };
  auto folded = [&](int32_t position) {
    uint64_t all = 0;
    for (size_t i = 0; i < tags.size(); ++i) {
      uint64_t fold = 0;
      const int32_t window = arch.windows[i / arch.kv_heads];
      for (int32_t p = FirstSeen(window, position); p <= position; ++p) {
        fold = Random::Mix(fold ^ tags[i][p]);
      }
      all ^= fold;
    }
    return all;
  };
  std::vector<int32_t> all;
  auto feed_all = [&] {
    is_long = arch.original_len > 0 && std::ssize(all) > arch.original_len;
    for (auto& one : tags) one.clear();
    for (size_t p = 0; p < all.size(); ++p) feed(all[p], static_cast<int32_t>(p));
  };
  all = prompt;
  feed_all();
  while (true) {
    const auto position = static_cast<int32_t>(all.size());
    const int32_t token = NextToken(folded(position - 1), params, position);
    tokens.push_back(token);
    all.push_back(token);
    if (FinishAfter(params, {kEos}, token, static_cast<int32_t>(tokens.size())) !=
        FinishReason::kNone) {
      return tokens;
    }
    // What becomes long is another sequence from its first token on.
    if (!is_long && arch.original_len > 0 && position + 1 > arch.original_len) {
      feed_all();
    } else {
      feed(token, position);
    }
  }
}

void FakeRunner::Start(std::shared_ptr<const StepPlan> plan) {
  on_start_(*plan);
  if (in_flight_ == nullptr) return Begin(std::move(plan));
  if (follow_up_ != nullptr || !IsFollowUp(*plan)) {
    violation_("I8: a step starts beside one that it does not follow");
  }
  follow_up_ = std::move(plan);
}

// Its tokens are known: the step before has ended.
void FakeRunner::Begin(std::shared_ptr<const StepPlan> plan) {
  if (IsFollowUp(*plan)) {
    if (!before_.status.ok()) {
      in_flight_ = plan;
      host_.After(world_.Micros(1, 50),
                  [this] { End({.step = in_flight_->step, .status = before_.status}); });
      return;
    }
    plan = WithTokens(*plan, before_);
  }
  folded_.assign(plan->rows.size(), 0);
  in_flight_ = plan;
  const Duration drawn = world_.Micros(50, 2000);
  int64_t num_tokens = 0;
  for (const StepRow& row : plan->rows) num_tokens += static_cast<int64_t>(row.tokens.size());
  const Duration layer_time =
      (layer_time_ > Duration::zero() ? layer_time_ : drawn) + num_tokens * token_time_;
  bool fails = world_.Hit(Fault::kStepError);
  if (!plan->swap_out.empty() || !plan->swap_in.empty() || !plan->copies.empty()) {
    fails = fails || world_.Hit(Fault::kMoveError);
    StartMoves(fails, layer_time);
    return;
  }
  PoisonUncomputed();
  host_.After(layer_time, [this, fails, layer_time] { RunLayer(0, fails, layer_time); });
}

// Beyond the computed tokens nothing may count on what is there.
void FakeRunner::PoisonUncomputed() {
  const KvLayout& layout = ranks_.front()->cache().layout();
  for (const StepRow& row : in_flight_->rows) {
    for (int32_t g = 0; g < NumGroups(layout); ++g) {
      const auto table = RowOf(layout, g, row.block_table);
      for (size_t b = row.context_len / layout.block_size; b < table.size(); ++b) {
        const int32_t first = row.context_len - static_cast<int32_t>(b) * layout.block_size;
        for (const auto& memory : ranks_) memory->Poison(table[b], std::max(0, first));
      }
    }
  }
}

// Before the first layer; without rows there is none. The blocks are read and written from half of
// the time on until its end.
void FakeRunner::StartMoves(bool fails, Duration layer_time) {
  const TagMemory& memory = *ranks_.front();
  const TagMemory* host_memory = host_ranks_ == nullptr ? nullptr : host_ranks_->front().get();
  out_epochs_.clear();
  in_epochs_.clear();
  copy_epochs_.clear();
  for (const BlockMove& move : in_flight_->swap_out) {
    out_epochs_.emplace_back(memory.epoch(move.source), host_memory->epoch(move.destination));
  }
  for (const BlockMove& move : in_flight_->swap_in) {
    in_epochs_.emplace_back(host_memory->epoch(move.source), memory.epoch(move.destination));
  }
  for (const BlockMove& copy : in_flight_->copies) {
    copy_epochs_.emplace_back(memory.epoch(copy.source), memory.epoch(copy.destination));
  }
  const Duration half = world_.Micros(25, 2000);
  host_.After(half, [=, this] { RunMoves(/*is_last=*/false, fails, half, layer_time); });
}

// What a step that fails moved is undefined.
void FakeRunner::MoveOnRank(size_t rank, bool fails) {
  TagMemory& memory = *ranks_[rank];
  for (const BlockMove& move : in_flight_->swap_in) {
    memory.CopyFrom(*host_ranks_->at(rank), move.source, move.destination, /*may_be_free=*/false);
    if (fails) memory.Poison(move.destination, 0);
  }
  for (const BlockMove& copy : in_flight_->copies) {
    memory.CopyFrom(memory, copy.source, copy.destination, /*may_be_free=*/false);
    if (fails) memory.Poison(copy.destination, 0);
  }
  for (const BlockMove& move : in_flight_->swap_out) {
    TagMemory& host_memory = *host_ranks_->at(rank);
    host_memory.CopyFrom(memory, move.source, move.destination, /*may_be_free=*/true);
    if (fails) host_memory.Poison(move.destination, 0);
  }
}

void FakeRunner::RunMoves(bool is_last, bool fails, Duration half, Duration layer_time) {
  if (stalled()) {
    host_.At(stalled_until_, [=, this] { RunMoves(is_last, fails, half, layer_time); });
    return;
  }
  world_.Mark();
  CheckMoves();
  for (size_t rank = 0; rank < ranks_.size(); ++rank) MoveOnRank(rank, fails);
  if (!is_last) {
    host_.After(half, [=, this] { RunMoves(/*is_last=*/true, fails, half, layer_time); });
    return;
  }
  if (!fails) PoisonUncomputed();
  const int32_t first = fails || in_flight_->rows.empty() ? arch_.num_layers() : 0;
  host_.After(layer_time, [=, this] { RunLayer(first, fails, layer_time); });
}

void FakeRunner::RunLayer(int32_t layer, bool fails, Duration layer_time) {
  if (stalled()) {
    host_.At(stalled_until_, [=, this] { RunLayer(layer, fails, layer_time); });
    return;
  }
  world_.Mark();
  if (layer < arch_.num_layers()) {
    ranks_left_ = ranks_.size();
    seen_.assign(in_flight_->rows.size() * arch_.kv_heads, 0);
    if (ranks_left_ == 1) return RunRank(0, layer, fails, layer_time);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      host_.After(world_.Micros(0, 300), [=, this] { RunRank(rank, layer, fails, layer_time); });
    }
    return;
  }
  End(fails ? StepDone{.step = in_flight_->step, .status = absl::InternalError("injected")}
            : Results());
}

void FakeRunner::End(StepDone done) {
  before_ = OutcomeOf(done);
  // In flight from now on, as its follow-up may start with this mail.
  const std::shared_ptr<const StepPlan> next = in_flight_ = std::exchange(follow_up_, nullptr);
  mail_(std::move(done));
  if (next != nullptr) Begin(next);
}

void FakeRunner::RunRank(size_t rank, int32_t layer, bool fails, Duration layer_time) {
  WriteAndFold(*ranks_[rank], layer);
  if (--ranks_left_ > 0) return;
  host_.After(layer_time, [=, this] { RunLayer(layer + 1, fails, layer_time); });
  mail_(LayerDone{.step = in_flight_->step, .layer = layer});
}

void FakeRunner::Check() const {
  for (const StepPlan* plan : {in_flight_.get(), follow_up_.get()}) {
    if (plan == nullptr) continue;
    for (const StepRow& row : plan->rows) {
      for (BlockId block : row.block_table) {
        if (block >= 0) ranks_.front()->CheckHeld(block, "a step");
      }
    }
  }
  if (in_flight_ != nullptr) CheckMoves();
}

// Both ends of each move are what they were when it began. Of a move out the sequence may be gone,
// but nobody else has its place on the host.
void FakeRunner::CheckMoves() const {
  CheckCopies();
  if (host_ranks_ == nullptr) return;
  const TagMemory& memory = *ranks_.front();
  const TagMemory& host_memory = *host_ranks_->front();
  for (size_t i = 0; i < in_flight_->swap_out.size(); ++i) {
    const BlockMove& move = in_flight_->swap_out[i];
    const auto [source, destination] = out_epochs_[i];
    CheckTouched(memory, move.source, source, "a move that reads it");
    host_memory.CheckEpoch(move.destination, destination, "a move that writes it");
  }
  for (size_t i = 0; i < in_flight_->swap_in.size(); ++i) {
    const BlockMove& move = in_flight_->swap_in[i];
    const auto [source, destination] = in_epochs_[i];
    CheckTouched(host_memory, move.source, source, "a move that reads it");
    CheckTouched(memory, move.destination, destination, "a move that writes it");
  }
}

void FakeRunner::CheckCopies() const {
  const TagMemory& memory = *ranks_.front();
  for (size_t i = 0; i < in_flight_->copies.size(); ++i) {
    const BlockMove& copy = in_flight_->copies[i];
    const auto [source, destination] = copy_epochs_[i];
    CheckTouched(memory, copy.source, source, "a copy that reads it");
    CheckTouched(memory, copy.destination, destination, "a copy that writes it");
  }
}

// What one head adds to a row's answer.
uint64_t FakeRunner::Fold(TagMemory& memory, int32_t layer, int32_t head, const StepRow& row) {
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    const int32_t position = row.context_len + static_cast<int32_t>(i);
    const uint64_t previous =
        position == 0 ? 0 : memory.ReadToken(layer, head, row.block_table, position - 1);
    memory.WriteToken(
        layer, head, row.block_table, position,
        TagOf(layer, memory.heads().first + head, row.tokens[i], position, previous, row.is_long));
  }
  // Attention: what the first and the last query see is read back.
  const int32_t last = row.context_len + static_cast<int32_t>(row.tokens.size()) - 1;
  uint64_t fold = 0;
  const int32_t window = arch_.windows[layer];
  for (int32_t p = FirstSeen(window, row.context_len); p <= last; ++p) {
    const uint64_t tag = memory.ReadToken(layer, head, row.block_table, p);
    if (p >= FirstSeen(window, last)) fold = Random::Mix(fold ^ tag);
  }
  return fold;
}

// Ranks that hold one head have the same in it.
void FakeRunner::WriteAndFold(TagMemory& memory, int32_t layer) {
  for (size_t r = 0; r < in_flight_->rows.size(); ++r) {
    for (int32_t head = 0; head < memory.heads().count; ++head) {
      const uint64_t fold = Fold(memory, layer, head, in_flight_->rows[r]);
      uint64_t& seen = seen_[r * arch_.kv_heads + memory.heads().first + head];
      if (seen == 0) {
        folded_[r] ^= seen = fold;
      } else if (seen != fold) {
        violation_("I9: two ranks hold one head and differ in it");
      }
    }
  }
}

StepDone FakeRunner::Results() const {
  StepDone done{.step = in_flight_->step};
  for (size_t r = 0; r < in_flight_->rows.size(); ++r) {
    const StepRow& row = in_flight_->rows[r];
    const int32_t end = row.context_len + static_cast<int32_t>(row.tokens.size());
    RowResult result{.sequence = row.sequence, .sampled = row.sample};
    if (row.sample) {
      result.output = {.position = end, .token = NextToken(folded_[r], row.sampling->params, end)};
    }
    if (row.sampling->params.num_prompt_logprobs >= 0) {
      const auto& prompt = row.sampling->prompt;
      const int32_t first = std::max(row.context_len + 1, row.scores_from);
      for (int32_t p = first; p <= end && p < static_cast<int32_t>(prompt.size()); ++p) {
        result.prompt_logprobs.push_back(FakeScore(prompt, p));
      }
    }
    done.rows.push_back(std::move(result));
  }
  return done;
}

}  // namespace baton::sim
