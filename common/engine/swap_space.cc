#include "common/engine/swap_space.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton {

SwapSpace::SwapSpace(int32_t num_blocks, BlockAllocator& device)
    : device_(device), host_(num_blocks, device.block_size(), /*hash_secret=*/0) {}

bool SwapSpace::MoveOut(Sequence& sequence) {
  const int32_t first = sequence.blocks.num_passed();
  const int32_t num_blocks = device_.BlocksFor(sequence.num_computed) - first;
  BATON_CHECK(num_blocks <= sequence.blocks.num_held());
  BATON_CHECK(sequence.host_blocks.size() == 0 && sequence.num_host_tokens == 0);
  if (num_blocks <= 0 || !host_.Grow(sequence.host_blocks, num_blocks)) return false;
  for (int32_t i = 0; i < num_blocks; ++i) {
    out_.push_back({sequence.blocks.blocks()[first + i], sequence.host_blocks.blocks()[i]});
  }
  moving_out_.push_back(sequence.call);
  sequence.num_host_tokens = std::exchange(sequence.num_computed, 0);
  device_.MarkDraining(sequence.blocks);
  leaving_.push_back(std::move(sequence.blocks));
  return true;
}

void SwapSpace::MoveIn(Sequence& sequence) {
  const int32_t first = sequence.blocks.num_passed();
  const int32_t num_blocks = sequence.host_blocks.size();
  BATON_CHECK(first + num_blocks == device_.BlocksFor(sequence.num_host_tokens));
  BATON_CHECK(sequence.blocks.num_held() >= num_blocks);
  for (int32_t i = 0; i < num_blocks; ++i) {
    in_.push_back({sequence.host_blocks.blocks()[i], sequence.blocks.blocks()[first + i]});
  }
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
