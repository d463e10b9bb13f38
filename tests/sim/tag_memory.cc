#include "tests/sim/tag_memory.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/kv_cache/layer_groups.h"

namespace baton::sim {

HeadRange HeadsHeld(int rank, int size, int32_t kv_heads) {
  if (size > kv_heads) return {.first = rank / (size / kv_heads), .count = 1};
  return {.first = rank * (kv_heads / size), .count = kv_heads / size};
}

int32_t NumHeadsSent(int from, int from_size, int to, int to_size, int32_t kv_heads) {
  const int holders = std::max(1, from_size / kv_heads);
  if (from % holders != to % holders) return 0;
  const HeadRange a = HeadsHeld(from, from_size, kv_heads);
  const HeadRange b = HeadsHeld(to, to_size, kv_heads);
  return std::max(0, std::min(a.first + a.count, b.first + b.count) - std::max(a.first, b.first));
}

KvLayout TagLayout(int32_t block_size, const FakeArch& arch, int32_t kv_heads) {
  static_assert(sizeof(uint64_t) == 2 * sizeof(float));
  KvLayout layout =
      GroupLayers(arch.windows, {.num_kv_heads = kv_heads, .k_dim = 2, .v_dim = 2}, block_size);
  for (KvLayerGroup& group : layout.groups) {
    group.spare = layout.groups.size() > 1 && group.window > 0 ? arch.spare : 0;
  }
  return layout;
}

TagMemory::TagMemory(const KvLayout& layout, const BlockAllocator& allocator, HeadRange heads,
                     OnViolation violation)
    : allocator_(allocator),
      violation_(std::move(violation)),
      cache_(*KvCache::Create(layout, allocator.num_blocks())),
      planes_(NumSlots(layout)),
      heads_(heads),
      block_size_(allocator.block_size()),
      num_slots_(int64_t{allocator.num_blocks()} * heads.count * block_size_),
      verified_(planes_.size() * num_slots_),
      received_(planes_.size() * 2 * num_slots_),
      promises_(allocator.num_blocks()),
      epoch_(allocator.num_blocks()),
      loans_(allocator.num_blocks()),
      poisoned_(allocator.num_blocks(), true) {
  for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
    planes_[PlaneOf(layer)] = {cache_->Plane(layer, KvPlane::kK),
                               cache_->Plane(layer, KvPlane::kV)};
  }
  for (BlockId block = 0; block < allocator.num_blocks(); ++block) Poison(block, 0);
}

uint64_t TagMemory::TagAt(int32_t plane, KvPlane part, int64_t slot) const {
  uint64_t tag = 0;
  std::memcpy(&tag, planes_[plane][static_cast<size_t>(part)] + 8 * slot, 8);
  return part == KvPlane::kK ? tag : ~tag;
}

void TagMemory::Set(int32_t plane, int64_t slot, uint64_t tag, bool verified) {
  const uint64_t complement = ~tag;
  std::memcpy(planes_[plane][0] + 8 * slot, &tag, 8);
  std::memcpy(planes_[plane][1] + 8 * slot, &complement, 8);
  VerifiedAt(plane, slot) = verified;
}

uint64_t TagMemory::ReadToken(int32_t layer, int32_t head, const std::vector<BlockId>& table,
                              int32_t position) const {
  const BlockId block = BlockAt(layer, table, position);
  if (block < 0) violation_("I3: a token is read whose block was given back");
  const BlockState state = allocator_.state(block);
  if (state == BlockState::kFree || state == BlockState::kCached) {
    violation_("I3: a block is read that nobody holds");
  }
  const int64_t at = SlotOf(block, head, position % block_size_);
  const int32_t plane = PlaneOf(layer);
  const uint64_t tag = TagAt(plane, KvPlane::kK, at);
  if (tag == kPoison) violation_("I3: memory is read that holds nothing");
  if (!verified_.at(plane * num_slots_ + at)) violation_("I9: a tag is read that was not verified");
  if (tag != TagAt(plane, KvPlane::kV, at)) violation_("I9: K and V do not belong together");
  return tag;
}

void TagMemory::WriteToken(int32_t layer, int32_t head, const std::vector<BlockId>& table,
                           int32_t position, uint64_t tag) {
  const BlockId block = BlockAt(layer, table, position);
  const BlockState state = allocator_.state(block);
  if (state != BlockState::kFilling && state != BlockState::kDraining) {
    violation_("I2: a step writes a block that is not its own");
  }
  if (promises_.at(block) > 0) violation_("I2: a step writes a block that a transfer may write");
  Set(PlaneOf(layer), SlotOf(block, head, position % block_size_), tag, /*verified=*/true);
}

