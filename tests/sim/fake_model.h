#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/model/model_runner.h"
#include "common/node/message.h"
#include "tests/sim/world.h"

namespace baton::sim {

inline constexpr int32_t kLayers = 2;
inline constexpr int32_t kVocab = 97;
inline constexpr int32_t kEos = 1;

// The memory of one worker's block pool: one tag per (layer, block, slot) instead of K and V.
class TagMemory {
 public:
  TagMemory(int32_t num_blocks, int32_t block_size)
      : block_size_(block_size),
        tags_(size_t{kLayers} * num_blocks * block_size, kPoison),
        num_blocks_(num_blocks) {}

  static constexpr uint64_t kPoison = 0xDEADDEADDEADDEADull;

  uint64_t& At(int32_t layer, BlockId block, int32_t slot) {
    return tags_.at((size_t{static_cast<size_t>(layer)} * num_blocks_ + block) * block_size_ +
                    slot);
  }
  uint64_t& AtToken(int32_t layer, const std::vector<BlockId>& table, int32_t position) {
    return At(layer, table.at(position / block_size_), position % block_size_);
  }
  int32_t block_size() const { return block_size_; }

 private:
  int32_t block_size_;
  std::vector<uint64_t> tags_;
  int32_t num_blocks_;
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

 private:
  void RunLayer(const StepPlan& plan, int32_t layer);
  StepDone Results(const StepPlan& plan);

  World& world_;
  TagMemory& memory_;
  const Faults& faults_;
  Mail mail_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<uint64_t> folded_;  // Per row, over the layers of the step in flight.
};

}  // namespace baton::sim
