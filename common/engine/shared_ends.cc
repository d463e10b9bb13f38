// Of Engine: a further choice of a prompt shares its full blocks; of the block behind them, which
// each choice goes on to write, it takes a copy.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/engine/engine.h"

namespace baton {
namespace {

bool HasComputed(const Sequence& other, const Sequence& sequence, int32_t num_tokens) {
  return other.num_computed >= num_tokens && other.is_long == sequence.is_long &&
         other.tenant == sequence.tenant &&
         std::equal(sequence.tokens.begin(), sequence.tokens.begin() + num_tokens,
                    other.tokens.begin());
}

// Of one entry, a block of each group of layers that keeps it. Empty: the one that has the tokens
// has given up what the other wants.
std::vector<BlockMove> CopiesOf(const BlockTable& from, const BlockTable& to, int32_t entry) {
  std::vector<BlockMove> copies;
  for (int32_t g = 0; g < to.num_groups(); ++g) {
    const BlockMove copy{from.blocks(g)[entry], to.blocks(g)[entry]};
    if (copy.destination < 0) continue;
    if (copy.source < 0) return {};
    copies.push_back(copy);
  }
  return copies;
}

}  // namespace

// Its last token is computed all the same, for the logits.
bool Engine::TakeCopies(Sequence& sequence, const std::vector<Sequence*>& decodes, StepPlan* plan) {
  if (sequence.prefill_only || sequence.score_only || sequence.own_prompt) return false;
  const int32_t wanted = sequence.num_tokens() - 1;
  const int32_t entry = sequence.num_computed / allocator_.block_size();
  if (wanted == sequence.num_computed || (wanted - 1) / allocator_.block_size() != entry) {
    return false;
  }
  BATON_CHECK(entry >= sequence.blocks.num_sealed() && entry < sequence.blocks.size());
  for (const Sequence* other : decodes) {
    if (!HasComputed(*other, sequence, wanted)) continue;
    const std::vector<BlockMove> copies = CopiesOf(other->blocks, sequence.blocks, entry);
    if (copies.empty()) continue;
    plan->copies.insert(plan->copies.end(), copies.begin(), copies.end());
    sequence.num_copied = wanted - sequence.num_computed;
    num_copied_tokens_ += sequence.num_copied;
    return true;
  }
  return false;
}

}  // namespace baton
