#include "tests/sim/fake_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/engine/sequence.h"

namespace baton::sim {

TagMemory::TagMemory(const BlockAllocator& allocator, OnViolation violation)
    : allocator_(allocator),
      violation_(std::move(violation)),
      block_size_(allocator.block_size()),
      tags_(size_t{kLayers} * allocator.num_blocks() * allocator.block_size(), kPoison),
      poisoned_(allocator.num_blocks(), true) {}

uint64_t& TagMemory::At(int32_t layer, BlockId block, int32_t slot) {
  return tags_.at(
      (size_t{static_cast<size_t>(layer)} * allocator_.num_blocks() + block) * block_size_ + slot);
}

uint64_t TagMemory::Read(int32_t layer, BlockId block, int32_t slot) const {
  const BlockState state = allocator_.state(block);
  if (state == BlockState::kFree || state == BlockState::kCached) {
    violation_("a block is read that nobody holds");
  }
  const uint64_t tag = const_cast<TagMemory*>(this)->At(layer, block, slot);
  if (tag == kPoison) violation_("memory is read that holds nothing");
  return tag;
}

void TagMemory::Write(int32_t layer, BlockId block, int32_t slot, uint64_t tag) {
  const BlockState state = allocator_.state(block);
  if (state != BlockState::kReserved && state != BlockState::kFilling &&
      state != BlockState::kDraining) {
    violation_("a block is written that is free, shared or final");
  }
  At(layer, block, slot) = tag;
}

void TagMemory::Poison(BlockId block, int32_t first_slot) {
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t slot = first_slot; slot < block_size_; ++slot) At(layer, block, slot) = kPoison;
  }
}

void TagMemory::PoisonFree() {
  for (BlockId id = 0; id < allocator_.num_blocks(); ++id) {
    const bool is_free = allocator_.state(id) == BlockState::kFree;
    if (is_free && !poisoned_[id]) Poison(id, 0);
    poisoned_[id] = is_free;
  }
}

void TagMemory::CheckHeld(const std::vector<BlockId>& blocks, std::string_view by) const {
  for (BlockId block : blocks) {
    const BlockState state = allocator_.state(block);
    if (state != BlockState::kFree && state != BlockState::kCached) continue;
    violation_(absl::StrCat("a block was given up under ", std::string(by)));
    return;
  }
}

uint64_t TagOf(int32_t layer, int32_t token, int32_t position, uint64_t previous) {
  return Random::Mix(previous ^ Random::Mix((uint64_t(layer) << 48) ^ (uint64_t(position) << 24) ^
                                            uint64_t(token)));
}

int32_t NextToken(uint64_t folded, const SamplingParams& params, int32_t position) {
  const uint64_t draw =
      Random::Mix(folded ^ Random::Mix(params.seed + 7919 * params.choice) ^ uint64_t(position));
  return static_cast<int32_t>(draw % kVocab);
}

std::vector<int32_t> ExpectedTokens(const std::vector<int32_t>& prompt,
                                    const SamplingParams& params) {
  std::vector<int32_t> tokens;
  uint64_t previous[kLayers] = {};
  uint64_t folded = 0;
  std::vector<uint64_t> folds(kLayers, 0);
  auto feed = [&](int32_t token, int32_t position) {
    folded = 0;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      previous[layer] = TagOf(layer, token, position, previous[layer]);
      folds[layer] = Random::Mix(folds[layer] ^ previous[layer]);
      folded ^= folds[layer];
    }
  };
  int32_t position = 0;
  for (int32_t token : prompt) feed(token, position++);
  while (true) {
    const int32_t token = NextToken(folded, params, position);
    tokens.push_back(token);
    if (FinishAfter(params, {kEos}, token, static_cast<int32_t>(tokens.size())) !=
        FinishReason::kNone) {
      return tokens;
    }
    feed(token, position++);
  }
}

FakeRunner::FakeRunner(World& world, TagMemory& memory, const Faults& faults, Mail mail)
    : world_(world), memory_(memory), faults_(faults), mail_(std::move(mail)) {}

void FakeRunner::Start(std::shared_ptr<const StepPlan> plan) {
  folded_.assign(plan->rows.size(), 0);
  in_flight_ = plan;
  // Beyond the computed tokens nothing may count on what is there.
  for (const StepRow& row : plan->rows) {
    for (size_t b = row.context_len / memory_.block_size(); b < row.block_table.size(); ++b) {
      const int32_t first = row.context_len - static_cast<int32_t>(b) * memory_.block_size();
      memory_.Poison(row.block_table[b], std::max(0, first));
    }
  }
  const Duration layer_time = world_.Micros(50, 2000);
  const bool fails = world_.Chance(faults_.step_error);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    world_.After(layer_time * (layer + 1), [this, alive = alive_, plan, layer] {
      if (!*alive) return;
      RunLayer(*plan, layer);
      mail_(LayerDone{.step = plan->step, .layer = layer});
    });
  }
  world_.After(layer_time * (kLayers + 1), [this, alive = alive_, plan, fails] {
    if (!*alive) return;
    in_flight_.reset();
    mail_(fails ? StepDone{.step = plan->step, .status = absl::InternalError("injected")}
                : Results(*plan));
  });
}

void FakeRunner::Check() const {
  if (in_flight_ == nullptr) return;
  for (const StepRow& row : in_flight_->rows) memory_.CheckHeld(row.block_table, "a step");
}

void FakeRunner::RunLayer(const StepPlan& plan, int32_t layer) {
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      const int32_t position = row.context_len + static_cast<int32_t>(i);
      const uint64_t previous =
          position == 0 ? 0 : memory_.ReadToken(layer, row.block_table, position - 1);
      memory_.Write(layer, row.block_table.at(position / memory_.block_size()),
                    position % memory_.block_size(),
                    TagOf(layer, row.tokens[i], position, previous));
    }
    // Attention: every position of the context is read back.
    uint64_t fold = 0;
    const int32_t length = row.context_len + static_cast<int32_t>(row.tokens.size());
    for (int32_t position = 0; position < length; ++position) {
      fold = Random::Mix(fold ^ memory_.ReadToken(layer, row.block_table, position));
    }
    folded_[r] ^= fold;
  }
}

StepDone FakeRunner::Results(const StepPlan& plan) {
  StepDone done{.step = plan.step};
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    const int32_t end = row.context_len + static_cast<int32_t>(row.tokens.size());
    RowResult result{.sequence = row.sequence, .sampled = row.sample};
    if (row.sample) {
      result.output = {.position = end, .token = NextToken(folded_[r], row.sampling->params, end)};
    }
    if (row.sampling->params.num_prompt_logprobs >= 0) {
      const auto& prompt = row.sampling->prompt;
      for (int32_t p = row.context_len + 1; p <= end && p < static_cast<int32_t>(prompt.size());
           ++p) {
        result.prompt_logprobs.push_back({.position = p, .token = prompt[p]});
      }
    }
    done.rows.push_back(std::move(result));
  }
  return done;
}

}  // namespace baton::sim