void TagMemory::CopyFrom(const TagMemory& from, BlockId source, BlockId destination,
                         bool may_be_free) {
  from.CheckHeld(source, "a move that reads it");
  const BlockState state = allocator_.state(destination);
  if (state == BlockState::kFree && may_be_free) return;  // Nobody will read it.
  if (state != BlockState::kFilling && state != BlockState::kDraining) {
    violation_("I2: a move writes a block that is not its sequence's own");
  }
  if (promises_.at(destination) > 0) {
    violation_("I2: a move writes a block that a transfer may write");
  }
  const int64_t size = int64_t{heads_.count} * block_size_;
  for (int32_t plane = 0; plane < num_planes(); ++plane) {
    for (int64_t i = 0; i < size; ++i) {
      const int64_t at = source * size + i;
      Set(plane, destination * size + i, from.TagAt(plane, KvPlane::kK, at),
          from.verified_.at(plane * from.num_slots_ + at));
    }
  }
}

TagMemory::Slots TagMemory::SlotsAt(const std::byte* start, size_t size) const {
  for (int32_t plane = 0; plane < num_planes(); ++plane) {
    for (int32_t part = 0; part < 2; ++part) {
      const std::byte* begin = planes_[plane][part];
      if (start < begin || start >= begin + 8 * num_slots_) continue;
      const int64_t first = start - begin;
      const int64_t end = first + static_cast<int64_t>(size);
      return {plane, part, first / 8, (end + 7) / 8, first, end};
    }
  }
  return {};
}

void TagMemory::OnReceived(const std::byte* start, size_t size) {
  const Slots slots = SlotsAt(start, size);
  for (int64_t slot = slots.first; slot < slots.end; ++slot) {
    const BlockId block = BlockOf(slot);
    const BlockState state = allocator_.state(block);
    if (state != BlockState::kReserved && state != BlockState::kFilling &&
        state != BlockState::kDraining) {
      violation_("I2: a transfer writes a block that is free, shared or final");
    }
    if (promises_.at(block) == 0) violation_("I3: late bytes are written to a block");
    if (VerifiedAt(slots.plane, slot)) violation_("I2: a transfer writes what is there already");
    uint8_t& received = ReceivedAt(slots.plane, slots.part, slot);
    received = static_cast<uint8_t>(received + slots.BytesOf(slot));
    if (received > 8) violation_("I2: a transfer writes a token of a head twice");
    if (allocator_.epochs().at(block).load() != epoch_.at(block)) {
      violation_("I3: a transfer writes to a block that was given to someone else");
    }
  }
}

void TagMemory::OnSent(const std::byte* start, size_t size) const {
  const Slots slots = SlotsAt(start, size);
  for (int64_t slot = slots.first; slot < slots.end; ++slot) {
    const BlockId block = BlockOf(slot);
    CheckHeld(block, "a transfer that reads it");
    if (loans_.at(block) == 0) violation_("I3: a block is read after its transfer ended");
    if (!verified_.at(slots.plane * num_slots_ + slot)) violation_("I9: unverified K/V is sent");
  }
}

void TagMemory::Promise(const BlockRef& ref) {
  if (++promises_.at(ref.block) > 1) violation_("I2: a block is promised to two transfers");
  epoch_.at(ref.block) = ref.epoch;
  const int64_t size = int64_t{heads_.count} * block_size_;
  for (int32_t plane = 0; plane < num_planes() * 2; ++plane) {
    std::fill_n(received_.begin() + plane * num_slots_ + ref.block * size, size, uint8_t{0});
  }
}

void TagMemory::Overtake(BlockId block) {
  // The allocator gives its epochs away to readers only.
  const_cast<BlockEpochs&>(allocator_.epochs()).at(block).fetch_add(1);
}

void TagMemory::Verify(int32_t layer, BlockId block, int32_t slot) {
  const int32_t plane = PlaneOf(layer);
  for (int32_t head = 0; head < heads_.count; ++head) {
    const int64_t at = SlotOf(block, head, slot);
    if (TagAt(plane, KvPlane::kK, at) == kPoison || TagAt(plane, KvPlane::kV, at) == kPoison) {
      violation_("I9: a transfer is verified that did not bring everything");
    }
    VerifiedAt(plane, at) = true;
  }
}

void TagMemory::Poison(BlockId block, int32_t first_slot) {
  for (int32_t plane = 0; plane < num_planes(); ++plane) {
    for (int32_t head = 0; head < heads_.count; ++head) {
      for (int32_t slot = first_slot; slot < block_size_; ++slot) {
        Set(plane, SlotOf(block, head, slot), kPoison, /*verified=*/false);
      }
    }
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

void TagMemory::CheckEpoch(BlockId block, uint32_t expected, std::string_view by) const {
  if (epoch(block) == expected) return;
  violation_(absl::StrCat("I3: a block was given out under ", std::string(by)));
}

bool TagMemory::IsSealed(BlockId block) const {
  const BlockState state = allocator_.state(block);
  return state == BlockState::kReady || state == BlockState::kCached;
}

}  // namespace baton::sim
