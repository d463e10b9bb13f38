#include "tests/sim/tag_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::sim {

TagMemory::TagMemory(const BlockAllocator& allocator, OnViolation violation)
    : allocator_(allocator),
      violation_(std::move(violation)),
      block_size_(allocator.block_size()),
      num_blocks_(allocator.num_blocks()),
      slots_(kLayers * num_blocks_ * block_size_),
      promises_(num_blocks_),
      poisoned_(num_blocks_, true) {}

uint64_t TagMemory::Read(int32_t layer, BlockId block, int32_t slot) const {
  const BlockState state = allocator_.state(block);
  if (state == BlockState::kFree || state == BlockState::kCached) {
    violation_("I3: a block is read that nobody holds");
  }
  const Slot& content = At(layer, block, slot);
  if (content.tag == kPoison) violation_("I3: memory is read that holds nothing");
  if (!content.verified) violation_("I9: a tag is read that was not verified");
  return content.tag;
}

void TagMemory::WriteComputed(int32_t layer, BlockId block, int32_t slot, uint64_t tag) {
  const BlockState state = allocator_.state(block);
  if (state != BlockState::kFilling && state != BlockState::kDraining) {
    violation_("I2: a step writes a block that is not its own");
  }
  if (promises_.at(block) > 0) violation_("I2: a step writes a block that a transfer may write");
  At(layer, block, slot) = {.tag = tag, .verified = true};
}

void TagMemory::WriteReceived(int32_t layer, BlockId block, int32_t slot, uint64_t tag) {
  const BlockState state = allocator_.state(block);
  if (state != BlockState::kReserved && state != BlockState::kFilling &&
      state != BlockState::kDraining) {
    violation_("I2: a transfer writes a block that is free, shared or final");
  }
  At(layer, block, slot) = {.tag = tag, .verified = false};
}

void TagMemory::Promise(BlockId block) {
  if (++promises_.at(block) > 1) violation_("I2: a block is promised to two transfers");
}

void TagMemory::Verify(BlockId block, int32_t slot) {
  for (int32_t layer = 0; layer < kLayers; ++layer) At(layer, block, slot).verified = true;
}

void TagMemory::Poison(BlockId block, int32_t first_slot) {
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t slot = first_slot; slot < block_size_; ++slot) At(layer, block, slot) = {};
  }
}

void TagMemory::PoisonFree() {
  for (BlockId id = 0; id < allocator_.num_blocks(); ++id) {
    const bool is_free = allocator_.state(id) == BlockState::kFree;
    if (is_free && !poisoned_[id]) Poison(id, 0);
    poisoned_[id] = is_free;
  }
}

void TagMemory::CheckHeld(BlockId block, std::string_view by) const {
  const BlockState state = allocator_.state(block);
  if (state != BlockState::kFree && state != BlockState::kCached) return;
  violation_(absl::StrCat("I3: a block was given up under ", std::string(by)));
}

bool TagMemory::IsSealed(BlockId block) const {
  const BlockState state = allocator_.state(block);
  return state == BlockState::kReady || state == BlockState::kCached;
}

}  // namespace baton::sim
