#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/sampling.h"
#include "common/base/time.h"
#include "common/kv_cache/block_allocator.h"
#include "common/model/model_runner.h"

namespace baton {

// Of the prefix cache: K of a long sequence is another than that of a short one with its tokens. A
// tenant's name has no such character (CheckLabel).
inline std::string PrefixSalt(const std::string& tenant, bool is_long) {
  return is_long ? '\n' + tenant : tenant;
}

// One prompt and one choice while a worker computes it. Whoever holds the Sequence holds its
// blocks; the engine has it while it computes and gives it back when it lets go.
struct Sequence {
  SequenceId id;
  CallId call = 0;              // The owner's key; unique on this worker.
  std::vector<int32_t> tokens;  // Prompt, then what was emitted.
  int32_t prompt_length = 0;
  std::shared_ptr<const SamplingContext> sampling;
  std::string tenant;
  Time arrival{};             // When the router took the request; the youngest is preempted.
  bool prefill_only = false;  // Leaves the engine with its first token.
  bool score_only = false;    // Leaves the engine when its prompt is computed, samples nothing.
  // A decode worker computes the prompt in a prefill worker's place; until its first token.
  bool own_prompt = false;
  // Samples its first token in one step with others of this group (FinishGate),
  // for whom it waits until then at most; 0 = alone.
  uint64_t finish_group = 0;
  Time wait_until = kNever;
  int64_t num_own = 0;       // Tokens left to compute when the engine took it.
  int64_t num_waited = 0;    // Tokens that were computed while only its last one was left.
  // It goes on with the blocks of this call, which was removed amid a step that still touches them.
  CallId in_place_of = 0;
  int32_t scores_from = 1;   // Scores of the prompt's tokens before this position were told.
  int32_t num_computed = 0;  // Leading tokens whose K/V the blocks hold, as far as it is seen.
  int32_t num_copied = 0;    // Those behind them that the step in flight copies from another's.
  bool is_long = false;      // As StepRow's, of that K/V.
  BlockTable blocks;
  BlockTable host_blocks;       // While preempted, if its K/V was swapped out.
  int32_t num_host_tokens = 0;  // Leading tokens whose K/V those hold.

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_emitted() const { return num_tokens() - prompt_length; }
  // Tokens still to be computed before the next one can be sampled.
  int32_t num_remaining() const { return num_tokens() - num_computed; }
  // Every token of its own prompt must be computed: their scores are not all told.
  bool OwesScores() const { return own_prompt && sampling->params.num_prompt_logprobs >= 0; }
  std::string salt() const { return PrefixSalt(tenant, is_long); }
};

// Orders sequences by age: oldest first, ties by id. The engine's only order.
struct AgeKey {
  Time arrival{};
  SequenceId id;
  CallId call = 0;
  auto operator<=>(const AgeKey&) const = default;
};

using SequencesByAge = std::map<AgeKey, std::unique_ptr<Sequence>>;  // Oldest first.

inline AgeKey AgeOf(const Sequence& sequence) {
  return {sequence.arrival, sequence.id, sequence.call};
}

// Whether its sampler looks at what was emitted.
bool NeedsHistory(const SamplingParams& params);

// Why a sequence ends with `token` as its `num_emitted`-th token, or kNone. Prefill and decode
// workers use the same rule, so both know of a first token that is also the last.
FinishReason FinishAfter(const SamplingParams& params, const std::vector<int32_t>& eos_token_ids,
                         int32_t token, int32_t num_emitted);

}  // namespace baton
