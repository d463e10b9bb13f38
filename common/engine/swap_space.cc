#include "common/engine/swap_space.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton {
namespace {

void AddMoves(const BlockTable& from, const BlockTable& to, int32_t entries,
              std::vector<BlockMove>* moves) {
  for (int32_t g = 0; g < from.num_groups(); ++g) {
    BATON_CHECK(from.num_passed(g) == to.num_passed(g) && to.size() >= entries);
    for (int32_t i = from.num_passed(g); i < entries; ++i) {
      moves->push_back({from.blocks(g)[i], to.blocks(g)[i]});
    }
  }
}

}  // namespace

SwapSpace::SwapSpace(int32_t num_blocks, BlockAllocator& device)
    : device_(device),
      host_(num_blocks, device.block_size(), /*hash_secret=*/0, device.windows()) {}

bool SwapSpace::MoveOut(Sequence& sequence) {
  BATON_CHECK(sequence.host_blocks.size() == 0 && sequence.num_host_tokens == 0);
  const int32_t entries = device_.BlocksFor(sequence.num_computed);
  if (entries == 0) return false;
  host_.PassAs(sequence.host_blocks, sequence.blocks);
  if (!host_.Grow(sequence.host_blocks, entries)) {
    sequence.host_blocks.Release();
    return false;
  }
  AddMoves(sequence.blocks, sequence.host_blocks, entries, &out_);
  moving_out_.push_back(sequence.call);
  sequence.num_host_tokens = std::exchange(sequence.num_computed, 0);
  device_.MarkDraining(sequence.blocks);
  leaving_.push_back(std::move(sequence.blocks));
  return true;
}

void SwapSpace::MoveIn(Sequence& sequence) {
  const int32_t entries = sequence.host_blocks.size();
  BATON_CHECK(entries == device_.BlocksFor(sequence.num_host_tokens));
  AddMoves(sequence.host_blocks, sequence.blocks, entries, &in_);
  moving_in_.push_back(sequence.call);
  sequence.num_computed = std::exchange(sequence.num_host_tokens, 0);
  arriving_.push_back(std::move(sequence.host_blocks));
}

bool SwapSpace::IsMovingIn(CallId call) const {
  return std::ranges::find(moving_in_, call) != moving_in_.end();
}

bool SwapSpace::AddTo(StepPlan& plan) {
  BATON_CHECK(leaving_.size() == moving_out_.size() && arriving_.size() == moving_in_.size());
  plan.swap_out = std::exchange(out_, {});
  plan.swap_in = std::exchange(in_, {});
  return !plan.swap_out.empty() || !plan.swap_in.empty();
}

void SwapSpace::OnStepDone() {
  BATON_CHECK(out_.empty() && in_.empty());  // Moves of the next step begin with it.
  moving_out_.clear();
  moving_in_.clear();
  leaving_.clear();
  arriving_.clear();
}

}  // namespace baton
