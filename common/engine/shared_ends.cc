// Of Engine: a further choice of a prompt shares its full blocks; of the block behind them, which
// each choice goes on to write, it takes a copy.
#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"
#include "common/engine/engine.h"

namespace baton {
namespace {

// From the end: prompts about one document differ there.
bool HasComputed(const Sequence& other, const Sequence& sequence, int32_t num_tokens) {
  return other.num_computed >= num_tokens && other.is_long == sequence.is_long &&
         other.tenant == sequence.tenant &&
         std::equal(std::make_reverse_iterator(sequence.tokens.begin() + num_tokens),
                    sequence.tokens.rend(),
                    std::make_reverse_iterator(other.tokens.begin() + num_tokens));
}

// A window that has passed something may have begun inside a block, which then lacks its first
// tokens.
bool HasAllOfItsBlocks(const Sequence& sequence, const std::vector<KvWindow>& windows) {
  return std::ranges::all_of(windows, [&sequence](const KvWindow& window) {
    return TokensLeftOut(window, sequence.num_tokens()) == 0;
  });
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
    if (!HasAllOfItsBlocks(*other, allocator_.windows())) continue;
    if (!HasComputed(*other, sequence, wanted)) continue;
    for (int32_t g = 0; g < allocator_.num_groups(); ++g) {
      plan->copies.push_back({other->blocks.blocks(g)[entry], sequence.blocks.blocks(g)[entry]});
    }
    sequence.num_copied = wanted - sequence.num_computed;
    num_copied_tokens_ += sequence.num_copied;
    return true;
  }
  return false;
}

}  // namespace baton
