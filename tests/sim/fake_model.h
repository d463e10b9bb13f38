#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/kv_cache/block_allocator.h"
#include "common/model/model_runner.h"
#include "common/node/message.h"
#include "tests/sim/world.h"

namespace baton::sim {

inline constexpr int32_t kLayers = 2;
inline constexpr int32_t kVocab = 97;
inline constexpr int32_t kEos = 1;

// The memory of one worker's block pool: one tag per (layer, block, slot) instead of K and V. Every
// access is checked against the allocator's state of the block: what is read was written since the
// block was handed out, what is written has one writer.
class TagMemory {
 public:
  using OnViolation = std::function<void(std::string)>;

  TagMemory(const BlockAllocator& allocator, OnViolation violation);

  static constexpr uint64_t kPoison = 0xDEADDEADDEADDEADull;

  // Of a block that someone holds.
  uint64_t Read(int32_t layer, BlockId block, int32_t slot) const;
  // To a block that is RESERVED, FILLING or DRAINING.
  void Write(int32_t layer, BlockId block, int32_t slot, uint64_t tag);
  // The slots [first_slot, block_size) of the block hold nothing.
  void Poison(BlockId block, int32_t first_slot);
  // Poisons every block that became FREE since the last call. After each turn of the node.
  void PoisonFree();
  // A step or an open transfer may touch these: somebody has to hold them.
  void CheckHeld(const std::vector<BlockId>& blocks, std::string_view by) const;

  uint64_t ReadToken(int32_t layer, const std::vector<BlockId>& table, int32_t position) const {
    return Read(layer, table.at(position / block_size_), position % block_size_);
  }
  // The content is final: READY or CACHED.
  bool IsSealed(BlockId block) const {
    const BlockState state = allocator_.state(block);
    return state == BlockState::kReady || state == BlockState::kCached;
  }
  int32_t block_size() const { return block_size_; }

 private:
  uint64_t& At(int32_t layer, BlockId block, int32_t slot);

  const BlockAllocator& allocator_;
  OnViolation violation_;
  int32_t block_size_;
  std::vector<uint64_t> tags_;
  std::vector<bool> poisoned_;  // Per block: FREE, and poisoned already.
};

// The tag that a token at a position leaves in a layer after `previous`, the tag before it (0 at
// the start), and the token that follows a whole prefix of tags.
uint64_t TagOf(int32_t layer, int32_t token, int32_t position, uint64_t previous);
int32_t NextToken(uint64_t folded, const SamplingParams& params, int32_t position);

// The tokens of a fault-free run, computed without any cluster.
std::vector<int32_t> ExpectedTokens(const std::vector<int32_t>& prompt,
                                    const SamplingParams& params);

// A runner whose answers are a function of every tag of the sequence's context, read from the
// modelled memory when a layer runs: a block that was overwritten, freed or never filled gives
// another token.
class FakeRunner : public ModelRunner {
 public:
  using Mail = std::function<void(Message)>;

  FakeRunner(World& world, TagMemory& memory, const Faults& faults, Mail mail);

  void Start(std::shared_ptr<const StepPlan> plan) override;
  // The process died: nothing is read, written or reported any more.
  void Kill() { *alive_ = false; }
  // The blocks of the step in flight are held.
  void Check() const;

 private:
  void RunLayer(const StepPlan& plan, int32_t layer);
  StepDone Results(const StepPlan& plan);

  World& world_;
  TagMemory& memory_;
  const Faults& faults_;
  Mail mail_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<const StepPlan> in_flight_;
  std::vector<uint64_t> folded_;  // Per row, over the layers of the step in flight.
};

}  // namespace baton::sim
