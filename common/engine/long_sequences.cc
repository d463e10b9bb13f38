// Of Engine: a sequence that becomes long has other K/V, from its first token on. It is computed
// again in its place by age.
#include <algorithm>
#include <vector>

#include "common/engine/engine.h"

namespace baton {

// What it held alone is free now, and it takes that before anybody else does but one that is older
// and waits.
void Engine::BecomeLong(Sequence& sequence) {
  sequence.blocks.Release();
  sequence.num_computed = 0;
  sequence.is_long = IsLong(sequence.num_tokens());
  ++num_outgrown_;
  if (WaitsBefore(AgeOf(sequence))) return;
  sequence.blocks = allocator_.Match(sequence.salt(), sequence.tokens, sequence.num_tokens() - 1);
  sequence.num_computed = sequence.blocks.num_sealed() * allocator_.block_size();
  ReleasePassed(sequence);
  GrowToCover(sequence);
}

bool Engine::GrowToCover(Sequence& sequence) {
  int32_t count = allocator_.BlocksFor(sequence.num_tokens()) - sequence.blocks.size();
  if (count <= 0) return true;
  while (allocator_.BlocksToGrow(sequence.blocks, count) > allocator_.num_available()) --count;
  return allocator_.Grow(sequence.blocks, count) && IsCovered(sequence);
}

bool Engine::OlderOneLacks(const AgeKey& age) const {
  const auto end = running_.lower_bound(age);
  return std::any_of(running_.begin(), end,
                     [this](const auto& item) { return LacksBlocks(*item.second); });
}

void Engine::CoverOutgrown() {
  std::vector<AgeKey> lacking;
  for (const auto& [key, sequence] : running_) {
    if (LacksBlocks(*sequence)) lacking.push_back(key);
  }
  for (const AgeKey& key : lacking) {
    auto it = running_.find(key);  // An older one may have preempted it.
    if (it != running_.end()) EnsureBlocks(*it->second);
  }
}

}  // namespace baton
